/**
 * The selected channel or branch: its numbers, its last event in full, and the actions Tail and History.
 */

import { element, figure, write } from "./element.js";
import { perSecond, whole } from "./numbers.js";

const DATA_CHARS = 20_000;

export class ChannelDetail {
  #root;
  #lastData;
  #node = null;
  #eventShown = null;

  /**
   * @param {HTMLElement} root
   * @param {import("./last-data.js").LastData} lastData
   * @param {(pattern: string) => void} tail called with the pattern to subscribe to
   */
  constructor(root, lastData, tail) {
    this.#root = root;
    this.#lastData = lastData;
    this.#part(".tail").addEventListener("click", () => tail(patternOf(this.#node)));
  }

  /** The node that is shown, or null. */
  get node() {
    return this.#node;
  }

  /** Show another node. */
  show(node) {
    this.#node = node;
    const pattern = patternOf(node);
    write(this.#part("h2"), node.name);
    write(this.#part(".tail"), `Tail ${pattern.endsWith("/**") ? "branch" : "channel"}`);
    this.#part(".tail").title = `Subscribe to ${pattern} in the overview`;
    this.#part(".past").href = `#history?${new URLSearchParams({ channel: pattern })}`;
    this.#lastData.want(node);
  }

  /** Update the numbers and the last event. @param {import("./clock.js").Clock} clock */
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
      ["Including those below", isBranch && `${whole(sum.published)} published`],
      ["Last event", new Date(sum.lastMs).toISOString()],
    ].filter(([, value]) => value);
    const list = this.#part("dl");
    while (list.childElementCount > numbers.length) list.lastElementChild.remove();
    while (list.childElementCount < numbers.length) list.append(figure("", element("dd")));
    for (const [index, [name, value]] of numbers.entries()) {
      write(list.children[index].firstElementChild, name);
      write(list.children[index].lastElementChild, value);
    }
  }

  #drawData({ own, event }, clock) {
    const isPlain = own === null ? "This is a branch: select a channel below it to see its last event." : "";
    write(this.#part(".when"), event ? `Last data, ${clock.ago(event.atMs)}` : "Last data");
    write(this.#part(".why"), event ? "" : isPlain || this.#lastData.reason(this.#node));
    const data = this.#part("pre");
    data.hidden = !event;
    if (!event || event === this.#eventShown) return;
    this.#eventShown = event;
    const text = JSON.stringify(event.data, null, 2);
    const rest = text.length - DATA_CHARS;
    write(data, rest > 0 ? `${text.slice(0, DATA_CHARS)}\n\u2026 and ${whole(rest)} more characters` : text);
  }

  #part(selector) {
    return this.#root.querySelector(selector);
  }
}

/** The pattern that matches a node: for a branch, all channels below it. */
function patternOf(node) {
  return node.children.size > 0 ? `${node.name}/**` : node.name;
}
