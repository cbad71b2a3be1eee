/**
 * The tree of channels as a treegrid, with rows that are navigated by keyboard.
 *
 * Up, Down, Home, End, Page Up and Page Down move the focus; Right opens a branch or moves into it, Left closes it or
 * moves to its parent; Enter and Space select. Only one row is in the Tab order.
 */

import { withBytesCounted } from "./bytes.js";
import { element, write } from "./element.js";
import { perSecond, whole } from "./numbers.js";
import { arrange } from "./rows.js";

const PAGE_ROWS = 10;
const PREVIEW_CHARS = 120;
const NOTHING = "\u2013";

export class ChannelRows {
  #body;
  #chosen;
  #toggled;
  #rows = new Map(); // node -> its row
  #watched; // the IntersectionObserver of all rows
  #inSight = new Set(); // rows
  #shown = []; // { node, level, isOpen }, from top to bottom
  #current = null; // the node whose row is in the Tab order

  /**
   * @param {HTMLTableSectionElement} body
   * @param {{ chosen(node): void, toggled(node, isOpen: boolean): void, scrolled(): void }} callbacks called when the
   *   reader selects, opens or closes a node, and when other nodes are in sight
   */
  constructor(body, { chosen, toggled, scrolled }) {
    this.#body = body;
    this.#chosen = chosen;
    this.#toggled = toggled;
    this.#watched = new IntersectionObserver((rows) => {
      for (const { target, isIntersecting } of rows) this.#inSight[isIntersecting ? "add" : "delete"](target);
      scrolled();
    });
    body.addEventListener("keydown", (event) => this.#pressed(event));
    body.addEventListener("click", (event) => this.#clicked(event));
    body.addEventListener("focusin", ({ target }) => this.#reach(this.#nodeOf(target)));
  }

  /** Show these nodes, `{ node, level, isOpen }` each, with the ages that `clock` gives. */
  draw(shown, selected, clock) {
    const hadFocus = this.#body.contains(document.activeElement);
    this.#shown = shown;
    const nodes = new Set(shown.map(({ node }) => node));
    if (!nodes.has(this.#current)) this.#current = nearest(this.#current, nodes) ?? shown[0]?.node ?? null;
    for (const node of this.#rows.keys()) if (!nodes.has(node)) this.#drop(node);
    for (const each of shown) this.#fill(this.#row(each.node), each, each.node === selected, clock);
    const rows = shown.map(({ node }) => this.#rows.get(node));
    arrange(this.#body, rows);
    if (hadFocus && !this.#body.contains(document.activeElement)) this.#rows.get(this.#current)?.focus();
  }

  /** The nodes whose rows are in sight. */
  get inSight() {
    return [...this.#inSight].map(({ nodeShown }) => nodeShown);
  }

  /** Scroll to a node's row, without moving the focus. */
  scrollTo(node) {
    this.#reach(node);
    this.#rows.get(node)?.scrollIntoView({ block: "nearest" });
  }

  #row(node) {
    const known = this.#rows.get(node);
    if (known) return known;
    const name = element("span", { className: "channel", textContent: node.label });
    const head = element("th", { role: "rowheader", title: node.name }, element("span", { className: "twisty" }), name);
    const row = element("tr", { role: "row" }, head, ...["numbers", "numbers", "numbers", "numbers", ""].map(cell));
    row.nodeShown = node;
    this.#rows.set(node, row);
    this.#watched.observe(row);
    return row;
  }

  #drop(node) {
    const row = this.#rows.get(node);
    this.#rows.delete(node);
    this.#watched.unobserve(row);
    this.#inSight.delete(row);
  }

  #fill(row, { node, level, isOpen }, isSelected, clock) {
    const [head, rate, published, subscribers, last, data] = row.children;
    head.style.setProperty("--level", level);
    set(row, "aria-level", level);
    set(row, "aria-selected", isSelected);
    set(row, "tabindex", node === this.#current ? 0 : -1);
    if (node.children.size > 0) set(row, "aria-expanded", isOpen);
    else row.removeAttribute("aria-expanded");
    row.classList.toggle("is-channel", node.own !== null);
    row.classList.toggle("is-busy", node.sum.perS > 0);
    write(rate, perSecond(node.sum.perS));
    write(published, whole(node.sum.published));
    write(subscribers, node.own ? whole(node.own.subscribers) : "");
    write(last, node.sum.lastMs ? clock.ago(node.sum.lastMs) : NOTHING);
    last.title = node.sum.lastMs ? new Date(node.sum.lastMs).toISOString() : "";
    if (row.eventShown !== node.event) write(data, node.event ? preview(node.event.data) : "");
    row.eventShown = node.event;
  }

  #nodeOf(target) {
    return target.closest("tr")?.nodeShown ?? null;
  }

  #reach(node) {
    if (this.#rows.has(this.#current)) set(this.#rows.get(this.#current), "tabindex", -1);
    this.#current = node;
    if (this.#rows.has(node)) set(this.#rows.get(node), "tabindex", 0);
  }

  #clicked({ target }) {
    const shown = this.#shown.find(({ node }) => node === this.#nodeOf(target));
    if (!shown) return;
    this.#rows.get(shown.node).focus();
    if (target.closest(".twisty") && shown.node.children.size > 0) this.#toggled(shown.node, !shown.isOpen);
    else this.#chosen(shown.node);
  }

  #pressed(event) {
    const at = this.#shown.findIndex(({ node }) => node === this.#nodeOf(event.target));
    const act = at >= 0 && !event.ctrlKey && !event.altKey && !event.metaKey && this.#actOf(event.key, at);
    if (!act) return;
    event.preventDefault();
    act();
  }

  /** The action of a key in the row at index `at`, or undefined. */
  #actOf(key, at) {
    const { node, isOpen } = this.#shown[at];
    const isBranch = node.children.size > 0;
    return {
      ArrowDown: () => this.#go(at + 1),
      ArrowUp: () => this.#go(at - 1),
      PageDown: () => this.#go(at + PAGE_ROWS),
      PageUp: () => this.#go(at - PAGE_ROWS),
      Home: () => this.#go(0),
      End: () => this.#go(this.#shown.length - 1),
      ArrowRight: () => isBranch && (isOpen ? this.#go(at + 1) : this.#toggled(node, true)),
      ArrowLeft: () => (isBranch && isOpen ? this.#toggled(node, false) : this.#rows.get(node.parent)?.focus()),
      Enter: () => this.#chosen(node),
      " ": () => this.#chosen(node),
    }[key];
  }

  #go(index) {
    const { node } = this.#shown[Math.min(Math.max(index, 0), this.#shown.length - 1)];
    this.#rows.get(node).focus();
  }
}

function preview(data) {
  return withBytesCounted(JSON.stringify(data)).slice(0, PREVIEW_CHARS);
}

function cell(className) {
  return element("td", { role: "gridcell", className });
}

function set(row, name, value) {
  if (row.getAttribute(name) !== String(value)) row.setAttribute(name, value);
}

/** The closest ancestor of `node` that is in `nodes`; `node` itself if it is. */
function nearest(node, nodes) {
  while (node && !nodes.has(node)) node = node.parent;
  return node;
}
