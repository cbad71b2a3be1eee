/**
 * A replay in progress: from one event of the history to the newest one at the time of the request.
 *
 * Its beginning and end are recognized by the positions of events. Events that were already being sent when the replay
 * was requested are received before its first event; from then on each event is received once, in order.
 */

import { matches } from "../client/patterns.js";

export class Replay {
  /** Whether it has reached the newest event at the time of the request. */
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

  /** Return the notes to show before and after an event; empty strings if there are none. */
  notesOn({ channel, ext }) {
    const position = ext?.replay;
    const notes = { before: "", after: "" };
    if (position === undefined || this.isOver || !matches(this.#pattern, channel)) return notes;
    if (position === this.#from && !this.#hasBegun) {
      this.#hasBegun = true;
      notes.before = `Replay of ${this.#pattern} from position ${this.#from}`;
    }
    if (this.#hasBegun && position >= this.#until) {
      this.isOver = true;
      notes.after = `The replay of ${this.#pattern} is complete, up to position ${position}`;
    }
    return notes;
  }
}
