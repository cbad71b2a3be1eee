/**
 * All channels that the page knows, as a tree: figures from the server's ticks, and the last events that were received.
 *
 * A node is a channel, a branch with channels below it, or both:
 *
 *     { name: "/a/b", label: "b", parent, children: Map, isOpen,
 *       own: null or { published, perS, subscribers, lastMs, isListed },   of the channel; isListed: in the last tick
 *       sum: { channels, published, perS, lastMs },                      including all channels below it
 *       event: null or { data, atMs } }
 */

const CHANNELS = 5_000;
const OPEN_NODES = 300; // the number of nodes that are open initially; more would make the tree hard to read

const NAMES = new Intl.Collator("en", { numeric: true });

export class ChannelTree {
  root = branch(null, "");
  #channels = new Map(); // name -> node, the least recently updated first
  #onServer = 0;
  #nodes = 0;
  #tickedMs = 0;

  /** The number of known channels. */
  get size() {
    return this.#channels.size;
  }

  /** The number of further channels that the server has, at least. */
  get unknown() {
    return Math.max(0, this.#onServer - this.size);
  }

  /** The node of a channel or branch, or null. @param {string} name */
  find(name) {
    let node = this.root;
    for (const label of name.split("/").slice(1)) node = node?.children.get(label);
    return node ?? null;
  }

  /** Take a tick of `/halley/topics`. @param {import("./channels.js").Tick} tick */
  update({ time, topics, others }) {
    for (const { own } of this.#channels.values()) if (own.isListed) own.isListed = false;
    let oldestMs = Infinity;
    for (const { channel, published, per_s: perS, subscribers, last } of topics.toReversed()) {
      const lastMs = Date.parse(last);
      this.#channel(channel).own = { published, perS, subscribers, lastMs, isListed: true };
      oldestMs = Math.min(oldestMs, lastMs);
    }
    // A tick lists the channels published to last. If one of them had no event since the last tick, no omitted one had.
    const areSilent = others === 0 || oldestMs < this.#tickedMs;
    for (const { own } of this.#channels.values()) if (areSilent && !own.isListed && own.perS !== null) own.perS = 0;
    this.#onServer = topics.length + others;
    this.#tickedMs = Date.parse(time);
  }

  /** Take an event that the page has received. */
  addEvent(channel, data, atMs) {
    const node = this.#channel(channel);
    node.own ??= { published: null, perS: null, subscribers: null, lastMs: atMs, isListed: false };
    node.own.lastMs = Math.max(node.own.lastMs, atMs);
    node.event = { data, atMs };
  }

  /** Open or close all branches. */
  openAll(isOpen) {
    for (const node of below(this.root)) node.isOpen = isOpen;
  }

  /** Open all ancestors of a node. */
  reveal(node) {
    for (let above = node.parent; above; above = above.parent) above.isOpen = true;
  }

  /**
   * The nodes to show, from top to bottom: those in open branches or, with a filter, matching ones and their ancestors.
   *
   * @param {"name" | "rate" | "latest"} by
   * @param {1 | -1} sign
   * @param {((name: string) => boolean) | null} fits
   */
  visible(by, sign, fits) {
    sumUp(this.root);
    const fitting = fits && this.#withAbove(fits);
    const shown = [];
    const walk = (node, level) => {
      for (const child of sorted(node, by, sign)) {
        if (fitting && !fitting.has(child)) continue;
        const isOpen = fitting ? [...child.children.values()].some((each) => fitting.has(each)) : child.isOpen;
        shown.push({ node: child, level, isOpen });
        if (isOpen) walk(child, level + 1);
      }
    };
    walk(this.root, 1);
    return shown;
  }

  #withAbove(fits) {
    const fitting = new Set();
    for (const [name, channel] of this.#channels) {
      if (!fits(name)) continue;
      for (let node = channel; node && !fitting.has(node); node = node.parent) fitting.add(node);
    }
    return fitting;
  }

  /** The node of a channel; it is added if it is not known, and counts as the most recently updated one. */
  #channel(name) {
    const node = this.#channels.get(name) ?? this.#grow(name);
    this.#channels.delete(name);
    this.#channels.set(name, node);
    if (this.#channels.size > CHANNELS) this.#forget(this.#channels.values().next().value);
    return node;
  }

  #grow(name) {
    let node = this.root;
    for (const label of name.split("/").slice(1)) {
      if (!node.children.has(label)) {
        node.children.set(label, branch(node, label, this.#nodes < OPEN_NODES));
        node.byName = null;
        this.#nodes += 1;
      }
      node = node.children.get(label);
    }
    return node;
  }

  #forget(node) {
    this.#channels.delete(node.name);
    Object.assign(node, { own: null, event: null });
    for (let each = node; each.parent && !each.own && each.children.size === 0; each = each.parent) {
      each.parent.children.delete(each.label);
      each.parent.byName = null;
      this.#nodes -= 1;
    }
  }
}

function branch(parent, label, isOpen = true) {
  const name = parent === null ? "" : `${parent.name}/${label}`;
  const sum = { channels: 0, published: null, perS: null, lastMs: 0 };
  return { name, label, parent, children: new Map(), byName: null, isOpen, own: null, sum, event: null };
}

function* below(node) {
  for (const child of node.children.values()) {
    yield child;
    yield* below(child);
  }
}

function sumUp(node) {
  const sum = node.sum;
  const { published = null, perS = null, lastMs = 0 } = node.own ?? {};
  Object.assign(sum, { channels: node.own ? 1 : 0, published, perS, lastMs });
  for (const child of node.children.values()) {
    const part = sumUp(child);
    sum.channels += part.channels;
    if (part.published !== null) sum.published += part.published;
    if (part.perS !== null) sum.perS += part.perS;
    sum.lastMs = Math.max(sum.lastMs, part.lastMs);
  }
  return sum;
}

/** The children of a node, sorted; the order by name is kept, since comparing names is slow. */
function sorted(node, by, sign) {
  node.byName ??= [...node.children.values()].sort((a, b) => NAMES.compare(a.label, b.label));
  if (by === "name") return sign === 1 ? node.byName : node.byName.toReversed();
  const measure = by === "rate" ? "perS" : "lastMs";
  return [...node.byName].sort((a, b) => sign * ((a.sum[measure] ?? -1) - (b.sum[measure] ?? -1)));
}
