/**
 * The reader's subscriptions, whose events the list shows. They are remembered across reloads of the tab, also those
 * that the server refuses to the present identity: another one may be allowed to have them.
 *
 * The pipeline publishes several rollups for each channel that is in use, so that they would outnumber what people and
 * programs publish. The list shows them only if a subscription names them, such as `/stats/**`, and counts them else.
 */

import { matches } from "../client/patterns.js";
import { element, write } from "./element.js";
import { recall, remember } from "./memory.js";
import { isDenied, plain, refusal } from "./refusals.js";
import { Replay } from "./replay.js";
import { isRollup, namesRollups } from "./rollups.js";

const REMEMBERED_AS = "halley.subscriptions";

export class Subscriptions {
  #bayeux;
  #feed;
  #events;
  #list;
  #input;
  #result;
  #hint; // the text while there is no error
  #refused = new Map(); // pattern that is wanted -> whether the server refuses it
  #rows = new Map(); // pattern -> its row
  #replays = new Map(); // pattern -> the replay in progress

  /** @param {import("./event-list.js").EventList} events */
  constructor(root, bayeux, feed, events) {
    this.#bayeux = bayeux;
    this.#feed = feed;
    this.#events = events;
    this.#list = root.querySelector("ul");
    this.#input = root.querySelector("input");
    this.#result = root.querySelector("output");
    this.#hint = this.#result.textContent;
    root.querySelector("form").addEventListener("submit", (submit) => {
      submit.preventDefault();
      this.#complain("");
      this.subscribe(this.#input.value);
    });
    bayeux.addEventListener("change", () => this.#show());
    bayeux.addEventListener("missed", ({ detail: { channel, first, last, reason } }) =>
      events.note(
        reason === "ahead"
          ? `The server's log is not the one that has position ${first} of ${channel}: what follows is what is new.`
          : `The history of ${channel} no longer has positions ${first} to ${last}.`,
      ),
    );
  }

  /** Subscribe to the patterns that are remembered from before a reload, or else to `patterns`. */
  restore(patterns) {
    for (const pattern of recall(REMEMBERED_AS) ?? patterns) this.subscribe(pattern);
  }

  /** Request what was refused again, for another identity. */
  renew() {
    this.#complain("");
    for (const [pattern, isRefused] of this.#refused) if (isRefused) this.subscribe(pattern);
  }

  /** Subscribe; `ext` can request a replay (see `Feed.subscribe`). */
  subscribe(pattern, ext) {
    this.#refused.set(pattern, false);
    this.#feed.subscribe(pattern, this, ext);
    this.#show();
  }

  /**
   * Receive the recorded events of a pattern from a position on, and then new ones.
   *
   * @param {string} pattern
   * @param {number} from the position of the first event
   * @param {number} until the position of the newest event that is recorded now
   */
  replay(pattern, from, until) {
    this.#complain("");
    this.#feed.unsubscribe(pattern, this).catch(() => {}); // the server drops queued events of this pattern
    this.#replays.set(pattern, new Replay(pattern, from, until));
    this.subscribe(pattern, { replay: { [pattern]: from - 1 } });
  }

  /** Called by `Feed`. */
  received(message) {
    const events = this.#events;
    const notes = [...this.#replays.values()].map((replay) => replay.notesOn(message));
    for (const { before } of notes) if (before) events.note(before);
    if (isRollup(message) && !this.#namesRollup(message.channel)) events.skip();
    else events.add(message);
    for (const { after } of notes) if (after) events.note(after);
    for (const [pattern, replay] of this.#replays) if (replay.isOver) this.#replays.delete(pattern);
  }

  #namesRollup(channel) {
    return this.#feed.patternsOf(this).some((pattern) => namesRollups(pattern) && matches(pattern, channel));
  }

  /** Called by `Feed`: shows the error. What nobody can be allowed is not wanted any more. */
  refused(pattern, error) {
    if (isDenied(error) && !pattern.startsWith("/meta/")) this.#refused.set(pattern, true);
    else this.#refused.delete(pattern);
    this.#complain(refusal(error, `subscribe to ${pattern}`, "receive its events"));
    this.#show();
  }

  /** Update the list. Rows are kept, so that none loses the focus. */
  #show() {
    for (const [pattern, row] of this.#rows) if (!this.#refused.has(pattern)) this.#drop(pattern, row);
    for (const [pattern, isRefused] of this.#refused) {
      if (!this.#rows.has(pattern)) this.#rows.set(pattern, this.#row(pattern));
      const row = this.#rows.get(pattern);
      const waiting = row.querySelector(".waiting");
      waiting.hidden = this.#bayeux.isGranted(pattern);
      write(waiting, isRefused ? "not allowed" : "waiting");
      if (!row.isConnected) this.#list.append(row);
    }
    remember(REMEMBERED_AS, [...this.#refused.keys()]);
  }

  #row(pattern) {
    const button = element("button", { type: "button", textContent: "Unsubscribe" });
    button.setAttribute("aria-label", `Unsubscribe from ${pattern}`);
    button.addEventListener("click", () => this.#unsubscribe(pattern));
    const name = element("span", { className: "channel", textContent: pattern, title: pattern });
    return element("li", {}, name, element("span", { className: "waiting" }), button);
  }

  #drop(pattern, row) {
    if (row.contains(document.activeElement)) {
      const next = row.nextElementSibling ?? row.previousElementSibling;
      (next?.querySelector("button") ?? this.#input).focus();
    }
    row.remove();
    this.#rows.delete(pattern);
  }

  async #unsubscribe(pattern) {
    this.#complain("");
    this.#replays.delete(pattern);
    this.#refused.delete(pattern);
    try {
      const left = this.#feed.unsubscribe(pattern, this);
      this.#show();
      await left;
    } catch (error) {
      this.#complain(`${pattern}: ${plain(error)}`);
    }
  }

  #complain(text) {
    this.#result.textContent = text || this.#hint;
    this.#result.classList.toggle("bad", text !== "");
  }
}
