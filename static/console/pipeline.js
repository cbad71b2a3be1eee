/**
 * The view Pipeline: the pipeline's rollups and alerts, and the progress of its jobs.
 *
 * Rollups and alerts from before the view was opened are read from the history; later ones are received as events.
 */

import { Alerts } from "./alerts.js";
import { read } from "./history-pages.js";
import { Jobs } from "./jobs.js";
import { refusal } from "./refusals.js";
import { Rollups } from "./rollups.js";

const JOBS = "/halley/pipeline";
const ALERTS = "/alerts/**";
const WINDOWS = ["10s", "1m"];
const EARLIER_ALERTS = 100;
const EARLIER_ROLLUPS = 300; // fits into one page of the history
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
  #reading = null; // the AbortController of reading the history
  #refusals = new Map(); // pattern -> the server's error
  #drawing = 0; // this and #ticking: timers
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
    this.#jobs.forget(); // no reports are received while the view is hidden
  }

  /** Called by `Feed`. */
  heard({ channel, data }) {
    if (channel === JOBS) this.#jobs.take(data);
    else if (channel.startsWith("/alerts/")) this.#alerts.take(data);
    else if (channel.startsWith("/stats/") && data?.window === this.#window) this.#rollups.take(data);
    else return;
    this.#drawing ||= setTimeout(() => this.#draw(), DRAW_EVERY_MS);
  }

  /** Called by `Feed`. */
  refused(pattern, error) {
    this.#refusals.set(pattern, error);
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

  /** Read earlier results from the history; if that fails, show the reason. */
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
        this.#earlier.textContent = refusal(error, `subscribe to ${pattern}`, "read earlier results");
      }
    }
  }

  #draw() {
    clearTimeout(this.#drawing);
    this.#drawing = 0;
    this.#jobs.draw();
    this.#alerts.draw();
    this.#rollups.draw();
    const [error] = this.#refusals.values();
    const right = `subscribe to ${[...this.#refusals.keys()].join(" and ")}`;
    this.#notice.textContent = error ? refusal(error, right, "see all of the pipeline") : "";
    this.#notice.hidden = !error;
  }
}
