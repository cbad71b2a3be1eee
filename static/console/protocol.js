/**
 * The names of protocols for people.
 */

import { element } from "./element.js";

/** The names to show, by the server's names. */
export const PROTOCOLS = { bayeux: "Bayeux", wamp: "WAMP", nt4: "NT4", events: "SSE" };

/** The name to show; an unknown protocol's is the server's. @param {string} protocol */
export function nameOf(protocol) {
  return Object.hasOwn(PROTOCOLS, protocol) ? PROTOCOLS[protocol] : protocol;
}

/** Create a protocol's badge. @param {string} protocol */
export function badge(protocol) {
  const made = element("span", { className: "badge", textContent: nameOf(protocol) });
  made.dataset.protocol = protocol;
  return made;
}
