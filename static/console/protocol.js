/**
 * The protocols as people write them.
 */

import { element } from "./element.js";

/** Their names, by what the server calls them. */
export const PROTOCOLS = { bayeux: "Bayeux", wamp: "WAMP", nt4: "NT4" };

/** A protocol's name, also of one that is not known here. @param {string} protocol */
export function nameOf(protocol) {
  return Object.hasOwn(PROTOCOLS, protocol) ? PROTOCOLS[protocol] : protocol;
}

/** A protocol's badge. @param {string} protocol */
export function badge(protocol) {
  const made = element("span", { className: "badge", textContent: nameOf(protocol) });
  made.dataset.protocol = protocol;
  return made;
}
