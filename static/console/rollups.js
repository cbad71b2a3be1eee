/**
 * The table of the pipeline's rollups: for each channel and protocol the newest window, and the events of earlier ones.
 */

import { timeOfDay } from "./clock.js";
import { element, write } from "./element.js";
import { whole } from "./numbers.js";
import { badge, nameOf } from "./protocol.js";
import { arrange } from "./rows.js";
import { flag, map, number, object, optional, text, time } from "./shape.js";
import { Spark } from "./spark.js";

const FIGURES = (value) => map(number)(value) && object({ count: number, min: number, mean: number, max: number })(value);
const COUNTS = { events: number, bytes: number, publishers: number };
const ROLLUP = object({ channel: text, protocol: text, start: time, end: time, ...COUNTS, numbers: optional(map(object({}))), final: optional(flag) });
const BELOW = "/stats/"; // the channels of rollups
const SERIES = 2_000; // one for each channel and protocol; more than the pipeline publishes at a time
const ROWS = 300;
const WINDOWS = 30; // kept of each series, for its bars

const FIGURE = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const BYTES = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

/** Whether an event is a rollup. Others can publish below `/stats`, too. */
export function isRollup({ channel, data }) {
  return channel.startsWith(BELOW) && ROLLUP(data);
}

/** Whether a pattern is about rollups, which `/**` is not. @param {string} pattern */
export function namesRollups(pattern) {
  return pattern.startsWith(BELOW);
}

export class Rollups {
  #body;
  #empty;
  #table;
  #caption;
  #series = new Map(); // channel and protocol -> { windows, row }
  #newest = 0; // the start of the newest window, in ms since the epoch
  #lengthMs = 0;

  constructor(root) {
    this.#table = root.querySelector("table");
    this.#body = root.querySelector("tbody");
    this.#caption = root.querySelector("[role=status]");
    this.#empty = root.querySelector(".empty");
  }

  /** Take a rollup. The pipeline publishes several for one window while it grows. */
  add(rollup) {
    if (!ROLLUP(rollup)) return;
    const start = Date.parse(rollup.start);
    const key = `${rollup.protocol} ${rollup.channel}`;
    if (!this.#series.has(key)) {
      if (this.#series.size >= SERIES) this.#forgetOldest();
      this.#series.set(key, { windows: new Map(), row: null });
    }
    const { windows } = this.#series.get(key);
    const known = windows.get(start);
    if (known?.final || (known?.events > rollup.events && !rollup.final)) return; // an older one, received late
    windows.set(start, rollup);
    if (windows.size > WINDOWS) windows.delete(Math.min(...windows.keys()));
    if (start >= this.#newest) {
      this.#newest = start;
      this.#lengthMs = Date.parse(rollup.end) - start;
    }
  }

  /** Delete all rollups, for windows of another length. */
  clear() {
    this.#series.clear();
    this.#newest = 0;
    this.#body.replaceChildren();
  }

  /** Update the table. */
  draw() {
    const found = [...this.#series.values()].sort((one, other) => this.#rank(other) - this.#rank(one)).slice(0, ROWS);
    for (const series of found) this.#fill(series);
    const rows = found.map(({ row }) => row.element);
    arrange(this.#body, rows);
    this.#empty.hidden = rows.length > 0;
    this.#table.hidden = rows.length === 0;
    this.#drawCaption(rows.length);
  }

  /** The sort key: the events of the newest window; among equals, those of the window before. */
  #rank({ windows }) {
    const [newest, before] = [this.#newest, this.#newest - this.#lengthMs].map((start) => windows.get(start)?.events ?? 0);
    return newest + before / (before + 1);
  }

  #fill(series) {
    const { windows } = series;
    series.row ??= makeRow(windows.values().next().value);
    const { cells, spark } = series.row;
    const newest = windows.get(this.#newest);
    write(cells.events, whole(newest?.events ?? 0));
    write(cells.bytes, newest ? BYTES.format(newest.bytes) : "0");
    write(cells.publishers, whole(newest?.publishers || null));
    write(cells.numbers, newest ? numbersOf(newest) : "");
    const starts = Array.from({ length: WINDOWS }, (_, at) => this.#newest - (WINDOWS - 1 - at) * this.#lengthMs);
    spark.show(starts.map((start) => windows.get(start)?.events ?? 0));
  }

  #forgetOldest() {
    const age = ([, { windows }]) => Math.max(...windows.keys());
    const [oldest] = [...this.#series].reduce((one, other) => (age(one) <= age(other) ? one : other));
    this.#series.delete(oldest);
  }

  #drawCaption(drawn) {
    const all = this.#series.size;
    const which = all > drawn ? `, the busiest ${drawn} of ${all}` : "";
    const [start, end] = [this.#newest, this.#newest + this.#lengthMs].map(timeOfDay);
    write(this.#caption, drawn ? `${start} to ${end}${which}` : "");
  }
}

function makeRow({ channel, protocol }) {
  const spark = new Spark(WINDOWS, `Events on ${channel} by ${nameOf(protocol)} in the last ${WINDOWS} windows`);
  const number = () => element("td", { className: "numbers" });
  const cells = { events: number(), bytes: number(), publishers: number(), numbers: element("td", { className: "lifted" }) };
  const name = element("th", { scope: "row" }, element("span", { className: "channel", textContent: channel, title: channel }));
  const row = element("tr", {}, name, element("td", {}, badge(protocol)), cells.events);
  row.append(element("td", { className: "spark" }, spark.element), cells.bytes, cells.publishers, cells.numbers);
  return { element: row, cells, spark };
}

/** The figures of lifted columns, a line for each. */
function numbersOf({ numbers }) {
  return Object.entries(numbers ?? {})
    .filter(([, figures]) => FIGURES(figures))
    .map(([name, { count, min, mean, max, ...quantiles }]) => {
      const ranks = Object.entries(quantiles).map(([rank, value]) => `${rank} ${FIGURE.format(value)}`);
      const figures = [`min ${FIGURE.format(min)}`, `mean ${FIGURE.format(mean)}`, `max ${FIGURE.format(max)}`, ...ranks];
      return `${name}: ${whole(count)} values, ${figures.join(", ")}`;
    })
    .join("\n");
}
