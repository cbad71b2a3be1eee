/**
 * The tokens of a client: a text, or what a function returns each time that a token is needed.
 */

import { within } from "./waits.js";

const TOKEN_MS = 30_000; // for a function to return a token

/**
 * A token, or a function that returns one, also by a promise. An empty string stands for none.
 *
 * The function is called when a connection begins, with null; and with the reason, such as `token_expired` or
 * `token_invalid`, when the server has refused what it returned last. It should return another token then.
 *
 * @typedef {string | ((refused: string | null) => string | Promise<string>)} Token
 */

export class Tokens {
  #ask;
  #last = "";
  /** Why the server has refused the last one, until another one is used. @type {string | null} */
  #refused = null;
  /** A token that was asked for and has not been used. @type {string | null} */
  #waiting = null;

  /** @param {Token} token */
  constructor(token) {
    if (typeof token !== "string" && typeof token !== "function") {
      throw new TypeError("token: expected a text, or a function that returns one");
    }
    this.#ask = typeof token === "string" ? () => token : token;
  }

  /** The token for a new connection. Rejects if there is none within 30 s. @returns {Promise<string>} */
  async next() {
    this.#last = this.#waiting ?? (await this.#asked());
    this.#waiting = this.#refused = null;
    return this.#last;
  }

  /**
   * Ask for another token than the last one, which the server has refused; `next` returns it. Rejects as `next` does.
   *
   * @param {string} reason the server's
   * @returns {Promise<boolean>} false if it is the same, or none
   */
  async renew(reason) {
    this.#refused = reason;
    const token = await this.#asked();
    if (!token || token === this.#last) return false;
    this.#waiting = token;
    return true;
  }

  /** @returns {Promise<string>} */
  async #asked() {
    const token = await within(TOKEN_MS, Promise.resolve(this.#ask(this.#refused)), "no token");
    if (typeof token !== "string") throw new TypeError("token: expected the function to return a text");
    return token;
  }
}
