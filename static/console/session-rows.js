/**
 * The table of sessions: a row for each, which is kept as long as the session lasts.
 */

import { exactSpan } from "./clock.js";
import { element, write } from "./element.js";
import { weight, whole } from "./numbers.js";
import { badge } from "./protocol.js";
import { arrange } from "./rows.js";

export const DIGITS = 8; // the number of a session's 16 digits that are shown
const FULL_EVENTS = 1_000; // the queue length that a bar across the whole cell means: the usual limit
const NAMED = 3; // the number of subscriptions that are listed
const NAMES = new Intl.Collator("en", { numeric: true });

/** The sort key of each column. */
const MEASURES = {
  session: ({ session }) => session,
  protocol: ({ protocol }) => protocol,
  authid: ({ authid }) => authid ?? "",
  role: ({ role }) => role ?? "",
  address: ({ address }) => address ?? "",
  age: ({ age_s: ageS }) => ageS,
  queue: ({ queued, queued_bytes: bytes }) => queued + bytes / 1e12, // among equally long queues, by bytes
  subscribed: ({ subscribed }) => subscribed,
};

export class SessionRows {
  #body;
  #rows = new Map(); // session -> its row

  /** @param {HTMLTableSectionElement} body */
  constructor(body) {
    this.#body = body;
  }

  /** Show the sessions of a tick that was received `elapsedS` seconds ago, in the order of a column. */
  draw(sessions, { by, sign }, elapsedS) {
    const here = new Set(sessions.map(({ session }) => session));
    for (const session of this.#rows.keys()) if (!here.has(session)) this.#rows.delete(session);
    const measure = MEASURES[by];
    const ordered = sessions.toSorted((a, b) => sign * compare(measure(a), measure(b)) || compare(a.session, b.session));
    arrange(this.#body, ordered.map((each) => this.#row(each, elapsedS)));
  }

  #row(session, elapsedS) {
    let row = this.#rows.get(session.session);
    if (!row) {
      row = fresh(session);
      this.#rows.set(session.session, row);
    }
    fill(row, session, elapsedS);
    return row;
  }
}

function fresh({ session, protocol, authid, role, address }) {
  const head = element("th", { scope: "row", role: "rowheader", title: session });
  head.append(element("code", { textContent: session.slice(0, DIGITS) }));
  const bar = element("span", { className: "bar" });
  const queue = element("td", { role: "cell", className: "numbers queue" }, element("span"), bar);
  return element(
    "tr",
    { role: "row" },
    head,
    element("td", { role: "cell" }, badge(protocol)),
    text(authid ?? "\u2013", "who"),
    text(role ?? "\u2013", "role"),
    text(address ?? "\u2013", "address"),
    text("", "numbers age"),
    queue,
    text("", "patterns"),
  );
}

function fill(row, { age_s: ageS, queued, queued_bytes: bytes, subscribed, subscriptions }, elapsedS) {
  const [age, queue, patterns] = [...row.children].slice(-3);
  write(age, exactSpan(ageS + elapsedS));
  write(queue.firstElementChild, queued === 0 ? "0" : `${whole(queued)} \u00b7 ${weight(bytes)}`);
  const part = `${Math.min(100, (100 * queued) / FULL_EVENTS)}%`;
  if (row.partShown !== part) queue.lastElementChild.style.setProperty("--part", part);
  row.partShown = part;
  write(patterns, subscribed === 0 ? "\u2013" : few(subscriptions, NAMED, subscribed));
  patterns.title = subscriptions.join("\n");
}

/** The first `most` names, and the number of others out of `count`. @param {string[]} names @param {number} most */
export function few(names, most, count = names.length) {
  const shown = names.slice(0, most);
  const rest = count - shown.length;
  return shown.join(", ") + (rest > 0 ? `, and ${rest} more` : "");
}

function text(content, className) {
  return element("td", { role: "cell", className, textContent: content, title: content });
}

function compare(a, b) {
  return typeof a === "number" ? a - b : NAMES.compare(a, b);
}
