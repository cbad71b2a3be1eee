/**
 * A few numbers as small bars next to each other, the oldest at the left.
 */

import { drawn } from "./element.js";

const WIDTH = 3; // of a bar and the gap after it
const HEIGHT = 18;

export class Spark {
  /** @type {SVGSVGElement} */
  element;
  #path = drawn("path");

  /** @param {number} count of bars @param {string} label for screen readers */
  constructor(count, label) {
    const size = { width: count * WIDTH, height: HEIGHT, viewBox: `0 0 ${count * WIDTH} ${HEIGHT}` };
    this.element = drawn("svg", { ...size, role: "img", "aria-label": label }, this.#path);
  }

  /** Show these values. @param {number[]} values at least 0 each */
  show(values) {
    const most = Math.max(...values, 1);
    const bars = values.map((value, at) => {
      const height = value > 0 ? Math.max(1, (value / most) * HEIGHT) : 0;
      return height ? `M${at * WIDTH} ${HEIGHT}v${-height.toFixed(1)}h${WIDTH - 1}v${height.toFixed(1)}z` : "";
    });
    const d = bars.join("");
    if (this.#path.getAttribute("d") !== d) this.#path.setAttribute("d", d);
  }
}
