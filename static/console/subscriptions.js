/**
 * What this page is subscribed to. The list outlives a reload of the tab.
 */

import { element } from "./element.js";

const REMEMBERED_AS = "halley.subscriptions";

export class Subscriptions {
  #bayeux;
  #list;
  #input;
  #result;
  #hint; // what the result says where there is nothing to say
  #rows = new Map(); // pattern -> its row

  constructor(root, bayeux) {
    this.#bayeux = bayeux;
    this.#list = root.querySelector("ul");
    this.#input = root.querySelector("input");
    this.#result = root.querySelector("output");
    this.#hint = this.#result.textContent;
    root.querySelector("form").addEventListener("submit", (submit) => {
      submit.preventDefault();
      this.#complain("");
      bayeux.subscribe(this.#input.value);
    });
    bayeux.addEventListener("refused", ({ detail }) => this.#complain(`${detail.channel}: ${detail.error.message}`));
    bayeux.addEventListener("change", () => this.#show());
  }

  /** Subscribe to what the tab was subscribed to before a reload, or else to `patterns`. */
  restore(patterns) {
    for (const pattern of recall() ?? patterns) this.#bayeux.subscribe(pattern);
  }

  /** Rows are kept while they last, so that none loses the focus. */
  #show() {
    const { subscriptions } = this.#bayeux;
    for (const [pattern, row] of this.#rows) if (!subscriptions.includes(pattern)) this.#drop(pattern, row);
    for (const pattern of subscriptions) {
      if (!this.#rows.has(pattern)) this.#rows.set(pattern, this.#row(pattern));
      const row = this.#rows.get(pattern);
      row.querySelector(".waiting").hidden = this.#bayeux.isGranted(pattern);
      if (!row.isConnected) this.#list.append(row);
    }
    remember(subscriptions);
  }

  #row(pattern) {
    const button = element("button", { type: "button", textContent: "Unsubscribe" });
    button.setAttribute("aria-label", `Unsubscribe from ${pattern}`);
    button.addEventListener("click", () => this.#unsubscribe(pattern));
    const name = element("span", { className: "channel", textContent: pattern, title: pattern });
    return element("li", {}, name, element("span", { className: "waiting", textContent: "waiting" }), button);
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
    try {
      await this.#bayeux.unsubscribe(pattern);
    } catch (error) {
      this.#complain(`${pattern}: ${error.message}`);
    }
  }

  #complain(text) {
    this.#result.textContent = text || this.#hint;
    this.#result.classList.toggle("bad", text !== "");
  }
}

// Readers may have switched storage off; then nothing is remembered.

function remember(patterns) {
  try {
    sessionStorage.setItem(REMEMBERED_AS, JSON.stringify(patterns));
  } catch {
    // as said above
  }
}

function recall() {
  try {
    return JSON.parse(sessionStorage.getItem(REMEMBERED_AS));
  } catch {
    return null;
  }
}
