/**
 * The reader's identity: the token, which is kept until the tab is closed, and the rights that the server grants.
 *
 * It dispatches `token` when the reader has entered or deleted a token, and `rights` when the server has returned the
 * rights. `may` has for each verb whether the role has any right to it. The console is read-only if the role has no
 * right to publish.
 */

import { recall, remember } from "./memory.js";

const REMEMBERED_AS = "halley.token";
const ANSWER_MS = 10_000;
const IN_HEADERS = /^[\x21-\x7e]+$/; // no server accepts a token with other characters

export class Identity extends EventTarget {
  /** The token, or an empty string. @type {string} */
  token = recall(REMEMBERED_AS) ?? "";
  /** @type {string | null} */
  authid = null;
  role = "";
  /** By verb; empty until the server has responded, which disables nothing. @type {Record<string, boolean>} */
  may = {};
  /** Whether the server makes anything of a token. It is not known until the server has responded. */
  readsTokens = true;
  /** The node of a cluster that has responded; empty if the server is not one. */
  node = "";
  #url;

  /** @param {string} url the server's `/rights` */
  constructor(url) {
    super();
    this.#url = url;
  }

  /** Whether the server has reported that this role has no right to publish. */
  get isReadOnly() {
    return this.may.publish === false;
  }

  /** The headers for requests other than Bayeux's. @returns {Record<string, string>} */
  get headers() {
    return IN_HEADERS.test(this.token) ? { Authorization: `Bearer ${this.token}` } : {};
  }

  /** Use another token, or none if it is empty. @param {string} token */
  enter(token) {
    this.token = token.trim();
    remember(REMEMBERED_AS, this.token || null);
    this.dispatchEvent(new Event("token"));
  }

  /** Forget the rights, since there is no session; they are requested again with the next one. */
  forgetRights() {
    if (this.role === "") return;
    Object.assign(this, { authid: null, role: "", may: {} });
    this.dispatchEvent(new Event("rights"));
  }

  /** Request the rights of the token. */
  async ask() {
    const { token } = this;
    try {
      const answer = await fetch(this.#url, { headers: this.headers, signal: AbortSignal.timeout(ANSWER_MS) });
      const { authid, role, may, node = "", reads_tokens: readsTokens = true } = answer.ok
        ? await answer.json()
        : { authid: null, role: "", may: {} };
      if (token !== this.token) return; // those of an earlier identity
      Object.assign(this, { authid, role, may, node, readsTokens });
    } catch {
      return; // the connection shows the failure; rights are requested again with the next session
    }
    this.dispatchEvent(new Event("rights"));
  }
}
