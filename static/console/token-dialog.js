/**
 * The dialog for entering a token, and the parts of the page that show the reader's identity.
 */

import { notify, write } from "./element.js";
import { plain } from "./refusals.js";

export class TokenDialog {
  #bayeux;
  #identity;
  #dialog;
  #trouble;
  #now;
  #unread;
  #role;
  #readOnly;
  #isEntered = false; // whether the session of a token that was just entered is still to begin

  /** @param {any} page @param {import("./identity.js").Identity} identity */
  constructor(page, bayeux, identity) {
    this.#bayeux = bayeux;
    this.#identity = identity;
    this.#dialog = page.querySelector("#who");
    this.#trouble = page.querySelector("#token-trouble");
    this.#now = page.querySelector("#who-now");
    this.#unread = page.querySelector("#tokens-unread");
    this.#role = page.querySelector("#role");
    this.#readOnly = page.querySelector("#read-only");
    const input = page.querySelector("#token");
    page.querySelector("#identity").addEventListener("click", () => {
      input.value = "";
      this.#dialog.showModal();
    });
    page.querySelector("#close-who").addEventListener("click", () => this.#dialog.close());
    page.querySelector("#forget").addEventListener("click", () => this.#enter(""));
    this.#dialog.querySelector("form").addEventListener("submit", (submit) => {
      submit.preventDefault();
      this.#enter(input.value);
      input.value = "";
    });
    identity.addEventListener("rights", () => this.#show());
    bayeux.addEventListener("change", () => this.#watch());
    this.#show();
  }

  /** Use another token, or none; the dialog closes when there is a session with it, unless nobody reads the token. */
  #enter(token) {
    this.#isEntered = true;
    this.#trouble.textContent = "";
    this.#identity.enter(token);
  }

  /** Show a refused token's error in the dialog too, since the page behind an open dialog is inert. */
  #watch() {
    const { state, error } = this.#bayeux;
    write(this.#trouble, state === "disconnected" && error ? plain(error) : "");
    const isUsed = this.#identity.readsTokens || this.#identity.token === "";
    if (state === "connected" && this.#isEntered && isUsed) this.#dialog.close();
    if (state === "connected") this.#isEntered = false;
    if (state === "disconnected") this.#identity.forgetRights();
  }

  #show() {
    const { authid, role, isReadOnly, readsTokens } = this.#identity;
    const name = authid === null ? role : `${authid}, role ${role}`;
    this.#role.textContent = role && `You are ${name}`;
    this.#now.textContent = role ? `To this server you are ${name}.` : "The server has not reported your identity yet.";
    const text = isReadOnly ? `Read-only: the role ${role} has no right to publish. Sign in with a token that may.` : "";
    notify(this.#readOnly, text);
    notify(this.#unread, readsTokens ? "" : "This server reads no tokens: with any token you stay anonymous.");
  }
}
