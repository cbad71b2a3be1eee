/**
 * The view Channels: the tree of channels with rates, numbers of subscribers, and last events.
 *
 * The numbers are those of `/halley/topics`, which has no data, because reading data is a separate right. For the data
 * the page subscribes to `/**` itself while the view is shown, and reads earlier events from the history.
 */

import { matches } from "../client/patterns.js";
import { ChannelDetail } from "./channel-detail.js";
import { ChannelRows } from "./channel-rows.js";
import { ChannelTree } from "./channel-tree.js";
import { Clock } from "./clock.js";
import { ColumnOrder } from "./column-order.js";
import { element, notify, write } from "./element.js";
import { LastData } from "./last-data.js";
import { whole } from "./numbers.js";
import { Recorded } from "./recorded.js";
import { Redraw } from "./redraw.js";
import { refusal } from "./refusals.js";
import { list, number, object, text, time } from "./shape.js";

const TICKS = "/halley/topics";
const ALL = "/**";
const CHANNEL_CHARS = 4_096; // more than any channel has
/** @param {unknown} value @returns {value is string} */
const channel = (value) => text(value) && value.startsWith("/") && value.length <= CHANNEL_CHARS;
const TOPIC = object({ channel, published: number, per_s: number, subscribers: number, last: time });
const TICK = object({ time, topics: list(TOPIC), others: number });
/** @typedef {import("./shape.js").Of<typeof TICK>} Tick */
const ROWS = 1_000;

export class Channels {
  #root;
  #feed;
  #tree = new ChannelTree();
  #clock = new Clock();
  #rows;
  #lastData;
  #detail;
  #order;
  #filter;
  #refused = new Map(); // pattern -> the server's error
  #hasTick = false;
  #redraw = new Redraw(() => this.#draw());

  constructor(root, /** @type {import("./console.js").Services} */ { bayeux, feed, identity, subscriptions }) {
    this.#root = root;
    this.#feed = feed;
    this.#filter = root.querySelector("#channels-filter");
    this.#order = new ColumnOrder(root.querySelector("table"), () => this.#draw());
    this.#rows = new ChannelRows(root.querySelector("tbody"), {
      chosen: (node) => this.#choose(node),
      toggled: (node, isOpen) => this.#toggle(node, isOpen),
      scrolled: () => this.#redraw.soon(),
    });
    this.#lastData = new LastData(new Recorded(bayeux, identity), () => this.#redraw.soon());
    this.#detail = new ChannelDetail(root.querySelector(".aside"), this.#lastData, (pattern) => {
      subscriptions.subscribe(pattern);
      location.hash = "#overview";
    });
    this.#filter.addEventListener("input", () => this.#draw());
    root.querySelector("#channels-open").addEventListener("click", () => this.#openAll(true));
    root.querySelector("#channels-close").addEventListener("click", () => this.#openAll(false));
  }

  /** @param {URLSearchParams} params `channel` is the one to select */
  show(params) {
    this.#refused.clear();
    this.#lastData.clear();
    this.#feed.subscribe(TICKS, this);
    this.#feed.subscribe(ALL, this);
    this.#redraw.start();
    const wanted = this.#tree.find(params.get("channel") ?? "");
    if (wanted?.parent) this.#choose(wanted);
  }

  hide() {
    this.#lastData.clear();
    this.#redraw.stop();
    this.#feed.unsubscribeAll(this);
  }

  /** Called by `Feed`. */
  received({ channel, data }) {
    if (channel === TICKS) {
      if (!TICK(data)) return;
      this.#clock.set(data.time);
      this.#tree.update(data);
      this.#hasTick = true;
    } else {
      this.#tree.addEvent(channel, data, this.#clock.now);
    }
    this.#redraw.soon();
  }

  /** Called by `Feed`. */
  refused(pattern, error) {
    this.#refused.set(pattern, error);
    this.#draw();
  }

  #choose(node) {
    if (this.#filter.value === "") this.#tree.reveal(node);
    this.#detail.show(node);
    this.#draw();
    this.#rows.scrollTo(node);
  }

  #toggle(node, isOpen) {
    if (this.#filter.value !== "") return; // it decides what is open
    node.isOpen = isOpen;
    this.#draw();
  }

  #openAll(isOpen) {
    this.#tree.openAll(isOpen);
    this.#draw();
  }

  #draw() {
    const shown = this.#tree.visible(this.#order.by, this.#order.sign, fitting(this.#filter.value.trim()));
    this.#rows.draw(shown.slice(0, ROWS), this.#detail.node, this.#clock);
    for (const node of this.#rows.inSight) this.#lastData.want(node);
    this.#detail.draw(this.#clock);
    this.#drawCounts(shown.length);
    this.#drawTroubles(shown.length);
  }

  #drawCounts(rows) {
    const { size, unknown } = this.#tree;
    const parts = [`${whole(size)} channels`];
    if (unknown > 0) parts.push(`${whole(unknown)} others, published to less recently`);
    if (rows > ROWS) parts.push(`the first ${whole(ROWS)} of ${whole(rows)} rows shown: filter to see others`);
    write(this.#root.querySelector("#channels-counts"), parts.join(", "));
  }

  /** Say that no channel matches. If the server has others, they may be found in the history. */
  #drawNoMatch(empty) {
    const { size, unknown } = this.#tree;
    const wanted = this.#filter.value.trim();
    let text = "No channel matches the filter.";
    let links = [];
    if (unknown > 0) {
      links = wanted.startsWith("/") ? pastOf(wanted) : [];
      const hint = links.length > 0 ? "See the history of " : "A whole channel or a pattern can be looked up in the history.";
      text = `None of the ${whole(size)} channels listed matches; ${whole(unknown)} others are not listed. ${hint}`;
    }
    const made = element("p", {}, text, ...links.flatMap((link, index) => (index > 0 ? [" or ", link] : [link])));
    if (empty.textContent !== made.textContent) empty.replaceChildren(...made.childNodes);
  }

  #drawTroubles(rows) {
    const ticks = this.#refused.get(TICKS);
    const all = this.#refused.get(ALL);
    const numbers = ticks ? refusal(ticks, "subscribe to /halley/**", "see the channels' numbers") : "";
    const data = all ? refusal(all, `subscribe to ${ALL}`, "see new data; last data is from the history now") : "";
    notify(this.#root.querySelector(".notice"), [numbers, data].filter(Boolean).join(" "));
    const empty = this.#root.querySelector(".empty");
    empty.hidden = rows > 0;
    if (this.#tree.size > 0) this.#drawNoMatch(empty);
    else if (ticks) write(empty, "Nothing to show.");
    else write(empty, this.#hasTick ? "Nothing has been published yet." : "Waiting for data from the server\u2026");
  }
}

/** Links to the history of a pattern; or of a channel, and of those below it. */
function pastOf(wanted) {
  const name = wanted.replace(/\/+$/, "");
  const channels = isPattern(name) ? [name] : [name, `${name}/**`];
  return channels.map((channel) => element("a", { href: `#history?${new URLSearchParams({ channel })}`, textContent: channel }));
}

function isPattern(text) {
  return text.startsWith("/") && /\/\*\*?$/.test(text);
}

/** A function that returns whether a channel matches the pattern or contains the text; null for an empty filter. */
function fitting(text) {
  if (text === "") return null;
  if (isPattern(text)) return (name) => matches(text, name);
  const wanted = text.toLowerCase();
  return (name) => name.toLowerCase().includes(wanted);
}
