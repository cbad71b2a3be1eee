/**
 * Reads a channel's newest events from the history. If the history is off, later calls in the session make no request.
 */

import { read } from "./history-pages.js";
import { isDenied } from "./refusals.js";

const OFF = "the history is off on this server (start it with: halley serve --history on)";

export class Recorded {
  #bayeux;
  #identity;
  #offIn = null; // the session in which the server responded that its history is off

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
   * @returns {Promise<import("./history-pages.js").Recorded[]>}
   * @throws {Error} with a message that explains why none could be read
   */
  async newest(channel, limit) {
    const { session } = this.#bayeux;
    if (session !== null && session === this.#offIn) throw new Error(OFF);
    try {
      return (await read(channel, `?reverse=true&limit=${limit}`, { headers: this.#identity.headers })).events;
    } catch (error) {
      if (error.status === 404) this.#offIn = session;
      throw new Error(inPlainWords(error, channel), { cause: error });
    }
  }
}

function inPlainWords(error, channel) {
  if (error.status === 404) return OFF;
  return isDenied(error) ? `reading its history needs a token that may subscribe to ${channel}` : error.message;
}
