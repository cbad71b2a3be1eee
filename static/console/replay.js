/**
 * A replay under way: from one event in the history to the newest that was there when it was asked for.
 *
 * It is told by events alone. What was on its way when the replay was asked for comes before its first event; from that
 * one on each event comes once, in order.
 */

import { matches } from "./feed.js";

export class Replay {
  /** Whether it has reached what was the present. */
  isOver = false;
  #pattern;
  #from;
  #until;
  #hasBegun = false;

  /** @param {string} pattern @param {number} from the first position @param {number} until the last one */
  constructor(pattern, from, until) {
    this.#pattern = pattern;
    this.#from = from;
    this.#until = until;
  }

  /** What is to be said before and after an event; empty where there is nothing to say. */
  see({ channel, ext }) {
    const position = ext?.replay;
    const said = { before: "", after: "" };
    if (position === undefined || this.isOver || !matches(this.#pattern, channel)) return said;
    if (position === this.#from && !this.#hasBegun) {
      this.#hasBegun = true;
      said.before = `Replay of ${this.#pattern} from position ${this.#from} on`;
    }
    if (this.#hasBegun && position >= this.#until) {
      this.isOver = true;
      said.after = `The replay of ${this.#pattern} has reached the present, at position ${position}`;
    }
    return said;
  }
}
