/**
 * The row of a NetworkTables topic: its name, its type, its age, and its value in a control that sets it.
 *
 * While the reader edits, new values are shown below the control and do not change its content.
 */

import { span } from "./clock.js";
import { element, write } from "./element.js";
import { plain, refusal } from "./refusals.js";
import { topicName } from "./topic-name.js";
import { controlOf, textOf, valueOf } from "./value-types.js";

export class TopicRow {
  /** @type {HTMLLIElement} */
  element;
  channel;
  #set; // (channel, value) => a promise
  #type = "";
  #kind = "none"; // of control
  #value;
  #at = 0; // the value's time, in ms since the epoch
  #isReadOnly;
  #hasTyped = false; // whether the control has input that is not set yet
  /** What `controls` has for the kind. @type {any} */
  #control = null;
  #cell;
  #typeText;
  #age;
  #result;
  #buttons;

  /**
   * @param {string} channel
   * @param {(channel: string, value: unknown) => Promise<unknown>} set publishes a value; rejects if that is refused
   * @param {boolean} isReadOnly
   */
  constructor(channel, set, isReadOnly) {
    this.channel = channel;
    this.#set = set;
    this.#isReadOnly = isReadOnly;
    const shown = topicName(channel);
    this.#typeText = element("span", { className: "type" });
    this.#cell = element("div", { className: "value" });
    this.#age = element("span", { className: "age numbers" });
    this.#result = element("output", {});
    const accept = element("button", { type: "button", className: "primary", textContent: "Set" });
    const cancel = element("button", { type: "button", textContent: "Cancel" });
    accept.setAttribute("aria-label", `Set ${shown}`);
    cancel.setAttribute("aria-label", `Cancel setting ${shown}`);
    accept.addEventListener("click", () => this.#publish());
    cancel.addEventListener("click", () => this.#release());
    this.#buttons = element("div", { className: "buttons", hidden: true }, accept, cancel);
    const name = element("span", { className: "channel", textContent: shown, title: channel });
    const foot = element("div", { className: "foot" }, this.#buttons, this.#result);
    this.element = element("li", {}, name, this.#typeText, this.#cell, this.#age, foot);
  }

  /** Show a value. @param {string} type @param {unknown} value @param {number} at in ms since the epoch */
  show(type, value, at) {
    this.#value = value;
    this.#at = at;
    if (type !== this.#type) this.#makeControl(type);
    if (this.#hasTyped) this.#showCurrent();
    else if (!this.#isEntered) this.#fill();
  }

  /** Update the value's age. @param {number} now in ms since the epoch */
  grow(now) {
    write(this.#age, span(Math.max(0, now - this.#at) / 1_000));
  }

  /** Set whether the control is read-only. @param {boolean} isReadOnly */
  restrict(isReadOnly) {
    if (isReadOnly === this.#isReadOnly) return;
    this.#isReadOnly = isReadOnly;
    this.#restrictControl();
  }

  /** Whether the reader is using the row, so that its element has to be kept. */
  get isInUse() {
    return this.#hasTyped || this.element.contains(document.activeElement);
  }

  /** Whether the caret is in the row's field, which is not updated then. */
  get #isEntered() {
    const isField = ["number", "text", "json"].includes(this.#kind);
    return isField && this.#control === document.activeElement && !this.#isReadOnly;
  }

  #makeControl(type) {
    this.#type = type;
    this.#kind = controlOf(type);
    this.#typeText.textContent = type;
    this.#typeText.title = type;
    this.#control = controls[this.#kind]();
    this.#control.setAttribute("aria-label", `Value of ${topicName(this.channel)}`);
    this.#cell.replaceChildren(this.#control);
    this.#cell.dataset.kind = this.#kind;
    this.#settle();
    this.#restrictControl();
    if (this.#kind === "switch") {
      this.#cell.append(element("code"));
      this.#control.addEventListener("change", () => this.#publish());
    } else if (this.#kind !== "none") this.#watch(this.#control);
  }

  #watch(control) {
    control.addEventListener("input", () => this.#typed());
    control.addEventListener("keydown", (key) => {
      if (key.key === "Escape") this.#release();
      if (key.key !== "Enter" || key.shiftKey || key.isComposing) return;
      key.preventDefault();
      if (this.#hasTyped) this.#publish();
    });
    control.addEventListener("blur", () => {
      if (!this.#hasTyped) this.#fill();
    });
  }

  #typed() {
    this.#hasTyped = true;
    this.#buttons.hidden = false;
    let trouble = "";
    try {
      valueOf(this.#type, this.#control.value);
    } catch (error) {
      trouble = error.message;
    }
    this.#control.setAttribute("aria-invalid", String(trouble !== ""));
    if (trouble) this.#say(trouble, "bad");
    else this.#showCurrent();
  }

  async #publish() {
    let value;
    try {
      value = this.#kind === "switch" ? this.#control.checked : valueOf(this.#type, this.#control.value);
    } catch (error) {
      this.#say(error.message, "bad");
      return;
    }
    try {
      await this.#set(this.channel, value);
      this.#value = value;
      this.#release();
    } catch (error) {
      if (this.#kind === "switch") this.#fill();
      const isUnknown = error.isOutcomeUnknown;
      this.#say(isUnknown ? plain(error) : refusal(error, `publish to ${this.channel}`, "set this value"), "bad");
    }
  }

  /** Discard the input, and show new values in the control again. */
  #release() {
    this.#settle();
    this.#fill();
  }

  #settle() {
    this.#hasTyped = false;
    this.#buttons.hidden = true;
    this.#control.removeAttribute("aria-invalid");
    this.#say("");
  }

  #fill() {
    const text = textOf(this.#type, this.#value);
    if (this.#kind === "switch") this.#control.checked = this.#value === true;
    const shows = { switch: this.#control.nextSibling, none: this.#control }[this.#kind];
    if (shows) write(shows, text);
    else if (this.#control.value !== text) this.#control.value = text;
  }

  /** Show the current value below the input, unless an error is shown there. */
  #showCurrent() {
    if (this.#control.ariaInvalid !== "true") this.#say(`now ${textOf(this.#type, this.#value)}`);
  }

  #restrictControl() {
    if (this.#kind === "switch") this.#control.disabled = this.#isReadOnly;
    else if (this.#control) this.#control.readOnly = this.#isReadOnly;
  }

  #say(text, className = "") {
    this.#result.textContent = text;
    this.#result.className = className;
  }
}

const field = (rows = 1) => element("textarea", { rows, spellcheck: false, autocapitalize: "none" });

/** The control of each kind. */
const controls = {
  switch() {
    const box = element("input", { type: "checkbox" });
    box.setAttribute("role", "switch");
    return box;
  },
  number: () => element("input", { type: "number", step: "any", autocomplete: "off" }),
  text: field,
  json: field,
  none: () => element("code", {}),
};
