/**
 * The view History: recorded events by channel and time, page by page, and replay from any of them.
 */

import { element } from "./element.js";
import { read } from "./history-pages.js";
import { historyRow } from "./history-row.js";
import { whole } from "./numbers.js";
import { isDenied, refusal } from "./refusals.js";

/** @type {import("./history-pages.js").Page} */
const NO_PAGE = { events: [], next: null, previous: null, gaps: [] };
const MINUTE_MS = 60_000;
const OFF = "A server records events unless it is started with --history off or its setting history.enabled is false.";

export class History {
  #identity;
  #subscriptions;
  #form;
  #list;
  #empty;
  #status;
  #older;
  #newer;
  /** Ends the request under way. @type {AbortController | null} */
  #reading = null;
  /** The latest request; `token` is null if it was not completed. */
  #asked = { channel: "", isReverse: false, token: /** @type {string | null} */ (null) };
  #page = NO_PAGE;

  constructor(root, /** @type {import("./console.js").Services} */ { identity, subscriptions }) {
    this.#identity = identity;
    this.#subscriptions = subscriptions;
    this.#form = root.querySelector("form");
    this.#list = root.querySelector("ol");
    this.#empty = root.querySelector(".empty");
    this.#status = root.querySelector("[role=status]");
    this.#older = root.querySelector("#history-older");
    this.#newer = root.querySelector("#history-newer");
    root.querySelector("#history-zone").textContent = zone();
    this.#form.addEventListener("submit", (submit) => {
      submit.preventDefault();
      this.#read();
    });
    for (const button of root.querySelectorAll("[data-minutes]")) {
      button.addEventListener("click", () => this.#choose(Number(button.dataset.minutes)));
    }
    this.#older.addEventListener("click", () => this.#turn(this.#asked.isReverse ? "next" : "previous"));
    this.#newer.addEventListener("click", () => this.#turn(this.#asked.isReverse ? "previous" : "next"));
  }

  /** @param {URLSearchParams} [params] `channel` is the one whose history to show */
  show(params) {
    const channel = params?.get("channel");
    if (channel) {
      this.#form.elements.channel.value = channel;
      this.#setRange(null);
    }
    if (channel || this.#asked.token !== this.#identity.token) this.#read();
  }

  hide() {
    this.#reading?.abort();
  }

  /** Show the last `minutes` minutes, or everything for 0. */
  #choose(minutes) {
    this.#setRange(minutes ? new Date(Date.now() - minutes * MINUTE_MS) : null);
    this.#read();
  }

  #setRange(from) {
    this.#form.elements.from.value = from ? localInput(from) : "";
    this.#form.elements.until.value = "";
  }

  /** Read the first page for the form's fields. */
  #read() {
    const { channel, from, until, order, limit } = this.#form.elements;
    const query = new URLSearchParams({ limit: limit.value });
    if (order.value === "newest") query.set("reverse", "true");
    if (from.value) query.set("from_time", new Date(from.value).toISOString());
    if (until.value) query.set("until_time", new Date(until.value).toISOString());
    const name = channel.value.trim();
    this.#asked = { channel: name, isReverse: order.value === "newest", token: this.#identity.token };
    this.#page = NO_PAGE;
    this.#load(`?${query}`, "next");
  }

  /** Read the next or the previous page; from an empty page the search continues. */
  #turn(towards) {
    if (this.#page[towards]) this.#load(this.#page[towards], towards);
  }

  async #load(query, towards) {
    this.#reading?.abort();
    const reading = (this.#reading = new AbortController());
    this.#showLinks(NO_PAGE);
    this.#say("Reading …");
    try {
      const options = { headers: this.#identity.headers, signal: reading.signal, towards, isToBeShown: true };
      this.#page = await read(this.#asked.channel, query, options);
      this.#show(towards);
    } catch (error) {
      if (reading.signal.aborted) {
        if (this.#reading === reading) this.#asked.token = null; // hidden meanwhile: read again when shown
        return;
      }
      this.#list.replaceChildren();
      this.#empty.hidden = true;
      this.#say(failure(error, this.#asked.channel), "bad");
      this.#showLinks(this.#page);
    }
  }

  #show(towards) {
    const { events, gaps } = this.#page;
    const rows = events.map((event) => historyRow(event, () => this.#replay(event.position)));
    const lost = gaps.map(([first, last]) =>
      element("li", { className: "gap", textContent: `Positions ${first} to ${last} were lost to damage on disk.` }),
    );
    this.#list.replaceChildren(...lost, ...rows);
    this.#list.parentElement.scrollTop = 0;
    const goesOn = events.length === 0 && this.#page[towards] !== null;
    this.#empty.hidden = events.length > 0;
    this.#empty.textContent = goesOn
      ? "Nothing found so far, and the search is not finished. Continue it with Older or Newer."
      : `Nothing is recorded for ${this.#asked.channel} in that time.`;
    this.#showLinks(this.#page);
    this.#say(summary(events));
  }

  #showLinks(page) {
    const links = this.#asked.isReverse ? [page.next, page.previous] : [page.previous, page.next];
    for (const [index, button] of [this.#older, this.#newer].entries()) {
      // Not `disabled`, since a disabled button loses the focus, which keyboard users need.
      button.setAttribute("aria-disabled", String(!links[index]));
    }
  }

  /** Replay to the Overview's list, from a position on. */
  async #replay(position) {
    const { channel } = this.#asked;
    try {
      const { events } = await read(channel, "?reverse=true&limit=1", { headers: this.#identity.headers });
      this.#subscriptions.replay(channel, position, Math.max(position, events[0]?.position ?? 0));
      location.hash = "#overview";
    } catch (error) {
      this.#say(failure(error, channel), "bad");
    }
  }

  #say(text, className = "") {
    this.#status.textContent = text;
    this.#status.className = `fine ${className}`;
  }
}

function failure(error, channel) {
  if (isDenied(error)) return refusal(error, `subscribe to ${channel}`, "read its history");
  return error.status === 404 ? `${error.message}. ${OFF}` : error.message;
}

function summary(events) {
  if (events.length === 0) return "No events";
  const positions = events.map(({ position }) => position);
  const [low, high] = [Math.min(...positions), Math.max(...positions)].map(whole);
  if (events.length === 1) return `1 event, position ${low}`;
  return `${whole(events.length)} events, positions ${low} to ${high}`;
}

/** A time as the value of an input of the type `datetime-local`. */
function localInput(time) {
  const local = new Date(time.getTime() - time.getTimezoneOffset() * MINUTE_MS);
  return local.toISOString().slice(0, "2026-01-01T00:00:00".length);
}

/** A sentence that names the reader's time zone. */
function zone() {
  const parts = new Intl.DateTimeFormat("en", { timeZoneName: "longOffset" }).formatToParts(new Date());
  const offset = parts.find(({ type }) => type === "timeZoneName")?.value.replace("GMT", "UTC");
  return `Times are local: ${Intl.DateTimeFormat().resolvedOptions().timeZone} (${offset}).`;
}
