/**
 * The view Sessions: the protocol, queue and age of each session, and the latest changes.
 */

import { Clock } from "./clock.js";
import { ColumnOrder } from "./column-order.js";
import { Comings } from "./comings.js";
import { write } from "./element.js";
import { Recorded } from "./recorded.js";
import { refusal } from "./refusals.js";
import { SessionRows } from "./session-rows.js";
import { list, number, object, optional, text, time } from "./shape.js";

const TICKS = "/halley/queues";
const SESSIONS = "/halley/sessions";
const SUBSCRIPTIONS = "/halley/subscriptions";
const HEARD = [TICKS, SESSIONS, SUBSCRIPTIONS];
const WHO = { session: text, protocol: text, authid: optional(text), role: optional(text), address: optional(text) };
const QUEUE = { age_s: number, queued: number, queued_bytes: number, subscribed: number, subscriptions: list(text) };
const TICK = object({ time, sessions: list(object({ ...WHO, ...QUEUE })), others: number });
const COMING = object({ ...WHO, event: text, reason: optional(text), channels: optional(list(text)) });
const PAST_EVENTS = 50; // fetched from the history
const DRAW_EVERY_MS = 250; // so that many events leave the page time to poll
const AGES_EVERY_MS = 1_000;

export class Sessions {
  #root;
  #bayeux;
  #feed;
  #recorded;
  #clock = new Clock();
  #rows;
  #comings;
  #order;
  #text;
  #protocol;
  #tick = null; // the latest tick
  #tickedAt = 0;
  #refused = new Map(); // pattern -> the server's error
  #past = ""; // the reason why the history could not be read
  #ages = 0; // this and #due: timers for drawing
  #due = 0;

  /** @param {{ bayeux: object, feed: object, identity: object }} services */
  constructor(root, { bayeux, feed, identity }) {
    this.#root = root;
    this.#bayeux = bayeux;
    this.#feed = feed;
    this.#recorded = new Recorded(bayeux, identity);
    this.#rows = new SessionRows(root.querySelector("tbody"));
    this.#comings = new Comings(root.querySelector("ol"));
    this.#order = new ColumnOrder(root.querySelector("table"), () => this.#draw());
    this.#text = root.querySelector("#sessions-filter");
    this.#protocol = root.querySelector("#sessions-protocol");
    for (const filter of [this.#text, this.#protocol]) filter.addEventListener("input", () => this.#draw());
  }

  show() {
    this.#refused.clear();
    for (const pattern of HEARD) this.#feed.hear(pattern, this);
    clearInterval(this.#ages);
    this.#ages = setInterval(() => this.#draw(), AGES_EVERY_MS);
    this.#readPast();
    this.#draw();
  }

  hide() {
    clearInterval(this.#ages);
    clearTimeout(this.#due);
    this.#due = 0;
    this.#tick = null; // it will be outdated when the view is shown again
    this.#feed.leaveAll(this);
  }

  /** Called by `Feed`. */
  heard({ channel, data }) {
    if (channel === TICKS) {
      if (!TICK(data)) return;
      this.#clock.set(data.time);
      this.#tick = data;
      this.#tickedAt = performance.now();
    } else if (COMING(data)) {
      this.#comings.tell(data, this.#clock.now);
    }
    this.#due ||= setTimeout(() => this.#draw(), DRAW_EVERY_MS);
  }

  /** Called by `Feed`. */
  refused(pattern, error) {
    this.#refused.set(pattern, error);
    if (pattern === TICKS) this.#tick = null;
    this.#draw();
  }

  async #readPast() {
    try {
      const past = await this.#recorded.newest(SESSIONS, PAST_EVENTS);
      for (const { data, time } of past) if (COMING(data)) this.#comings.tell(data, Date.parse(time));
      this.#past = "";
    } catch (error) {
      this.#past = `Earlier changes cannot be shown: ${error.message}.`;
    }
    this.#draw();
  }

  #draw() {
    clearTimeout(this.#due);
    this.#due = 0;
    const here = this.#tick?.sessions ?? [];
    const fitting = here.filter((each) => this.#fits(each));
    this.#root.classList.toggle("is-away", this.#bayeux.state !== "connected");
    this.#rows.draw(fitting, this.#order, (performance.now() - this.#tickedAt) / 1_000);
    this.#comings.draw();
    this.#tellCounts(fitting.length);
    this.#tellTroubles(fitting.length);
  }

  #fits({ session, protocol, authid, role, address, subscriptions }) {
    if (this.#protocol.value !== "" && protocol !== this.#protocol.value) return false;
    const wanted = this.#text.value.trim().toLowerCase();
    return [session, authid, role, address, ...subscriptions].some((text) => text?.toLowerCase().includes(wanted));
  }

  #tellCounts(shown) {
    const { sessions = [], others = 0 } = this.#tick ?? {};
    const all = sessions.length + others;
    let text = `${all.toLocaleString("en")} sessions`;
    if (shown < sessions.length) text = `${shown.toLocaleString("en")} of ${text}`;
    if (others > 0) text += `, of which the ${sessions.length.toLocaleString("en")} with the longest queues are listed`;
    write(this.#root.querySelector("#sessions-counts"), this.#tick ? text : "");
  }

  #tellTroubles(shown) {
    const trouble = this.#refused.get(TICKS);
    const notice = this.#root.querySelector(".notice");
    notice.hidden = !trouble;
    write(notice, trouble ? refusal(trouble, "subscribe to /halley/**", "see the sessions") : "");
    const empty = this.#root.querySelector(".empty");
    empty.hidden = shown > 0;
    if (this.#tick) write(empty, noMatch(this.#tick));
    else write(empty, trouble ? "Nothing to show." : "Waiting for data from the server\u2026");
    const unheard = this.#refused.get(SESSIONS) ?? this.#refused.get(SUBSCRIPTIONS);
    const changes = unheard ? refusal(unheard, "subscribe to /halley/**", "see the latest changes") : this.#past;
    write(this.#root.querySelector("#sessions-past"), changes);
  }
}

/** The reason why no session of a tick is shown. */
function noMatch({ sessions, others }) {
  if (sessions.length === 0) return "No sessions.";
  if (others === 0) return "No session matches the filter.";
  const [listed, rest] = [sessions.length, others].map((count) => count.toLocaleString("en"));
  return `None of the ${listed} sessions listed matches; ${rest} others are not listed.`;
}
