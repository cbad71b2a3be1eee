/**
 * The view Overview: throughput and delay by protocol as charts, current figures, and counts that should stay 0.
 */

import { even, powers } from "./axis.js";
import { Chart } from "./chart.js";
import { element, figure, notify } from "./element.js";
import { duration, short } from "./numbers.js";
import { PROTOCOLS } from "./protocol.js";
import { Redraw } from "./redraw.js";
import { refusal } from "./refusals.js";
import { list, map, number, object, optional, time } from "./shape.js";

const RATES = "/halley/rates";
const SILENT_MS = 5_000; // without a tick; or, if that is longer, this number of intervals:
const SILENT_TICKS = 2.5;
const DRAW_EVERY_MS = 50; // one poll can deliver several ticks
const NO_WORD =
  "No figures have been received. The server publishes none if its setting ticks.every_s is 0; with ticks.every_s = 1 it publishes them each second.";
const ORDINARY_LIMITS = new Set(["holds_per_browser", "keep_alive_s", "max_interval_s"]);
const BACK_MS = 5_000; // a tick that is older than the newest by more than this is not late: the clock was set back

const DELAYS = object({ p50: number, p99: number });
const FLOW = { published_per_s: number, delivered_per_s: number };
const PROTOCOL = object({ sessions: number, ...FLOW, delay_ms: optional(DELAYS) });
const COUNTS = { subscriptions: number, queued: number, holds: number, memory_bytes: number };
const LOSSES = { dropped: number, overflows: number, put_back: number, conflated: number };
const TICK = object({
  time,
  every_s: number,
  protocols: map(PROTOCOL),
  limits_hit: map(number),
  history: optional(object({ head: number, bytes: number, recorded_per_s: number, lost: number })),
  ...COUNTS,
  ...LOSSES,
  past: optional(list(object({ time, protocols: map(object({ ...FLOW, delay_ms: optional(DELAYS) })) }))),
});

const THROUGHPUT = {
  title: "Throughput, events/s",
  axis: even,
  format: short,
  series: lines({ published: "published_per_s", delivered: "delivered_per_s" }),
};
const DELAY = {
  title: "Delay",
  about: "from an event's publication until it is written to a ready subscriber",
  axis: powers,
  format: duration,
  series: lines({ p50: "p50", p99: "p99" }, (protocol) => protocol.delay_ms ?? {}),
};

/** @typedef {import("./shape.js").Of<typeof TICK>} Tick */

/** @typedef {[label: string, read: (tick: Tick) => number | null]} Figure its value is null if a tick has none */

/** The current figures. @type {Figure[]} */
const NOW = [
  ...Object.entries(PROTOCOLS).map(
    ([key, name]) => /** @type {Figure} */ ([`${name} sessions`, ({ protocols }) => protocols[key]?.sessions ?? null]),
  ),
  ["Patterns", (rates) => rates.subscriptions],
  ["Queued", (rates) => rates.queued],
  ["Held polls", (rates) => rates.holds],
  ["Memory, MiB", (rates) => rates.memory_bytes / 2 ** 20],
  ["History head", (rates) => rates.history?.head ?? null],
  ["History, MiB", (rates) => (rates.history ? rates.history.bytes / 2 ** 20 : null)],
  ["Recorded/s", (rates) => rates.history?.recorded_per_s ?? null],
];

/** The counts that should stay 0. @type {Figure[]} */
const TROUBLES = [
  ["Dropped", (rates) => rates.dropped],
  ["Overflows", (rates) => rates.overflows],
  ["Put back", (rates) => rates.put_back],
  ["Conflated", (rates) => rates.conflated],
  ["History lost", (rates) => rates.history?.lost ?? null],
  ["Limits hit", (rates) => troubling(rates.limits_hit).reduce((sum, [, times]) => sum + times, 0)],
];

