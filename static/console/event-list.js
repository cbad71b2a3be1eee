/**
 * The list of the newest events, newest first, which the reader can pause and clear.
 *
 * However fast events are received, it keeps at most 500 rows and draws at most ten times a second; events that 500
 * newer ones have followed by then are never drawn.
 */

import { withBytesCounted } from "./bytes.js";
import { TO_SECONDS } from "./clock.js";
import { element, write } from "./element.js";
import { whole } from "./numbers.js";

const ROWS = 500;
const PREVIEW_CHARS = 400; // more than one line shows; an unfolded row shows all data
const FRESH_ROWS = 20; // new rows are animated if there are at most this many
const DRAW_EVERY_MS = 100; // so that many events leave the page time to poll

const CLOCK = new Intl.DateTimeFormat("en-GB", { ...TO_SECONDS, fractionalSecondDigits: 3 });

export class EventList {
  #list;
  #empty;
  #counts;
  #pause;
  #arrived = []; // rows to draw, the oldest first
  #received = 0; // events since the list was cleared
  #skipped = 0; // rollups since then that are not shown
  #isPaused = false;
  #isDue = false; // whether drawing is scheduled
  #drawnAt = 0;
  #session = null; // the latest session's id

  /** @param {import("./identity.js").Identity} identity */
  constructor(root, bayeux, identity) {
    this.#list = root.querySelector("ol");
    this.#empty = root.querySelector("#empty");
    this.#counts = root.querySelector("#counts");
    this.#pause = root.querySelector("#pause");
    this.#pause.addEventListener("click", () => this.#pauseOrResume());
    root.querySelector("#clear").addEventListener("click", () => this.#clear());
    const command = root.querySelector("#command");
    const propose = () => write(command, curl(bayeux.url, identity, "/demo/hello", { text: "Hello from a terminal" }));
    identity.addEventListener("rights", propose);
    propose();
    bayeux.addEventListener("change", () => this.#watchSession(bayeux));
    this.#draw();
  }

  /** Show an event. */
  add({ channel, data }) {
    this.#received += 1;
    this.#arrive({ channel, json: JSON.stringify(data) });
  }

  /** Count a rollup that is not shown. */
  skip() {
    this.#skipped += 1;
    this.#drawSoon();
  }

  /** Add a note between the events. */
  note(text) {
    this.#arrive({ note: text });
  }

  /** Note where another session begins, since events published in between were not received, except by replay. */
  #watchSession({ session, replayed }) {
    if (session === null || session === this.#session) return;
    if (this.#session !== null) {
      const shown = replayed.length ? `shown for ${replayed.join(", ")} only` : "not shown";
      this.note(`A new session began; events published in between are ${shown}.`);
    }
    this.#session = session;
  }

  #arrive(row) {
    this.#arrived.push({ ...row, at: new Date() });
    if (this.#arrived.length > ROWS) this.#arrived.shift();
    this.#drawSoon();
  }

  #drawSoon() {
    if (this.#isDue) return;
    this.#isDue = true;
    setTimeout(() => this.#draw(), this.#drawnAt + DRAW_EVERY_MS - performance.now());
  }

  #draw() {
    this.#isDue = false;
    this.#drawnAt = performance.now();
    if (!this.#isPaused) {
      const rows = this.#arrived.splice(0).reverse();
      this.#list.prepend(...rows.map((row) => (row.note ? noteRow(row) : eventRow(row, rows.length <= FRESH_ROWS))));
      while (this.#list.childElementCount > ROWS) this.#list.lastElementChild.remove();
    }
    const shown = this.#list.getElementsByClassName("event").length;
    const waiting = this.#arrived.filter(({ note }) => !note).length;
    const older = this.#received - shown - waiting;
    const parts = [[shown, "shown"], [waiting, "waiting"], [older, "older"], [this.#skipped, "rollups not listed"]];
    const counts = parts.filter(([count, what]) => count > 0 || what === "shown");
    this.#counts.textContent = counts.map(([count, what]) => `${whole(count)} ${what}`).join(", ");
    this.#empty.hidden = this.#list.childElementCount > 0;
  }

  #pauseOrResume() {
    this.#isPaused = !this.#isPaused;
    this.#pause.textContent = this.#isPaused ? "Resume" : "Pause";
    this.#draw();
  }

  #clear() {
    this.#list.replaceChildren();
    this.#arrived.length = 0;
    this.#received = this.#skipped = 0;
    this.#draw();
  }
}

/** A row with the channel and a preview of the data; it unfolds to the whole data, indented. */
function eventRow({ channel, json, at }, isFresh) {
  const summary = element(
    "summary",
    {},
    timeOf(at),
    element("span", { className: "channel", textContent: channel, title: channel }),
    element("code", { className: "preview", textContent: withBytesCounted(json).slice(0, PREVIEW_CHARS) }),
  );
  const details = element("details", {}, summary);
  // Most rows are never opened, so the content is created when a row is.
  const unfold = () => details.append(element("pre", { textContent: JSON.stringify(JSON.parse(json), null, 2) }));
  details.addEventListener("toggle", unfold, { once: true });
  return element("li", { className: isFresh ? "event fresh" : "event" }, details);
}

function noteRow({ at, note }) {
  return element("li", { className: "gap" }, timeOf(at), note);
}

function timeOf(at) {
  const [seconds, fraction] = CLOCK.format(at).split(".");
  const rest = element("span", { className: "fraction", textContent: `.${fraction}` });
  return element("time", { dateTime: at.toISOString() }, seconds, rest);
}

/** The command line that publishes `data`. The token is left to the shell: a page is looked at by others, too. */
function curl(url, { token, isReadOnly }, channel, data) {
  const header = token || isReadOnly ? ' -H "Authorization: Bearer $TOKEN"' : "";
  return `curl ${url}${header} -d '${JSON.stringify({ channel, data })}'`;
}
