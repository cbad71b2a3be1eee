/**
 * Who the reader is to the server: the token, kept for as long as the tab lives, and what its role may do at all.
 *
 * It dispatches `token` when the reader has entered another or none, and `rights` when the server has said what that is
 * worth. `may` says of each verb whether there is anything that the role may do with it; a console whose role may
 * publish nothing is for reading only.
 */

import { recall, remember } from "./memory.js";

const REMEMBERED_AS = "halley.token";
const ANSWER_MS = 10_000;
const IN_HEADERS = /^[\x21-\x7e]+$/; // no server knows a token with other characters; a handshake that has one says so

export class Identity extends EventTarget {
  /** @type {string} empty where there is none */
  token = recall(REMEMBERED_AS) ?? "";
  /** @type {string | null} */
  authid = null;
  role = "";
  /** @type {Record<string, boolean>} by verb; until the server has answered nothing is held back */
  may = {};
  #url;

  /** @param {string} url where the server tells rights */
  constructor(url) {
    super();
    this.#url = url;
  }

  /** Whether the server has said that this role may publish nothing. */
  get isReadOnly() {
    return this.may.publish === false;
  }

  /** The headers that requests beside Bayeux need. @returns {Record<string, string>} */
  get headers() {
    return IN_HEADERS.test(this.token) ? { Authorization: `Bearer ${this.token}` } : {};
  }

  /** Be somebody else from now on; empty for nobody. @param {string} token */
  enter(token) {
    this.token = token.trim();
    remember(REMEMBERED_AS, this.token || null);
    this.dispatchEvent(new Event("token"));
  }

  /** Be nobody until the server answers again: there is no session. */
  forgetRights() {
    if (this.role === "") return;
    Object.assign(this, { authid: null, role: "", may: {} });
    this.dispatchEvent(new Event("rights"));
  }

  /** Ask the server what the token is worth. */
  async ask() {
    try {
      const answer = await fetch(this.#url, { headers: this.headers, signal: AbortSignal.timeout(ANSWER_MS) });
      const { authid, role, may } = answer.ok ? await answer.json() : { authid: null, role: "", may: {} };
      Object.assign(this, { authid, role, may });
    } catch {
      return; // the server is away; the connection says so, and this is asked again when it is back
    }
    this.dispatchEvent(new Event("rights"));
  }
}
