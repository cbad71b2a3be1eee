/**
 * Looks up the last events of channels that the page has received no event of, in the history: of those that are in
 * sight or selected, a few at a time, each once.
 */

const AT_ONCE = 2; // browsers open six connections to a host, and one has the held poll

export class LastData {
  #recorded;
  #found;
  #reasons = new WeakMap(); // node -> why it has no event, or an empty string while that is not known
  #wanted = new Set(); // nodes to look up, the first in the order is the next
  #running = 0;

  /**
   * @param {import("./recorded.js").Recorded} recorded
   * @param {() => void} found called when a node has got its event, or a reason
   */
  constructor(recorded, found) {
    this.#recorded = recorded;
    this.#found = found;
  }

  /** Look up a node's event, unless it has one, or was looked up. */
  want(node) {
    if (!node.own || node.event || this.#reasons.has(node)) return;
    this.#reasons.set(node, "");
    this.#wanted.add(node);
    if (this.#running < AT_ONCE) this.#work();
  }

  /** The reason why a node has no event; empty if it is not known. @returns {string} */
  reason(node) {
    return this.#reasons.get(node) ?? "";
  }

  /** Forget the reasons and what is still to be looked up, so that all can be wanted again. */
  clear() {
    this.#reasons = new WeakMap();
    this.#wanted.clear();
  }

  async #work() {
    this.#running += 1;
    for (const node of this.#wanted) {
      this.#wanted.delete(node);
      if (node.event) continue;
      const reason = await this.#find(node);
      if (this.#reasons.has(node)) this.#reasons.set(node, reason);
      this.#found();
    }
    this.#running -= 1;
  }

  /** Give a node its last event; returns the reason if there is none. */
  async #find(node) {
    try {
      const [newest] = await this.#recorded.newest(node.name, 1);
      if (!newest) return "No event received yet, and none is recorded.";
      node.event ??= { data: newest.data, atMs: Date.parse(newest.time) };
      return "";
    } catch (error) {
      return `No event received yet, and ${error.message}.`;
    }
  }
}
