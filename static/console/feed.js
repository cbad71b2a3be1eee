/**
 * The subscriptions of the page's parts: they share one Bayeux session, and each receives the events of its own
 * patterns, each event once.
 *
 *     const owner = { received: (message) => console.log(message.channel, message.data) };
 *     feed.subscribe("/halley/rates", owner);
 *     feed.unsubscribe("/halley/rates", owner);
 *
 * An owner is an object with a method `received({ channel, data, ext })`. It can also have `refused(pattern, error)`,
 * which is called when the server refuses a pattern; the owner's subscription has ended then. The page is subscribed to
 * a pattern as long as it has an owner.
 *
 * Data is delivered as it was published; positions that the server adds to the data of a replay are removed. Last
 * values of NetworkTables that the server repeats on request are delivered only to owners that have requested them.
 */

import { matches } from "../client/patterns.js";

const VALUES = 10_000; // the server's limit of topics

export class Feed {
  #bayeux;
  #owners = new Map(); // pattern -> its owners, each with its `ext`
  #values = new Map(); // channel of a value -> its time, and its data as JSON

  /** @param {import("../client/bayeux.js").Bayeux} bayeux */
  constructor(bayeux) {
    this.#bayeux = bayeux;
    bayeux.addEventListener("message", (/** @type {any} */ { detail }) => this.#deliver(detail));
    bayeux.addEventListener("refused", (/** @type {any} */ { detail: { channel, error } }) => {
      const owners = this.#owners.get(channel) ?? new Map();
      this.#owners.delete(channel);
      for (const owner of owners.keys()) owner.refused?.(channel, error);
    });
  }

  /**
   * Subscribe `owner` to a pattern. `ext` is sent with the subscription even if the page already has it:
   * `{ latest: true }` requests the last values of NetworkTables' topics, `{ replay: { [pattern]: position } }` the
   * recorded events after a position.
   */
  subscribe(pattern, owner, ext) {
    if (!this.#owners.has(pattern)) this.#owners.set(pattern, new Map());
    this.#owners.get(pattern).set(owner, ext);
    this.#bayeux.subscribe(pattern, ext);
  }

  /** Undo `subscribe`. Rejects with a `BayeuxError` if the request to unsubscribe fails. */
  async unsubscribe(pattern, owner) {
    const owners = this.#owners.get(pattern);
    if (!owners?.delete(owner)) return;
    if (owners.size > 0) {
      if (![...owners.values()].some((ext) => ext?.latest)) this.#bayeux.omit(pattern, "latest");
      return;
    }
    this.#owners.delete(pattern);
    await this.#bayeux.unsubscribe(pattern);
  }

  /** Undo every `subscribe` of an owner. If a request fails, the subscription lasts until the session ends. */
  unsubscribeAll(owner) {
    for (const pattern of this.patternsOf(owner)) this.unsubscribe(pattern, owner).catch(() => {});
  }

  /** The patterns of an owner, granted or not. @returns {string[]} */
  patternsOf(owner) {
    return [...this.#owners].filter(([, owners]) => owners.has(owner)).map(([pattern]) => pattern);
  }

  #deliver(message) {
    const published = asPublished(message);
    const isRepeated = this.#isRepeated(published);
    const owners = new Set();
    for (const [pattern, those] of this.#owners) {
      if (!matches(pattern, message.channel)) continue;
      for (const [owner, ext] of those) if (!isRepeated || ext?.latest) owners.add(owner);
    }
    for (const owner of owners) {
      try {
        owner.received(published);
      } catch (error) {
        reportError(error); // an error in one part of the page does not affect the others
      }
    }
  }

  /**
   * Whether a message is a NetworkTables value that was received before and is not replayed. Replayed values are
   * remembered too, since a value that is published just as a subscription begins can be part of the replay.
   */
  #isRepeated({ channel, data, ext }) {
    if (!ext?.nt4) return false;
    const { time } = ext.nt4;
    const isRead = ext.replay !== undefined;
    const known = this.#values.get(channel);
    const json = JSON.stringify(data);
    if (known?.time === time && known.json === json) return !isRead;
    if (isRead && known?.time > time) return false;
    if (this.#values.size >= VALUES) this.#values.delete(this.#values.keys().next().value);
    this.#values.set(channel, { time, json });
    return false;
  }
}

/** A message without the position that the server adds to the data of a replay. */
function asPublished(message) {
  const { data, ext } = message;
  if (ext?.replay === undefined || data?.event?.replayId !== ext.replay) return message;
  const { event, ...published } = data;
  return { ...message, data: published };
}