export class Overview {
  #feed;
  #charts;
  #notice;
  #numbers = []; // [the element that shows it, the function that reads it, whether it should stay 0]
  /** @type {Tick | null} */
  #newest = null;
  #receivedAt = 0; // performance.now() when the last tick was received, or when the view was shown before any was
  #redraw = new Redraw(() => this.#draw(), DRAW_EVERY_MS);

  constructor(root, /** @type {import("./console.js").Services} */ { feed }) {
    this.#feed = feed;
    const charts = root.querySelector("#charts");
    this.#notice = root.querySelector("#rates-notice");
    this.#charts = [THROUGHPUT, DELAY].map((what) => {
      const panel = element("section", { className: "panel chart" });
      panel.setAttribute("aria-label", what.title);
      charts.append(panel);
      return new Chart(panel, what);
    });
    const list = root.querySelector("#numbers");
    for (const row of [...NOW, ...TROUBLES]) {
      const [label, read] = row;
      const value = element("dd", { className: "numbers", textContent: "–" });
      list.append(figure(label, value));
      this.#numbers.push([value, read, TROUBLES.includes(row)]);
    }
  }

  show() {
    notify(this.#notice, "");
    this.#feed.subscribe(RATES, this);
    if (this.#newest === null) this.#receivedAt = performance.now();
    this.#redraw.start();
  }

  hide() {
    this.#redraw.stop();
    this.#feed.unsubscribeAll(this);
  }

  /** Called by `Feed`. */
  received({ data: rates }) {
    if (!TICK(rates)) return;
    const at = Date.parse(rates.time);
    const newest = this.#newest === null ? -Infinity : Date.parse(this.#newest.time);
    const isBack = at < newest - BACK_MS;
    if (isBack) for (const chart of this.#charts) chart.clear();
    const before = (rates.past ?? []).filter(({ time }) => Date.parse(time) < at);
    for (const chart of this.#charts) {
      for (const tick of [...before, rates]) chart.add(Date.parse(tick.time), tick, rates.every_s * 1_000);
    }
    if (this.#newest === null) notify(this.#notice, "");
    this.#receivedAt = performance.now();
    if (isBack || at >= newest) this.#newest = rates;
    this.#redraw.soon();
  }

  /** Called by `Feed`. */
  refused(_, error) {
    this.#redraw.stop();
    notify(this.#notice, refusal(error, "subscribe to /halley/**", "see this server's figures"));
  }

  /** Draw the figures. If ticks are missing, old ones are not shown as current. */
  #draw() {
    const newest = this.#newest;
    const agoMs = performance.now() - this.#receivedAt;
    const isSilent = agoMs >= Math.max(SILENT_MS, SILENT_TICKS * 1_000 * (newest?.every_s ?? 0));
    if (newest === null) {
      if (isSilent) notify(this.#notice, NO_WORD);
      return;
    }
    const silentMs = isSilent ? agoMs : 0;
    for (const chart of this.#charts) chart.show(silentMs);
    for (const [value, read, isTrouble] of this.#numbers) {
      const number = silentMs > 0 ? null : read(newest);
      value.textContent = number === null ? "–" : short(number);
      value.classList.toggle("troubled", isTrouble && number > 0);
    }
    const limits = troubling(newest.limits_hit).map(([limit, times]) => `${limit} ${times}`);
    this.#numbers.at(-1)[0].title = limits.join(", ");
  }
}

/** Two lines for each protocol, the second dashed. */
function lines(fields, within = (protocol) => protocol) {
  return Object.entries(PROTOCOLS).flatMap(([protocol, name]) =>
    Object.entries(fields).map(([word, field], index) => ({
      name: `${name} ${word}`,
      protocol,
      isDashed: index === 1,
      of: ({ protocols }) => (protocols[protocol] ? (within(protocols[protocol])[field] ?? null) : null),
    })),
  );
}

/** The limits that refused something; ordinary limits, such as those that end idle connections, are omitted. */
function troubling(limitsHit) {
  return Object.entries(limitsHit).filter(([limit]) => !ORDINARY_LIMITS.has(limit));
}
