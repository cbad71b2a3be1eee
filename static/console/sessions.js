/**
 * The view Sessions: the protocol, queue and age of each session, and the latest changes.
 */

import { Clock } from "./clock.js";
import { ColumnOrder } from "./column-order.js";
import { notify, write } from "./element.js";
import { whole } from "./numbers.js";
import { Recorded } from "./recorded.js";
import { Redraw } from "./redraw.js";
import { refusal } from "./refusals.js";
import { SessionChanges } from "./session-changes.js";
import { SessionRows } from "./session-rows.js";
import { list, number, object, optional, text, time } from "./shape.js";

const TICKS = "/halley/queues";
const SESSIONS = "/halley/sessions";
const SUBSCRIPTIONS = "/halley/subscriptions";
const PATTERNS = [TICKS, SESSIONS, SUBSCRIPTIONS];
const WHO = { session: text, protocol: text, authid: optional(text), role: optional(text), address: optional(text) };
const QUEUE = { age_s: number, queued: number, queued_bytes: number, subscribed: number, subscriptions: list(text) };
const TICK = object({ time, sessions: list(object({ ...WHO, ...QUEUE })), others: number });
const CHANGE = object({ ...WHO, event: text, reason: optional(text), channels: optional(list(text)) });
const PAST_EVENTS = 50; // fetched from the history

export class Sessions {
  #root;
  #bayeux;
  #feed;
  #recorded;
  #clock = new Clock();
  #rows;
  #changes;
  #order;
  #text;
  #protocol;
  /** @type {import("./shape.js").Of<typeof TICK> | null} */
  #tick = null;
  #tickedAt = 0;
  #refused = new Map(); // pattern -> the server's error
  #past = ""; // the reason why the history could not be read
  #redraw = new Redraw(() => this.#draw());

  constructor(root, /** @type {import("./console.js").Services} */ { bayeux, feed, identity }) {
    this.#root = root;
    this.#bayeux = bayeux;
    this.#feed = feed;
    this.#recorded = new Recorded(bayeux, identity);
    this.#rows = new SessionRows(root.querySelector("tbody"));
    this.#changes = new SessionChanges(root.querySelector("ol"));
    this.#order = new ColumnOrder(root.querySelector("table"), () => this.#draw());
    this.#text = root.querySelector("#sessions-filter");
    this.#protocol = root.querySelector("#sessions-protocol");
    for (const filter of [this.#text, this.#protocol]) filter.addEventListener("input", () => this.#draw());
  }

  show() {
    this.#refused.clear();
    for (const pattern of PATTERNS) this.#feed.subscribe(pattern, this);
    this.#redraw.start();
    this.#readPast();
  }

  hide() {
    this.#redraw.stop();
    this.#tick = null; // it will be outdated when the view is shown again
    this.#feed.unsubscribeAll(this);
  }

  /** Called by `Feed`. */
  received({ channel, data }) {
    if (channel === TICKS) {
      if (!TICK(data)) return;
      this.#clock.set(data.time);
      this.#tick = data;
      this.#tickedAt = performance.now();
    } else if (CHANGE(data)) {
      this.#changes.add(data, this.#clock.now);
    }
    this.#redraw.soon();
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
      for (const { data, time } of past) if (CHANGE(data)) this.#changes.add(data, Date.parse(time));
      this.#past = "";
    } catch (error) {
      this.#past = `Earlier changes cannot be shown: ${error.message}.`;
    }
    this.#draw();
  }

  #draw() {
    const here = this.#tick?.sessions ?? [];
    const fitting = here.filter((each) => this.#fits(each));
    this.#root.classList.toggle("is-away", this.#bayeux.state !== "connected");
    this.#rows.draw(fitting, this.#order, (performance.now() - this.#tickedAt) / 1_000);
    this.#changes.draw();
    this.#drawCounts(fitting.length);
    this.#drawTroubles(fitting.length);
  }

  #fits({ session, protocol, authid, role, address, subscriptions }) {
    if (this.#protocol.value !== "" && protocol !== this.#protocol.value) return false;
    const wanted = this.#text.value.trim().toLowerCase();
    return [session, authid, role, address, ...subscriptions].some((text) => text?.toLowerCase().includes(wanted));
  }

  #drawCounts(shown) {
    const { sessions = [], others = 0 } = this.#tick ?? {};
    const all = sessions.length + others;
    let text = `${whole(all)} sessions`;
    if (shown < sessions.length) text = `${whole(shown)} of ${text}`;
    if (others > 0) text += `, of which the ${whole(sessions.length)} with the longest queues are listed`;
    write(this.#root.querySelector("#sessions-counts"), this.#tick ? text : "");
  }

  #drawTroubles(shown) {
    const trouble = this.#refused.get(TICKS);
    const reason = trouble ? refusal(trouble, "subscribe to /halley/**", "see the sessions") : "";
    notify(this.#root.querySelector(".notice"), reason);
    const empty = this.#root.querySelector(".empty");
    empty.hidden = shown > 0;
    if (this.#tick) write(empty, noMatch(this.#tick));
    else write(empty, trouble ? "Nothing to show." : "Waiting for data from the server\u2026");
    const refused = this.#refused.get(SESSIONS) ?? this.#refused.get(SUBSCRIPTIONS);
    const changes = refused ? refusal(refused, "subscribe to /halley/**", "see the latest changes") : this.#past;
    write(this.#root.querySelector("#sessions-past"), changes);
  }
}

/** The reason why no session of a tick is shown. */
function noMatch({ sessions, others }) {
  if (sessions.length === 0) return "No sessions.";
  if (others === 0) return "No session matches the filter.";
  return `None of the ${whole(sessions.length)} sessions listed matches; ${whole(others)} others are not listed.`;
}
