/**
 * One recorded event as a row that unfolds to its whole data.
 */

import { withBytesCounted } from "./bytes.js";
import { TO_SECONDS } from "./clock.js";
import { element } from "./element.js";
import { whole } from "./numbers.js";
import { badge } from "./protocol.js";

const PREVIEW_CHARS = 400;

const DAY = /** @type {const} */ ({ year: "numeric", month: "2-digit", day: "2-digit" });
const WHEN = new Intl.DateTimeFormat("sv-SE", { ...DAY, ...TO_SECONDS, fractionalSecondDigits: 3 });

/**
 * A row of the history.
 *
 * @param {import("./history-pages.js").Recorded} event
 * @param {() => void} replay called when its button is clicked
 */
export function historyRow({ channel, data, position, time, protocol, nt4 }, replay) {
  const json = JSON.stringify(data);
  const kind = element("span", { className: "kind" }, badge(protocol));
  if (nt4) kind.append(element("span", { className: "nt4-type", textContent: nt4.type, title: nt4.type }));
  const summary = element(
    "summary",
    {},
    element("span", { className: "position", textContent: whole(position), title: "Position" }),
    element("time", { dateTime: time, textContent: WHEN.format(new Date(time)).replace(",", "."), title: time }),
    kind,
    element("span", { className: "channel", textContent: channel, title: channel }),
    element("code", { className: "preview", textContent: withBytesCounted(json).slice(0, PREVIEW_CHARS) }),
  );
  const details = element("details", {}, summary);
  const unfold = () => details.append(element("pre", { textContent: JSON.stringify(data, null, 2) }));
  details.addEventListener("toggle", unfold, { once: true });
  const button = element("button", { type: "button", textContent: "Replay from here" });
  button.setAttribute("aria-label", `Replay from here, position ${position}`);
  button.addEventListener("click", replay);
  return element("li", { className: "event recorded" }, details, button);
}
