/**
 * The list of the pipeline's alerts: the newest first, at most 200, without repeats.
 */

import { TO_SECONDS } from "./clock.js";
import { element } from "./element.js";
import { badge } from "./protocol.js";
import { number, object, optional, text, time } from "./shape.js";

const ROWS = 200;
const ALERT = object({ channel: text, protocol: optional(text), kind: text, time, rate: number, usual: number });
const KINDS = {
  __proto__: null, // a kind that is not listed is shown as the pipeline calls it
  spike: "Spike",
  silence: "Silence",
  recovered: "Recovered",
};

const WHEN = new Intl.DateTimeFormat("en-GB", { month: "short", day: "numeric", ...TO_SECONDS });
const RATE = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

export class Alerts {
  #list;
  #empty;
  #alerts = new Map(); // time, kind and channel -> { alert, row }
  #isChanged = false;

  constructor(root) {
    this.#list = root.querySelector("ol");
    this.#empty = root.querySelector(".empty");
  }

  /** Add an alert: `{ channel, protocol, kind, time, rate, usual }`, rates in events per second. */
  add(alert) {
    if (!ALERT(alert)) return;
    const key = `${alert.time} ${alert.kind} ${alert.channel}`;
    if (this.#alerts.has(key)) return;
    this.#alerts.set(key, { alert, row: null });
    this.#isChanged = true;
    if (this.#alerts.size > 2 * ROWS) this.#cut();
  }

  /** Update the list. */
  draw() {
    if (!this.#isChanged) return;
    this.#isChanged = false;
    this.#cut();
    const newestFirst = [...this.#alerts.values()];
    for (const known of newestFirst) known.row ??= alertRow(known.alert);
    this.#list.replaceChildren(...newestFirst.map(({ row }) => row));
    this.#empty.hidden = newestFirst.length > 0;
  }

  /** Keep only the newest alerts, newest first. */
  #cut() {
    const newestFirst = [...this.#alerts].sort(([, one], [, other]) => (one.alert.time < other.alert.time ? 1 : -1));
    this.#alerts = new Map(newestFirst.slice(0, ROWS));
  }
}

function alertRow({ channel, protocol, kind, time, rate, usual }) {
  const name = element("span", { className: "kind", textContent: KINDS[kind] ?? kind });
  const rates = `${RATE.format(rate)} events/s, usually ${RATE.format(usual)}`;
  const row = element(
    "li",
    {},
    element("time", { dateTime: time, textContent: WHEN.format(new Date(time)), title: time }),
    name,
    element("span", { className: "channel", textContent: channel, title: channel }),
    element("span", { className: "fine rate", textContent: rates }),
  );
  row.dataset.kind = kind;
  if (protocol) row.append(badge(protocol));
  return row;
}
