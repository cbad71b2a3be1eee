/**
 * The pauses between a client's attempts after failures: about 1 s, 2 s ... 60 s. It uses no timers itself.
 */

const STEP_MS = 1_000;
const MOST_MS = 60_000;

export class Backoff {
  #failures = 0; // since the last success
  #isForgotten = false; // whether in one of them the server did not know the session

  /** Start from the shortest pause again, after a success. */
  reset() {
    this.#failures = 0;
    this.#isForgotten = false;
  }

  /**
   * Count one more failure, and return the pause after it in ms.
   *
   * A forgotten session is replaced without a pause, but only once until `reset`. Otherwise a server that forgets
   * sessions as soon as they are made would be asked for new ones without end.
   *
   * @param {boolean} isForgotten whether the failure was that the server did not know the session
   * @returns {number}
   */
  next(isForgotten) {
    this.#failures += 1;
    const isFirst = isForgotten && !this.#isForgotten;
    this.#isForgotten ||= isForgotten;
    if (isFirst) return 0;
    // Partly random, so that a thousand pages do not reconnect at the same moment.
    return Math.min(MOST_MS, this.#failures * STEP_MS) * (0.5 + Math.random() / 2);
  }
}
