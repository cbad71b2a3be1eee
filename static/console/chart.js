/**
 * A line chart of the last two minutes, as SVG: an axis (see `axis.js`), a legend with the current values, and a
 * readout of any moment by pointer or arrow keys. A line has a gap where ticks are missing.
 *
 * Points are placed by their own time, so they can be added late, in batches, or twice.
 */

import { timeOfDay } from "./clock.js";
import { drawn, element } from "./element.js";

const SHOWN_MS = 120_000;
/** The times below a chart: the part of the time shown that lies after each, its label, and where that is anchored. */
const TIMES = /** @type {const} */ ([[1, "2 min ago", "start"], [0.5, "1 min", "middle"], [0, "now", "end"]]);
const HEIGHT = 124; // of the drawing, in pixels, like the other lengths
const LEFT = 50; // room for the numbers of the axis
const BOTTOM = 18; // room for the times
const TOP = 8;
const GAP_EVERIES = 2.5; // a longer gap between points, in intervals of ticks, breaks the line
const POINTS = 500; // the maximum number that is kept, however short the interval of ticks

export class Chart {
  #plot;
  #series;
  #axis;
  #format;
  #svg = drawn("svg", { role: "img", tabindex: 0, height: HEIGHT });
  #values = new Map(); // series -> the element of the legend that shows its value
  #readout = element("output", { className: "readout" });
  #points = new Map(); // ms since the epoch -> the numbers at that time
  #every = 1_000;
  #chosen = null; // the time whose values are read out, or null for the newest
  #silentMs = 0;
  #width = 0;

