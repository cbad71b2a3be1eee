/**
 * The latest changes: sessions that opened and closed, subscriptions that began and ended; newest first.
 *
 * They are the events of `/halley/sessions` and `/halley/subscriptions`, and recorded events of `/halley/sessions`.
 */

import { timeOfDay } from "./clock.js";
import { element } from "./element.js";
import { badge } from "./protocol.js";
import { arrange } from "./rows.js";
import { DIGITS, few } from "./session-rows.js";

const ROWS = 200;
const NAMED = 10; // channels

export class SessionChanges {
  #list;
  #changes = []; // { at, key, data, row }, the newest first

  /** @param {HTMLOListElement} list */
  constructor(list) {
    this.#list = list;
  }

  /** Add a change, unless a session's opening or closing is already listed. @param {number} at in ms since the epoch */
  add(data, at) {
    const key = data.channels ? null : `${data.session} ${data.event}`;
    if (key !== null && this.#changes.some((each) => each.key === key)) return;
    const before = this.#changes.findIndex((each) => each.at <= at);
    this.#changes.splice(before < 0 ? this.#changes.length : before, 0, { at, key, data, row: null });
    if (this.#changes.length > ROWS) this.#changes.pop();
  }

  draw() {
    arrange(this.#list, this.#changes.map((each) => (each.row ??= row(each))));
  }
}

function row({ at, data }) {
  const time = element("time", { dateTime: new Date(at).toISOString(), textContent: timeOfDay(at) });
  const session = element("code", { textContent: data.session.slice(0, DIGITS), title: data.session });
  const what = element("span", { className: "event-name", textContent: data.event });
  const more = element("span", { className: "more", textContent: detail(data) });
  const line = element("li", {}, time, badge(data.protocol), session, what, more);
  line.dataset.event = data.event;
  return line;
}

function detail({ event, authid, role, address, reason, channels }) {
  if (event === "closed") return reason ?? "";
  if (event === "opened") return [authid, role && `as ${role}`, address && `from ${address}`].filter(Boolean).join(" ");
  return few(channels ?? [], NAMED);
}
