/**
 * One channel or branch: its numbers, its last event in full, and what to do with it.
 */

import { perSecond, whole } from "./channel-rows.js";
import { element, write } from "./element.js";

const DATA_CHARS = 20_000;

export class ChannelDetail {
  #root;
  #recorded;
  #node = null;
  #eventShown = null;
  #complaint = ""; // why there is no data

  /**
   * @param {HTMLElement} root
   * @param {import("./recorded.js").Recorded} recorded where the last event is looked up that nobody has heard yet
   * @param {(pattern: string) => void} tail
   */
  constructor(root, recorded, tail) {
    this.#root = root;
    this.#recorded = recorded;
    root.querySelector(".tail").addEventListener("click", () => tail(patternOf(this.#node)));
  }

  /** What is shown, or null. */
  get node() {
    return this.#node;
  }

  /** Show another one. */
  show(node) {
    this.#node = node;
    this.#complaint = "";
    const pattern = patternOf(node);
    write(this.#part("h2"), node.name);
    write(this.#part(".tail"), `Tail ${pattern.endsWith("/**") ? "branch" : "channel"}`);
    this.#part(".tail").title = `Hear ${pattern} in the overview`;
    this.#part(".past").href = `#history?${new URLSearchParams({ channel: pattern })}`;
    if (node.own && !node.event) this.#lookUp(node);
  }

  /** Tell the newest of it; `clock` tells times. */
  draw(clock) {
    const node = this.#node;
    this.#part(".chosen").hidden = node === null;
    this.#part(".unchosen").hidden = node !== null;
    if (node === null) return;
    this.#drawNumbers(node);
    this.#drawData(node, clock);
  }

  #drawNumbers({ own, sum, children }) {
    const below = sum.channels - (own ? 1 : 0);
    const isBranch = children.size > 0;
    const numbers = [
      ["Rate", sum.perS === null ? "" : `${perSecond(sum.perS)} per second`],
      ["Published", own && whole(own.published)],
      ["Subscribers", own && whole(own.subscribers)],
      ["Channels below", isBranch && whole(below)],
      ["With those below", isBranch && `${whole(sum.published)} published`],
      ["Last event", new Date(sum.lastMs).toISOString()],
    ].filter(([, value]) => value);
    const list = this.#part("dl");
    while (list.childElementCount > numbers.length) list.lastElementChild.remove();
    while (list.childElementCount < numbers.length) list.append(element("div", {}, element("dt"), element("dd")));
    for (const [index, [name, value]] of numbers.entries()) {
      write(list.children[index].firstElementChild, name);
      write(list.children[index].lastElementChild, value);
    }
  }

  #drawData({ own, event }, clock) {
    const isPlain = own === null ? "This is a branch: choose a channel below it to read its last event." : "";
    write(this.#part(".when"), event ? `Last data, ${clock.ago(event.atMs)}` : "Last data");
    write(this.#part(".why"), event ? "" : isPlain || this.#complaint);
    const data = this.#part("pre");
    data.hidden = !event;
    if (!event || event === this.#eventShown) return;
    this.#eventShown = event;
    const text = JSON.stringify(event.data, null, 2);
    const rest = text.length - DATA_CHARS;
    write(data, rest > 0 ? `${text.slice(0, DATA_CHARS)}\n\u2026 and ${whole(rest)} more characters` : text);
  }

  async #lookUp(node) {
    try {
      const [newest] = await this.#recorded.newest(node.name, 1);
      if (newest && !node.event) node.event = { data: newest.data, atMs: Date.parse(newest.time) };
      if (node === this.#node) this.#complaint = newest ? "" : "Nothing heard since this view is open, nothing recorded.";
    } catch (error) {
      if (node === this.#node) this.#complaint = `Nothing heard since this view is open, and ${error.message}.`;
    }
  }

  #part(selector) {
    return this.#root.querySelector(selector);
  }
}

/** What hears a node: a branch's channels are heard with it. */
function patternOf(node) {
  return node.children.size > 0 ? `${node.name}/**` : node.name;
}
