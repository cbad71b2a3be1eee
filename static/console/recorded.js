/**
 * What the history has of a channel: its newest events. A server that keeps none is asked once.
 */

import { read } from "./history-pages.js";

const OFF = "the history is off on this server (halley serve --history on keeps one)";

export class Recorded {
  #bayeux;
  #identity;
  #offIn = null; // the session in which the server said that it has none: it is not asked again

  /**
   * @param {import("../client/bayeux.js").Bayeux} bayeux
   * @param {import("./identity.js").Identity} identity
   */
  constructor(bayeux, identity) {
    this.#bayeux = bayeux;
    this.#identity = identity;
  }

  /**
   * The newest events of a channel, the newest first.
   *
   * @param {string} channel
   * @param {number} limit
   * @returns {Promise<{ channel: string, data: unknown, time: string }[]>}
   * @throws {Error} that says in plain words why there are none to be had
   */
  async newest(channel, limit) {
    const { session } = this.#bayeux;
    if (session !== null && session === this.#offIn) throw new Error(OFF);
    try {
      return (await read(channel, `?reverse=true&limit=${limit}`, { headers: this.#identity.headers })).events;
    } catch (error) {
      if (error.status === 404) this.#offIn = session;
      throw new Error(inPlainWords(error));
    }
  }
}

function inPlainWords({ status, message }) {
  if (status === 404) return OFF;
  return status === 401 || status === 403 ? `this role may not read the history: ${status} ${message}` : message;
}
