/**
 * When a view is drawn: soon after data was received, however much that was, and once a second while it is shown, since
 * ages and missing ticks change without data.
 */

const TICK_MS = 1_000;

export class Redraw {
  #draw;
  #soonMs;
  #tick;
  #ticking = 0; // this and #due: timers
  #due = 0;

  /**
   * @param {() => void} draw
   * @param {number} soonMs so that many events leave the page time to poll
   * @param {() => void} tick called each second, if to draw everything is too much
   */
  constructor(draw, soonMs = 250, tick = draw) {
    this.#draw = draw;
    this.#soonMs = soonMs;
    this.#tick = tick;
  }

  /** Draw now, and each second until `stop`: the view is shown. */
  start() {
    this.stop();
    this.#ticking = setInterval(this.#tick, TICK_MS);
    this.#draw();
  }

  stop() {
    clearInterval(this.#ticking);
    clearTimeout(this.#due);
    this.#ticking = this.#due = 0;
  }

  /** Draw in a moment, together with what is received until then; nothing is drawn while the view is hidden. */
  soon() {
    if (this.#ticking) this.#due ||= setTimeout(() => this.#drawDue(), this.#soonMs);
  }

  #drawDue() {
    this.#due = 0;
    this.#draw();
  }
}
