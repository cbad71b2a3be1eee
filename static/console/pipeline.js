/**
 * The view Pipeline: what Spark has found: rollups and alerts, and how far its jobs are.
 *
 * What was found before the view was opened is read in the history; everything else comes as events.
 */

import { Alerts } from "./alerts.js";
import { read } from "./history-pages.js";
import { Jobs } from "./jobs.js";
import { Rollups } from "./rollups.js";

const JOBS = "/halley/pipeline";
const ALERTS = "/alerts/**";
const WINDOWS = ["10s", "1m"];
const EARLIER_ALERTS = 100;
const EARLIER_ROLLUPS = 300; // what the server tells at once
const DRAW_EVERY_MS = 250;
const TICK_MS = 1_000;

export class Pipeline {
  #feed;
  #identity;
  #jobs;
  #alerts;
  #rollups;
  #notice;
  #earlier;
  #window = WINDOWS[0];
  #reading = null; // the AbortController of what is read in the history
  #refusals = new Map(); // pattern -> the server's words
  #drawing = 0; // the timer behind it
  #ticking = 0;

  constructor(root, { feed, identity }) {
    this.#feed = feed;
    this.#identity = identity;
    this.#jobs = new Jobs(root.querySelector(".jobs"));
    this.#alerts = new Alerts(root.querySelector(".alerts"));
    this.#rollups = new Rollups(root.querySelector(".rollups"));
    this.#notice = root.querySelector(".notice.bad");
    this.#earlier = root.querySelector("#pipeline-earlier");
    for (const choice of root.querySelectorAll("[name=window]")) {
      choice.addEventListener("change", () => this.#choose(choice.value));
    }
  }

  show() {
    this.#refusals.clear();
    for (const pattern of [JOBS, ALERTS, this.#stats]) this.#feed.hear(pattern, this);
    this.#ticking = setInterval(() => this.#jobs.draw(), TICK_MS);
    this.#read([ALERTS, this.#stats]);
    this.#draw();
  }

  hide() {
    this.#feed.leaveAll(this);
    this.#reading?.abort();
    clearInterval(this.#ticking);
    clearTimeout(this.#drawing);
    this.#drawing = 0;
    this.#jobs.forget(); // what nobody has heard of meanwhile is not known
  }

  /** Called by the feed. */
  heard({ channel, data }) {
    if (channel === JOBS) this.#jobs.take(data);
    else if (channel.startsWith("/alerts/")) this.#alerts.take(data);
    else if (channel.startsWith("/stats/") && data?.window === this.#window) this.#rollups.take(data);
    else return;
    this.#drawing ||= setTimeout(() => this.#draw(), DRAW_EVERY_MS);
  }

  /** Called by the feed. */
  refused(pattern, error) {
    this.#refusals.set(pattern, error.message);
    this.#draw();
  }

  get #stats() {
    return `/stats/${this.#window}/**`;
  }

  #choose(window) {
    this.#feed.leave(this.#stats, this).catch(() => {});
    this.#refusals.delete(this.#stats);
    this.#window = window;
    this.#rollups.clear();
    this.#feed.hear(this.#stats, this);
    this.#read([this.#stats]);
    this.#draw();
  }

  /** Read what was published before; where that is not possible, say why. */
  async #read(patterns) {
    this.#reading?.abort();
    const reading = (this.#reading = new AbortController());
    this.#earlier.textContent = "";
    for (const pattern of patterns) {
      const limit = pattern === ALERTS ? EARLIER_ALERTS : EARLIER_ROLLUPS;
      try {
        const options = { headers: this.#identity.headers, signal: reading.signal };
        const { events } = await read(pattern, `?reverse=true&limit=${limit}`, options);
        for (const event of events) this.heard(event);
      } catch (error) {
        if (reading.signal.aborted) return;
        this.#earlier.textContent = `What was published earlier cannot be read: ${error.message}.`;
      }
    }
  }

  #draw() {
    clearTimeout(this.#drawing);
    this.#drawing = 0;
    this.#jobs.draw();
    this.#alerts.draw();
    this.#rollups.draw();
    const refused = [...this.#refusals].map(([pattern, error]) => `${pattern} (${error})`).join(", ");
    this.#notice.textContent = refused && `Not heard, as the server does not let you: ${refused}`;
    this.#notice.hidden = refused === "";
  }
}
