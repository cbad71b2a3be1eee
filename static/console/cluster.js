/**
 * The view Cluster: the nodes, how far each has applied the stream, NATS, and what is wrong (`cluster-troubles.js`).
 *
 * Its link is shown only if the server is a node of a cluster, which the response with the rights says.
 */

import { troubles } from "./cluster-troubles.js";
import { element, figure, notify, write } from "./element.js";
import { short, whole } from "./numbers.js";
import { Redraw } from "./redraw.js";
import { refusal } from "./refusals.js";
import { arrange } from "./rows.js";
import { flag, list, number, object, optional, text, time } from "./shape.js";

const TICKS = "/halley/cluster";
const SILENT_MS = 5_000; // without a tick; ticks come each second
const NODE = object({
  node: text,
  version: optional(text),
  sequence: optional(number),
  behind: optional(number),
  offset: optional(number),
  sessions: optional(number),
  keeps: optional(flag),
  refusal: optional(text),
});
const KEEPER = object({ node: text, away_s: number, is_left_behind: flag });
const STREAM = object({ last: number, messages: number, bytes: number, max_bytes: number, leader: optional(text) });
const TICK = object({
  time,
  node: text,
  space: text,
  settled_by: text,
  nodes: list(NODE),
  stream: optional(STREAM),
  keepers: optional(list(KEEPER)),
  nats: object({ server: text, version: text, away_s: number }),
  differs: list(object({ what: text, nodes: list(list(text)) })),
  nt4: optional(text),
});

/** @typedef {import("./shape.js").Of<typeof TICK>} Tick */

/** The current figures. @type {[label: string, read: (tick: Tick) => string][]} */
const NOW = [
  ["This node", ({ node }) => node],
  ["Space", ({ space }) => space],
  ["Settled by", ({ settled_by: settledBy }) => settledBy],
  ["NATS server", ({ nats }) => nats.server || `away for ${Math.round(nats.away_s)} s`],
  ["Stream's leader", ({ stream }) => (stream ? (stream.leader ?? "–") : "–")],
  ["Last message", ({ stream }) => whole(stream?.last)],
  ["Stream, MiB", ({ stream }) => (stream ? short(stream.bytes / 2 ** 20) : "–")],
  ["NetworkTables at", ({ nt4 }) => nt4 ?? "–"],
  ["of at most, MiB", ({ stream }) => (stream ? short(stream.max_bytes / 2 ** 20) : "–")],
];

export class Cluster {
  #root;
  #feed;
  #numbers = []; // [the element that shows it, the function that reads it]
  #rows = new Map(); // node -> its row
  /** @type {Tick | null} */
  #tick = null;
  #tickedAt = 0;
  #refusal = "";
  #redraw = new Redraw(() => this.#draw());

  /** `link` leads to this view. */
  constructor(root, /** @type {import("./console.js").Services} */ { feed, identity }, link) {
    this.#root = root;
    this.#feed = feed;
    const figures = root.querySelector("dl");
    for (const [label, read] of NOW) {
      const value = element("dd", { textContent: "–" });
      figures.append(figure(label, value));
      this.#numbers.push([value, read]);
    }
    identity.addEventListener("rights", () => (link.hidden = identity.node === ""));
  }

  show() {
    this.#refusal = "";
    this.#tick = null; // it would be outdated
    this.#feed.subscribe(TICKS, this);
    this.#redraw.start();
  }

  hide() {
    this.#redraw.stop();
    this.#feed.unsubscribeAll(this);
  }

  /** Called by `Feed`. */
  received({ data }) {
    if (!TICK(data)) return;
    this.#tick = data;
    this.#tickedAt = performance.now();
    this.#redraw.soon();
  }

  /** Called by `Feed`. */
  refused(_, error) {
    this.#refusal = refusal(error, "subscribe to /halley/**", "see the cluster");
    this.#tick = null;
    this.#draw();
  }

  #draw() {
    const tick = this.#tick;
    const isSilent = tick !== null && performance.now() - this.#tickedAt > SILENT_MS;
    this.#root.classList.toggle("is-away", isSilent);
    for (const [value, read] of this.#numbers) write(value, tick ? read(tick) : "–");
    const names = tick?.nodes.map(({ node }) => node) ?? [];
    for (const name of this.#rows.keys()) if (!names.includes(name)) this.#rows.delete(name);
    arrange(this.#root.querySelector("tbody"), tick?.nodes.map((node) => this.#row(node, tick.differs)) ?? []);
    const empty = this.#root.querySelector(".empty");
    empty.hidden = tick !== null;
    write(empty, this.#refusal ? "Nothing to show." : "Waiting for data. A server that is not a node of a cluster sends none.");
    notify(this.#root.querySelector(".notice"), this.#refusal || (tick ? troubles(tick).join(" ") : ""));
  }

  #row(node, differs) {
    let row = this.#rows.get(node.node);
    if (!row) {
      row = fresh(node.node);
      this.#rows.set(node.node, row);
    }
    const [, version, applied, behind, events, sessions, kind, other] = row.children;
    write(version, node.version ?? "–");
    write(kind, (node.keeps ?? true) ? "keeper" : "front");
    for (const [cell, count] of [[applied, node.sequence], [behind, node.behind], [events, node.offset], [sessions, node.sessions]]) {
      write(cell, whole(count));
    }
    behind.classList.toggle("troubled", (node.behind ?? 0) > 0);
    const strange = differs.filter(({ nodes }) => !most(nodes).includes(node.node)).map(({ what }) => what);
    write(other, strange.join(", ") || "nothing");
    other.classList.toggle("troubled", strange.length > 0);
    return row;
  }
}

function fresh(name) {
  const cells = Array.from({ length: 7 }, (_, index) => element("td", { className: index > 0 && index < 5 ? "numbers" : "" }));
  return element("tr", {}, element("th", { scope: "row", textContent: name }), ...cells);
}

/** The nodes that are alike and more than any others that are; none if no group is the largest. */
function most([first = [], second = []]) {
  return first.length > second.length ? first : [];
}