  /**
   * @param {Element} root
   * @param {{ title: string, about?: string, axis(values: number[]): object, format(value: number): string, series: { name: string, protocol: string, isDashed: boolean, of(point: object): number | null }[] }} what
   */
  constructor(root, { title, about = "", axis, format, series }) {
    this.#plot = element("div", { className: "plot" }, this.#svg);
    this.#axis = axis;
    this.#format = format;
    this.#series = series;
    this.title = title;
    const legend = element("ul", { className: "legend" });
    for (const one of series) {
      const value = element("span", { className: "numbers", textContent: "–" });
      const row = element("li", { className: one.isDashed ? "dashed" : "" }, element("span", { textContent: one.name }), value);
      row.dataset.protocol = one.protocol;
      this.#values.set(one, value);
      legend.append(row);
    }
    const head = element("h2", { textContent: title });
    const more = element("p", { className: "fine", textContent: about, title: about });
    root.append(element("div", { className: "chart-head" }, head, more, this.#readout), this.#plot, legend);
    new ResizeObserver(() => this.draw()).observe(this.#plot);
    this.#svg.addEventListener("pointermove", ({ offsetX }) => this.#choose(this.#timeAt(offsetX)));
    this.#svg.addEventListener("pointerleave", () => this.#choose(null));
    this.#svg.addEventListener("blur", () => this.#choose(null));
    this.#svg.addEventListener("keydown", (key) => this.#step(key));
  }

  /** Add the numbers of one tick. @param {number} at ms since the epoch @param {object} point @param {number} everyMs */
  add(at, point, everyMs) {
    this.#every = everyMs;
    this.#points.set(at, point);
    const times = this.#times();
    for (const time of times) {
      if (time < times.at(-1) - SHOWN_MS || this.#points.size > POINTS) this.#points.delete(time);
    }
  }

  /** Draw. @param {number} silentMs the time since the last tick if that is too long, else 0 */
  show(silentMs = 0) {
    this.#silentMs = silentMs;
    this.draw();
  }

  /** Delete all points. */
  clear() {
    this.#points.clear();
    this.#chosen = null;
  }

  /** Draw with the current width and points. */
  draw() {
    this.#width = this.#plot.clientWidth;
    if (this.#width <= LEFT) return; // it is hidden
    const end = this.#end();
    const times = this.#times().filter((at) => at >= end - SHOWN_MS);
    const axis = this.#axis(this.#series.flatMap((one) => times.map((at) => one.of(this.#points.get(at)) ?? 0)));
    const x = (at) => LEFT + (1 - (end - at) / SHOWN_MS) * (this.#width - LEFT - 2);
    const y = (value) => TOP + (1 - axis.part(value)) * (HEIGHT - TOP - BOTTOM);
    const shapes = [...grid(axis.marks, this.#format, y, this.#width)];
    for (const [part, label, anchor] of TIMES) {
      shapes.push(drawn("text", { x: x(end - part * SHOWN_MS), y: HEIGHT - 4, "text-anchor": anchor }, label));
    }
    for (const one of this.#series) {
      const line = drawn("path", { d: this.#path(one, times, x, y), class: one.isDashed ? "line dashed" : "line" });
      line.dataset.protocol = one.protocol;
      shapes.push(line);
    }
    if (this.#chosen !== null) shapes.push(drawn("path", { class: "cursor", d: `M${x(this.#chosen)} ${TOP}V${HEIGHT - BOTTOM}` }));
    this.#svg.setAttribute("width", this.#width);
    this.#svg.replaceChildren(...shapes);
    this.#say(times);
  }

  /** The time at the right edge. */
  #end() {
    return (this.#times().at(-1) ?? Date.now()) + this.#silentMs;
  }

  #times() {
    return [...this.#points.keys()].sort((one, other) => one - other);
  }

  #path(one, times, x, y) {
    let path = "";
    let before = -Infinity; // the last time that has a value
    for (const at of times) {
      const value = one.of(this.#points.get(at));
      if (value === null) continue;
      const isApart = at - before > this.#every * GAP_EVERIES;
      // A single value between gaps is drawn as a dot: a line of length 0 with round ends.
      path += `${isApart ? "M" : "L"}${x(at).toFixed(1)} ${y(value).toFixed(1)}${isApart ? "h0" : ""}`;
      before = at;
    }
    return path;
  }

  /** Show the values of now or of the chosen time in the legend, and in the label for screen readers. */
  #say(times) {
    const isSilent = this.#silentMs > 0 && this.#chosen === null;
    const point = isSilent ? null : this.#points.get(this.#chosen ?? times.at(-1));
    const parts = [];
    for (const one of this.#series) {
      const value = point ? one.of(point) : null;
      const text = value === null ? "–" : this.#format(value);
      this.#values.get(one).textContent = text;
      if (value !== null) parts.push(`${one.name} ${text}`);
    }
    const when = this.#chosen === null ? "now" : timeOfDay(this.#chosen);
    const silence = isSilent ? `no data from the server for ${Math.floor(this.#silentMs / 1_000)} s` : "";
    this.#readout.textContent = this.#chosen === null ? silence : when;
    this.#svg.setAttribute("aria-label", `${this.title}, ${when}: ${parts.join(", ") || silence || "nothing yet"}`);
  }

  #timeAt(offsetX) {
    const times = this.#times();
    const back = (1 - (offsetX - LEFT) / (this.#width - LEFT - 2)) * SHOWN_MS;
    const wanted = this.#end() - back;
    return times.reduce((best, at) => (Math.abs(at - wanted) < Math.abs(best - wanted) ? at : best), times[0] ?? null);
  }

  #step(key) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[key.key];
    if (key.key === "Escape") this.#choose(null);
    if (!by) return;
    key.preventDefault();
    const times = this.#times();
    const from = this.#chosen === null ? times.length : times.indexOf(this.#chosen);
    this.#choose(times[Math.max(0, from + by)] ?? null);
  }

  #choose(at) {
    this.#chosen = at;
    this.draw();
  }
}

function* grid(marks, format, y, width) {
  for (const mark of marks) {
    yield drawn("path", { class: "grid", d: `M${LEFT} ${Math.round(y(mark)) + 0.5}H${width}` });
    yield drawn("text", { x: LEFT - 6, y: y(mark) + 4, "text-anchor": "end" }, format(mark));
  }
}
