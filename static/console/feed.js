/**
 * Who on this page hears what: its parts share one Bayeux session, and each gets the events of its own patterns, once.
 *
 *     const owner = { heard: (message) => console.log(message.channel, message.data) };
 *     feed.hear("/halley/rates", owner);
 *     feed.leave("/halley/rates", owner);
 *
 * An owner is any object with `heard({ channel, data, ext })`, and with `refused(pattern, error)` where it wants to know
 * of patterns that the server does not grant; those it owns no longer. The page is subscribed to a pattern as long as
 * anybody on it is an owner.
 *
 * Data is as it was published, also of a replay, where the server adds positions to it. A value of NetworkTables that
 * comes again because somebody has asked for the last values comes only to those who have.
 */

const VALUES = 10_000; // as many topics as the server has at most

export class Feed {
  #bayeux;
  #owners = new Map(); // pattern -> its owners, each with what goes along
  #values = new Map(); // channel of a value -> its time, and its data as JSON

  /** @param {import("../client/bayeux.js").Bayeux} bayeux */
  constructor(bayeux) {
    this.#bayeux = bayeux;
    bayeux.addEventListener("message", ({ detail }) => this.#deliver(detail));
    bayeux.addEventListener("refused", ({ detail: { channel, error } }) => {
      const owners = this.#owners.get(channel) ?? new Map();
      this.#owners.delete(channel);
      for (const owner of owners.keys()) owner.refused?.(channel, error);
    });
  }

  /**
   * Let `owner` hear a pattern. `ext` goes along with the subscription, also where there is one: `{ latest: true }` asks
   * for the last values of NetworkTables' topics, `{ replay: { [pattern]: position } }` for the history.
   */
  hear(pattern, owner, ext) {
    if (!this.#owners.has(pattern)) this.#owners.set(pattern, new Map());
    this.#owners.get(pattern).set(owner, ext);
    this.#bayeux.subscribe(pattern, ext);
  }

  /** Undo `hear`. Rejects with a `BayeuxError` if the server could not be told. */
  async leave(pattern, owner) {
    const owners = this.#owners.get(pattern);
    if (!owners?.delete(owner)) return;
    if (owners.size > 0) {
      if (![...owners.values()].some((ext) => ext?.latest)) this.#bayeux.omit(pattern, "latest");
      return;
    }
    this.#owners.delete(pattern);
    await this.#bayeux.unsubscribe(pattern);
  }

  /** Undo every `hear` of an owner. Where the server cannot be told, the end of the session does it. */
  leaveAll(owner) {
    for (const pattern of this.patternsOf(owner)) this.leave(pattern, owner).catch(() => {});
  }

  /** What an owner hears, or wishes to hear. @returns {string[]} */
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
        owner.heard(published);
      } catch (error) {
        reportError(error); // of one part of the page; the others hear it all the same
      }
    }
  }

  /**
   * Whether it is a value that has come before, and is not read in the history. Those that are count as having come, too:
   * also what is published just when a subscription begins comes out of it.
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

/** A message without what the server adds to the data of those who replay. */
function asPublished(message) {
  const { data, ext } = message;
  if (ext?.replay === undefined || data?.event?.replayId !== ext.replay) return message;
  const { event, ...published } = data;
  return { ...message, data: published };
}

/** Whether a channel matches a Bayeux pattern. `/**` leaves out the server's own topics, which have to be named. */
export function matches(pattern, channel) {
  if (pattern.endsWith("/**")) {
    const above = pattern.slice(0, -2);
    return channel.startsWith(above) && (above !== "/" || !/^\/halley(\/|$)/.test(channel));
  }
  if (!pattern.endsWith("/*")) return channel === pattern;
  const above = pattern.slice(0, -1);
  return channel.startsWith(above) && !channel.slice(above.length).includes("/") && channel !== "/halley";
}
