/**
 * The form for publishing: a channel, and data that is checked while it is typed.
 */

import { timeOfDay } from "./clock.js";
import { parsed } from "./json.js";
import { plain, refusal } from "./refusals.js";

export class Publisher {
  #bayeux;
  #channel;
  #data;
  #result;
  #hint; // the text while there is no result

  constructor(root, bayeux, identity) {
    this.#bayeux = bayeux;
    this.#channel = root.querySelector("#channel");
    this.#data = root.querySelector("#data");
    this.#result = root.querySelector("output");
    this.#hint = this.#result.textContent;
    this.#data.addEventListener("input", () => this.#check());
    this.#data.addEventListener("keydown", (key) => {
      if (key.key !== "Enter" || !(key.ctrlKey || key.metaKey)) return;
      key.preventDefault();
      root.querySelector("form").requestSubmit();
    });
    root.querySelector("form").addEventListener("submit", (submit) => {
      submit.preventDefault();
      this.#publish();
    });
    identity.addEventListener("rights", () => {
      for (const control of root.querySelectorAll("input, textarea, button")) control.disabled = identity.isReadOnly;
    });
  }

  /** Check whether the data is JSON, and show the error if not; returns `{ data }`, or null. */
  #check() {
    /** @type {{ data: unknown } | null} */
    let read = null;
    try {
      read = { data: parsed(this.#data.value) };
      this.#say(this.#hint);
    } catch (error) {
      this.#say(error.message, "bad");
    }
    this.#data.setAttribute("aria-invalid", String(read === null));
    return read;
  }

  async #publish() {
    const read = this.#check();
    if (read === null) {
      this.#data.focus();
      return;
    }
    const channel = this.#channel.value;
    try {
      await this.#bayeux.publish(channel, read.data);
      this.#say(`Published to ${channel} at ${timeOfDay(new Date())}`, "good");
    } catch (error) {
      this.#say(outcome(error, channel), "bad");
    }
  }

  #say(text, className = "") {
    this.#result.textContent = text;
    this.#result.className = className;
  }
}

function outcome(error, channel) {
  if (error.isOutcomeUnknown) return `Unknown whether published: ${plain(error)}`;
  if (error.reply) return refusal(error, `publish to ${channel}`, "publish this");
  return `Not published: ${error.message}`;
}
