/**
 * One topic of NetworkTables as a row: its name, its type, its age, and its value in a control that sets it.
 *
 * While the reader edits, values that come are told beside the control and do not touch it.
 */

import { span } from "./clock.js";
import { element, write } from "./element.js";
import { controlOf, textOf, valueOf } from "./value-types.js";

export class TopicRow {
  /** @type {HTMLLIElement} */
  element;
  channel;
  #set; // (channel, value) => a promise
  #type = "";
  #kind = "none"; // of control
  #value;
  #at = 0; // when it was published, in ms since the epoch
  #isReadOnly;
  #hasTyped = false; // whether the control holds what the reader has typed and not set
  #control = null;
  #cell;
  #typeText;
  #age;
  #result;
  #buttons;

  /**
   * @param {string} channel
   * @param {(channel: string, value: unknown) => Promise<unknown>} set publishes; rejects where that is refused
   * @param {boolean} isReadOnly
   */
  constructor(channel, set, isReadOnly) {
    this.channel = channel;
    this.#set = set;
    this.#isReadOnly = isReadOnly;
    const shown = nameOf(channel);
    this.#typeText = element("span", { className: "type" });
    this.#cell = element("div", { className: "value" });
    this.#age = element("span", { className: "age numbers" });
    this.#result = element("output", {});
    const accept = element("button", { type: "button", className: "primary", textContent: "Set" });
    const cancel = element("button", { type: "button", textContent: "Cancel" });
    accept.setAttribute("aria-label", `Set ${shown}`);
    cancel.setAttribute("aria-label", `Leave ${shown} as it is`);
    accept.addEventListener("click", () => this.#publish());
    cancel.addEventListener("click", () => this.#release());
    this.#buttons = element("div", { className: "buttons", hidden: true }, accept, cancel);
    const name = element("span", { className: "channel", textContent: shown, title: channel });
    const foot = element("div", { className: "foot" }, this.#buttons, this.#result);
    this.element = element("li", {}, name, this.#typeText, this.#cell, this.#age, foot);
  }

  /** Show a value. */
  show(type, value, at) {
    this.#value = value;
    this.#at = at;
    if (type !== this.#type) this.#makeControl(type);
    if (this.#hasTyped) this.#tellBeside();
    else if (!this.#isEntered) this.#fill();
  }

  /** Say how old the value is. @param {number} now in ms */
  grow(now) {
    write(this.#age, span(Math.max(0, now - this.#at) / 1_000));
  }

  /** @param {boolean} isReadOnly */
  restrict(isReadOnly) {
    if (isReadOnly === this.#isReadOnly) return;
    this.#isReadOnly = isReadOnly;
    this.#restrictControl();
  }

  /** Whether the reader is at it, and its element has to stay. */
  get isInUse() {
    return this.#hasTyped || this.element.contains(document.activeElement);
  }

  /** Whether the caret is in its field, which keeps still then. */
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
    this.#control.setAttribute("aria-label", `Value of ${nameOf(this.channel)}`);
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
    else this.#tellBeside();
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
      this.#say(`${error.reply ? "Refused: " : ""}${error.message}`, "bad");
    }
  }

  /** Give the control back to the values that come. */
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

  /** Say what the value is while another one is being typed. */
  #tellBeside() {
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

/** A topic's name: what a channel cannot have stands in it as `!` and two hexadecimal digits. */
function nameOf(channel) {
  try {
    return decodeURIComponent(channel.replace(/!([\da-f]{2})/g, "%$1"));
  } catch {
    return channel;
  }
}
