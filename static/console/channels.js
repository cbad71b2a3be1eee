/**
 * The view Channels: the tree of channels with rates, numbers of subscribers, and last events.
 *
 * The numbers are those of `/halley/topics`, which has no data, because reading data is a separate right. For the data
 * the page subscribes to `/**` itself while the view is shown, and reads earlier events from the history.
 */

import { ChannelDetail } from "./channel-detail.js";
import { ChannelRows, whole } from "./channel-rows.js";
import { ChannelTree } from "./channel-tree.js";
import { Clock } from "./clock.js";
import { ColumnOrder } from "./column-order.js";
import { element, write } from "./element.js";
import { matches } from "./feed.js";
import { LastData } from "./last-data.js";
import { Recorded } from "./recorded.js";
import { refusal } from "./refusals.js";
import { list, number, object, text, time } from "./shape.js";

const TICKS = "/halley/topics";
const ALL = "/**";
const CHANNEL_CHARS = 4_096; // more than any channel has
const channel = (value) => text(value) && value.startsWith("/") && value.length <= CHANNEL_CHARS;
const TOPIC = object({ channel, published: number, per_s: number, subscribers: number, last: time });
const TICK = object({ time, topics: list(TOPIC), others: number });
const ROWS = 1_000;
const DRAW_EVERY_MS = 250; // so that many events leave the page time to poll
const AGES_EVERY_MS = 1_000;

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
  #isShown = false;
  #isTold = false; // whether a tick was received
  #ages = 0; // this and #due: timers for drawing
  #due = 0;

  /** @param {{ bayeux: object, feed: object, identity: object, subscriptions: object }} services */
  constructor(root, { bayeux, feed, identity, subscriptions }) {
    this.#root = root;
    this.#feed = feed;
    this.#filter = root.querySelector("#channels-filter");
    this.#order = new ColumnOrder(root.querySelector("table"), () => this.#draw());
    this.#rows = new ChannelRows(root.querySelector("tbody"), {
      chosen: (node) => this.#choose(node),
      toggled: (node, isOpen) => this.#toggle(node, isOpen),
      scrolled: () => this.#drawSoon(),
    });
    this.#lastData = new LastData(new Recorded(bayeux, identity), () => this.#drawSoon());
    this.#detail = new ChannelDetail(root.querySelector(".aside"), this.#lastData, (pattern) => {
      subscriptions.hear(pattern);
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
    this.#isShown = true;
    this.#feed.hear(TICKS, this);
    this.#feed.hear(ALL, this);
    clearInterval(this.#ages);
    this.#ages = setInterval(() => this.#draw(), AGES_EVERY_MS);
    this.#draw();
    const wanted = this.#tree.find(params.get("channel") ?? "");
    if (wanted?.parent) this.#choose(wanted);
  }

  hide() {
    this.#isShown = false;
    this.#lastData.clear();
    clearInterval(this.#ages);
    clearTimeout(this.#due);
    this.#due = 0;
    this.#feed.leaveAll(this);
  }

  /** Called by `Feed`. */
  heard({ channel, data }) {
    if (channel === TICKS) {
      if (!TICK(data)) return;
      this.#clock.set(data.time);
      this.#tree.tell(data);
      this.#isTold = true;
    } else {
      this.#tree.heard(channel, data, this.#clock.now);
    }
    this.#drawSoon();
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
    this.#rows.sight(node);
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

  #drawSoon() {
    if (this.#isShown) this.#due ||= setTimeout(() => this.#draw(), DRAW_EVERY_MS);
  }

  #draw() {
    clearTimeout(this.#due);
    this.#due = 0;
    const shown = this.#tree.visible(this.#order.by, this.#order.sign, fitting(this.#filter.value.trim()));
    this.#rows.draw(shown.slice(0, ROWS), this.#detail.node, this.#clock);
    for (const node of this.#rows.inSight) this.#lastData.want(node);
    this.#detail.draw(this.#clock);
    this.#tellCounts(shown.length);
    this.#tellTroubles(shown.length);
  }

  #tellCounts(rows) {
    const { size, unknown } = this.#tree;
    const parts = [`${whole(size)} channels`];
    if (unknown > 0) parts.push(`${whole(unknown)} others, published to less recently`);
    if (rows > ROWS) parts.push(`the first ${whole(ROWS)} of ${whole(rows)} rows shown: filter to see others`);
    write(this.#root.querySelector("#channels-counts"), parts.join(", "));
  }

  /** Say that no channel matches. If the server has others, they may be found in the history. */
  #tellNoMatch(empty) {
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

  #tellTroubles(rows) {
    const ticks = this.#refused.get(TICKS);
    const all = this.#refused.get(ALL);
    const numbers = ticks ? refusal(ticks, "subscribe to /halley/**", "see the channels' numbers") : "";
    const data = all ? refusal(all, `subscribe to ${ALL}`, "see new data; last data is from the history now") : "";
    const notice = this.#root.querySelector(".notice");
    write(notice, [numbers, data].filter(Boolean).join(" "));
    notice.hidden = !numbers && !data;
    const empty = this.#root.querySelector(".empty");
    empty.hidden = rows > 0;
    if (this.#tree.size > 0) this.#tellNoMatch(empty);
    else if (ticks) write(empty, "Nothing to show.");
    else write(empty, this.#isTold ? "Nothing has been published yet." : "Waiting for data from the server\u2026");
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
