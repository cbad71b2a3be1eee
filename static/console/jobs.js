/**
 * The pipeline's jobs as cards: the offset that each has reached in the log, its lag, and its rate.
 */

import { span } from "./clock.js";
import { element, figure, write } from "./element.js";
import { whole } from "./numbers.js";
import { arrange } from "./rows.js";
import { map, number, object, optional } from "./shape.js";

const COUNT = optional(number);
const STATUS = object({ next: COUNT, lag_events: COUNT, lag_s: COUNT, rows_per_s: COUNT, remarks: optional(map(number)) });
const JOBS = 50; // the maximum number of cards; more than pipelines have
const SILENT_MS = 5_000; // without a report; jobs report each second
const BEHIND_S = 30; // a job that works every few seconds is always some of them behind

export class Jobs {
  #list;
  #empty;
  #jobs = new Map(); // name -> { status, at, card }

  constructor(root) {
    this.#list = root.querySelector("ul");
    this.#empty = root.querySelector(".empty");
  }

  /** Take a pipeline's report: for each of its jobs the next offset, the lag, the rate and the remarks. */
  update(statuses) {
    const at = Date.now();
    for (const [name, status] of Object.entries(statuses ?? {})) {
      if (!STATUS(status) || (!this.#jobs.has(name) && this.#jobs.size >= JOBS)) continue;
      const card = this.#jobs.get(name)?.card ?? makeCard(name);
      this.#jobs.set(name, { status, at, card });
    }
  }

  /** Delete all jobs. */
  forget() {
    this.#jobs.clear();
  }

  /** Update the cards. */
  draw() {
    const now = Date.now();
    const cards = [...this.#jobs.values()].map(({ status, at, card }) => {
      fill(card, status, now - at);
      return card.element;
    });
    arrange(this.#list, cards);
    this.#empty.hidden = cards.length > 0;
  }
}

function makeCard(name) {
  const state = element("p", { className: "state" });
  const next = element("dd", { className: "numbers" });
  const lag = element("dd", { className: "numbers" });
  const rate = element("dd", { className: "numbers" });
  const remarks = element("p", { className: "fine remarks" });
  const figures = element("dl", {}, figure("next offset", next), figure("behind", lag), figure("rows/s", rate));
  const card = element("li", { className: "panel job" }, element("h3", { textContent: name }), state, figures, remarks);
  return { element: card, state, next, lag, rate, remarks };
}

function fill(card, { next = 0, lag_events = 0, lag_s = 0, rows_per_s = 0, remarks }, silentMs) {
  const isSilent = silentMs >= SILENT_MS;
  const isBehind = lag_events > 0 && lag_s >= BEHIND_S;
  const lag = lag_events > 0 ? `${whole(lag_s)} s behind` : "up to date";
  card.element.dataset.state = isSilent ? "silent" : isBehind ? "behind" : "good";
  write(card.state, isSilent ? `no report for ${span(silentMs / 1_000)}` : lag);
  write(card.next, whole(next));
  write(card.lag, `${whole(lag_events)} events`);
  write(card.rate, isSilent ? "–" : whole(rows_per_s));
  const counted = Object.entries(remarks ?? {}).filter(([, count]) => count);
  write(card.remarks, counted.map(([what, count]) => `${whole(count)} ${what}`).join(", "));
}
