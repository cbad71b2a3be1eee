/**
 * The view Pipeline: the pipeline's rollups and alerts, and the progress of its jobs.
 *
 * Rollups and alerts from before the view was opened are read from the history; later ones are received as events.
 */

import { Alerts } from "./alerts.js";
import { notify } from "./element.js";
import { read } from "./history-pages.js";
import { Jobs } from "./jobs.js";
import { Redraw } from "./redraw.js";
import { refusal } from "./refusals.js";
import { Rollups } from "./rollups.js";

const JOBS = "/halley/pipeline";
const ALERTS = "/alerts/**";
const WINDOWS = ["10s", "1m"];
const EARLIER_ALERTS = 100;
const EARLIER_ROLLUPS = 300; // fits into one page of the history

export class Pipeline {
  #feed;
  #identity;
  #jobs;
  #alerts;
  #rollups;
  #notice;
  #earlier;
  #window = WINDOWS[0];
  /** Ends reading the history. @type {AbortController | null} */
  #reading = null;
  #refusals = new Map(); // pattern -> the server's error
  #redraw = new Redraw(() => this.#draw());

  constructor(root, /** @type {import("./console.js").Services} */ { feed, identity }) {
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
    for (const pattern of [JOBS, ALERTS, this.#stats]) this.#feed.subscribe(pattern, this);
    this.#read([ALERTS, this.#stats]);
    this.#redraw.start();
  }

  hide() {
    this.#feed.unsubscribeAll(this);
    this.#reading?.abort();
    this.#redraw.stop();
    this.#jobs.forget(); // no reports are received while the view is hidden
  }

  /** Called by `Feed`. */
  received({ channel, data }) {
    if (channel === JOBS) this.#jobs.update(data);
    else if (channel.startsWith("/alerts/")) this.#alerts.add(data);
    else if (channel.startsWith("/stats/") && data?.window === this.#window) this.#rollups.add(data);
    else return;
    this.#redraw.soon();
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
    this.#feed.unsubscribe(this.#stats, this).catch(() => {});
    this.#refusals.delete(this.#stats);
    this.#window = window;
    this.#rollups.clear();
    this.#feed.subscribe(this.#stats, this);
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
        for (const event of events) this.received(event);
      } catch (error) {
        if (reading.signal.aborted) return;
        this.#earlier.textContent = refusal(error, `subscribe to ${pattern}`, "read earlier results");
      }
    }
  }

  #draw() {
    this.#jobs.draw();
    this.#alerts.draw();
    this.#rollups.draw();
    const [error] = this.#refusals.values();
    const right = `subscribe to ${[...this.#refusals.keys()].join(" and ")}`;
    notify(this.#notice, error ? refusal(error, right, "see all of the pipeline") : "");
  }
}
