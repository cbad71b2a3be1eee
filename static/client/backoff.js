/**
 * How long a client waits after failures: about 1 s, 2 s ... 60 s. It knows no timers.
 */

const STEP_MS = 1_000;
const MOST_MS = 60_000;

export class Backoff {
  #failures = 0; // since the last success
  #isForgotten = false; // whether one of them was that the server did not know the session

  /** All is well again. */
  reset() {
    this.#failures = 0;
    this.#isForgotten = false;
  }

  /**
   * The pause after one more failure, in ms.
   *
   * A forgotten session may be replaced at once; but only once, or sessions that die as soon as they are made would
   * follow each other as fast as they can.
   *
   * @param {boolean} isForgotten whether the failure was that the server did not know the session
   * @returns {number}
   */
  next(isForgotten) {
    this.#failures += 1;
    const isFirst = isForgotten && !this.#isForgotten;
    this.#isForgotten ||= isForgotten;
    if (isFirst) return 0;
    // Partly by chance, so that a thousand pages do not return in one moment.
    return Math.min(MOST_MS, this.#failures * STEP_MS) * (0.5 + Math.random() / 2);
  }
}
