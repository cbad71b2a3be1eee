/**
 * The view Overview: throughput and delay by protocol as charts, current figures, and counts that should stay 0.
 */

import { duration, even, powers, short } from "./axis.js";
import { Chart } from "./chart.js";
import { element } from "./element.js";
import { PROTOCOLS } from "./protocol.js";
import { refusal } from "./refusals.js";
import { list, map, number, object, optional, time } from "./shape.js";

const RATES = "/halley/rates";
const SILENT_MS = 5_000; // without a tick; or, if that is longer, this number of intervals:
const SILENT_TICKS = 2.5;
const LOOK_EVERY_MS = 1_000;
const NO_WORD =
  "No figures have been received. The server publishes none if its setting ticks.every_s is 0; with ticks.every_s = 1 it publishes them each second.";
const ORDINARY_LIMITS = new Set(["holds_per_browser", "keep_alive_s", "max_interval_s"]);
const BACK_MS = 5_000; // a tick that is older than the newest by more than this is not late: the clock was set back

const DELAYS = object({ p50: number, p99: number });
const FLOW = { published_per_s: number, delivered_per_s: number };
const PROTOCOL = object({ sessions: number, ...FLOW, delay_ms: optional(DELAYS) });
const COUNTS = ["subscriptions", "queued", "holds", "memory_bytes", "dropped", "overflows", "put_back", "conflated"];
const TICK = object({
  time,
  every_s: number,
  protocols: map(PROTOCOL),
  limits_hit: map(number),
  history: optional(object({ head: number, bytes: number, recorded_per_s: number, lost: number })),
  ...Object.fromEntries(COUNTS.map((name) => [name, number])),
  past: optional(list(object({ time, protocols: map(object({ ...FLOW, delay_ms: optional(DELAYS) })) }))),
});

const THROUGHPUT = {
  title: "Throughput, events/s",
  axis: even,
  tell: short,
  series: lines({ published: "published_per_s", delivered: "delivered_per_s" }),
};
const DELAY = {
  title: "Delay",
  about: "from an event's publication until it is written to a ready subscriber",
  axis: powers,
  tell: duration,
  series: lines({ p50: "p50", p99: "p99" }, (protocol) => protocol.delay_ms ?? {}),
};

/** The current figures: a label, and a function that reads the value from a tick, or null if the tick has none. */
const NOW = [
  ...Object.entries(PROTOCOLS).map(([key, name]) => [`${name} sessions`, ({ protocols }) => protocols[key]?.sessions ?? null]),
  ["Patterns", (rates) => rates.subscriptions],
  ["Queued", (rates) => rates.queued],
  ["Held polls", (rates) => rates.holds],
  ["Memory, MiB", (rates) => rates.memory_bytes / 2 ** 20],
  ["History head", (rates) => rates.history?.head ?? null],
  ["History, MiB", (rates) => (rates.history ? rates.history.bytes / 2 ** 20 : null)],
  ["Recorded/s", (rates) => rates.history?.recorded_per_s ?? null],
];

/** The counts that should stay 0. */
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
  #owner = {
    heard: ({ data }) => this.#heard(data),
    refused: (_, error) => this.#refuse(error),
  };
  #newest = null;
  #heardAt = 0; // performance.now() when the last tick was received, or when the view was shown before any was
  #looks = 0; // the timer that checks whether ticks are missing
  #isDue = false;

  constructor(root, { feed }) {
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
    for (const [rows, isTrouble] of [[NOW, false], [TROUBLES, true]]) {
      for (const [label, read] of rows) {
        const value = element("dd", { className: "numbers", textContent: "–" });
        list.append(element("div", {}, element("dt", { textContent: label }), value));
        this.#numbers.push([value, read, isTrouble]);
      }
    }
  }

  show() {
    this.#say("");
    this.#feed.hear(RATES, this.#owner);
    if (this.#newest === null) this.#heardAt = performance.now();
    this.#looks = setInterval(() => this.#look(), LOOK_EVERY_MS);
  }

  hide() {
    clearInterval(this.#looks);
    this.#feed.leaveAll(this.#owner);
  }

  #heard(rates) {
    if (!TICK(rates)) return;
    const at = Date.parse(rates.time);
    const newest = this.#newest === null ? -Infinity : Date.parse(this.#newest.time);
    const isBack = at < newest - BACK_MS;
    if (isBack) for (const chart of this.#charts) chart.clear();
    const before = (rates.past ?? []).map((tick) => [Date.parse(tick.time), tick]).filter(([moment]) => moment < at);
    for (const chart of this.#charts) {
      for (const point of [...before, [at, rates]]) chart.add(...point, rates.every_s * 1_000);
    }
    if (this.#newest === null) this.#say("");
    this.#heardAt = performance.now();
    if (isBack || at >= newest) this.#newest = rates;
    if (this.#isDue) return;
    this.#isDue = true;
    requestAnimationFrame(() => this.#draw()); // one poll can deliver several ticks
  }

  /** Check whether ticks are missing, so that old figures are not shown as current ones. */
  #look() {
    const silentMs = performance.now() - this.#heardAt;
    if (silentMs < Math.max(SILENT_MS, SILENT_TICKS * 1_000 * (this.#newest?.every_s ?? 0))) return;
    if (this.#newest === null) this.#say(NO_WORD);
    else this.#draw(silentMs);
  }

  /** Show that the server refused the subscription. */
  #refuse(error) {
    clearInterval(this.#looks);
    this.#say(refusal(error, "subscribe to /halley/**", "see this server's figures"));
  }

  #draw(silentMs = 0) {
    this.#isDue = false;
    for (const chart of this.#charts) chart.show(silentMs);
    for (const [value, read, isTrouble] of this.#numbers) {
      const number = silentMs > 0 ? null : read(this.#newest);
      value.textContent = number === null ? "–" : short(number);
      value.classList.toggle("troubled", isTrouble && number > 0);
    }
    const limits = troubling(this.#newest.limits_hit).map(([limit, times]) => `${limit} ${times}`);
    this.#numbers.at(-1)[0].title = limits.join(", ");
  }

  #say(text) {
    this.#notice.textContent = text;
    this.#notice.hidden = text === "";
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
