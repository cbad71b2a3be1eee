/**
 * The client of a Halley server that programs use: subscriptions with callbacks, and publishing, over one Bayeux session
 * that comes back by itself. What is on the wire is in `bayeux.js`.
 */

import { Bayeux, BayeuxError } from "./bayeux.js";
import { call } from "./callbacks.js";
import { endpoint } from "./endpoint.js";
import { matches } from "./patterns.js";
import { pause } from "./waits.js";

const ALL = -2; // Bayeux' name for what is before all positions
const PUBLISH_MS = 30_000; // in which a publish is done, or rejected
const WAITING_PUBLISHES = 1_000; // the maximum number that wait for a connection; more are rejected
const REPEAT_MS = 250; // before a publish is sent again

/**
 * An event of a channel.
 *
 * @template [T=unknown]
 * @typedef {object} ReceivedEvent
 * @property {string} channel
 * @property {T} data
 * @property {number | null} position its place in the server's history; null if it is not recorded
 * @property {Record<string, unknown>} [ext] what else the server says of it: of a value of NetworkTables `nt4`, its type
 *   and time
 */

/** @typedef {import("./event-stream.js").Gap} Gap */
/** @typedef {import("./event-stream.js").Loss} Loss */

/**
 * @typedef {object} ClientOptions
 * @property {import("./tokens.js").Token} [token] a token, or a function that returns one, also by a promise; it is called
 *   for each session, with null, or with the server's reason if it has refused the token before, as `token_expired`
 * @property {import("./bayeux.js").Transport} [transport] `auto`, unless given: a WebSocket where there is one and it
 *   works, else long-polling
 * @property {string} [path] the path of the Bayeux endpoint below the server's URL: `bayeux`, unless given
 * @property {() => void} [onOpen] called each time that the client is connected
 * @property {(loss: Loss) => void} [onLost] called each time that the connection is lost, or cannot be made
 * @property {(gap: Gap & { channel: string }) => void} [onGap] called where events of a subscription, whose channel or
 *   pattern is `channel`, are missing
 * @property {(end: { error: Error, channel: string | null }) => void} [onEnd] called when the server has ended a
 *   subscription, or the whole client if `channel` is null, and would do so again. Without it the error is thrown as an
 *   uncaught exception.
 */

/**
 * A subscription as the client keeps it. `floor` is the position after which its events are wanted; null for all that
 * come. `settle` resolves or rejects `granted`, which `subscribe` has returned; undefined once that is done.
 *
 * @typedef {{
 *   channel: string, callback: (event: ReceivedEvent<any>) => void, floor: number | null,
 *   granted?: Promise<Subscription>, settle?: { resolve: () => void, reject: (error: Error) => void }
 * }} Entry
 */

/** A subscription of a `HalleyClient`, which makes it. */
export class Subscription {
  #position;
  #leave;

  /** @param {string} channel @param {() => number | null} position @param {() => Promise<void>} leave */
  constructor(channel, position, leave) {
    /** The channel or pattern. @readonly */
    this.channel = channel;
    this.#position = position;
    this.#leave = leave;
  }

  /**
   * The position up to which it has all events: where a later program can continue, by `after`. Null while it is not
   * known, or if the server has no history.
   *
   * @returns {number | null}
   */
  get position() {
    return this.#position();
  }

  /** End it: its callback is not called any more. Rejects with a `BayeuxError` if the server is not reached. */
  async unsubscribe() {
    await this.#leave();
  }
}

/**
 * A client of a Halley server.
 *
 *     const client = new HalleyClient("http://127.0.0.1:8080");
 *     await client.subscribe("/chat/*", ({ channel, data }) => console.log(channel, data));
 *     await client.publish("/chat/lobby", "Hello");
 *     await client.close();
 *
 * It connects at once, and stays connected until `close`: after a loss it tries again, first after about a second, later
 * once a minute. Subscriptions continue after the last position, so that each recorded event comes once and in order,
 * also after a restart of the server.
 */
export class HalleyClient {
  #bayeux;
  #options;
  /** @type {Set<Entry>} */
  #entries = new Set();
  /** What was reported last. @type {{ state: Bayeux["state"], retryAt: number }} */
  #reported = { state: "disconnected", retryAt: 0 };
  #isClosed = false;
  /** Wakes each publish that waits for a connection. @type {Set<() => void>} */
  #waiting = new Set();
  #hurry = () => {
    if (this.state === "reconnecting") this.#bayeux.connect();
  };

  /**
   * @param {string} url the server's, such as `https://example.org/`; in a page it may be relative to the page
   * @param {ClientOptions} [options]
   * @throws {TypeError} if an argument is wrong
   */
  constructor(url, options = {}) {
    const { token, transport, path = "bayeux" } = options;
    if (![undefined, "auto", "websocket", "long-polling"].includes(transport)) {
      throw new TypeError("transport: expected auto, websocket or long-polling");
    }
    this.#options = options;
    this.#bayeux = new Bayeux(endpoint(url, path).href, { token, transport, resume: true });
    this.#bayeux.addEventListener("change", () => this.#follow());
    this.#bayeux.addEventListener("message", (/** @type {any} */ { detail }) => this.#deliver(detail));
    this.#bayeux.addEventListener("missed", (/** @type {any} */ { detail }) => this.#miss(detail));
    this.#bayeux.addEventListener("refused", (/** @type {any} */ { detail }) => this.#end(detail.error, detail.channel));
    globalThis.addEventListener?.("online", this.#hurry);
    this.#bayeux.connect();
  }

  /** Whether it is connected. @returns {"connecting" | "connected" | "reconnecting" | "disconnected"} */
  get state() {
    return this.#bayeux.state;
  }

  /** How it is connected, or will be. @returns {"websocket" | "long-polling"} */
  get transport() {
    return this.#bayeux.transport;
  }

  /**
   * Subscribe to a channel, or to a pattern such as `/chat/*` or `/chat/**`.
   *
   * @template [T=unknown]
   * @param {string} channel
   * @param {(event: ReceivedEvent<T>) => void} callback called with each event, in their order
   * @param {{ after?: number }} [options] `after`: begin with the recorded events after this position, 0 for all that are
   *   kept. Otherwise the subscription begins with what is new.
   * @returns {Promise<Subscription>} resolves when the server has granted it, which takes until it can be reached. Rejects
   *   with a `BayeuxError` if the server refuses it, or the client is closed.
   */
  subscribe(channel, callback, { after } = {}) {
    if (typeof channel !== "string" || !channel.startsWith("/")) {
      throw new TypeError(`channel: expected one that begins with /, instead of ${channel}`);
    }
    if (typeof callback !== "function") throw new TypeError("callback: expected a function");
    if (after !== undefined && !(Number.isSafeInteger(after) && after >= 0)) {
      throw new TypeError("after: expected a position, a whole number from 0 on");
    }
    if (this.#isClosed) return Promise.reject(new BayeuxError("the client is closed"));
    /** @type {Entry} */
    const entry = { channel, callback, floor: after ?? null };
    const others = this.#entriesOf(channel);
    this.#entries.add(entry);
    this.#bayeux.subscribe(channel, after === undefined ? undefined : this.#replay(channel, after, others));
    const granted = new Promise((/** @type {(value?: any) => void} */ resolve, reject) => {
      entry.settle = { resolve, reject };
    });
    this.#follow();
    const position = () => highest(entry.floor, this.#bayeux.reached(channel));
    const subscription = new Subscription(channel, position, () => this.#leave(entry));
    entry.granted = granted.then(() => subscription);
    return entry.granted;
  }

  /**
   * Publish. Waits until the client is connected, and for the server's reply, 30 s at most.
   *
   * @param {string} channel
   * @param {unknown} data any JSON value
   * @param {{ key?: string }} [options] `key` is the publisher's name for this publish, by which a server with a history
   *   recognizes a repeat: with it the client sends the event again if a connection was lost before the reply came, and it
   *   is published once. At most 128 printable ASCII characters.
   * @returns {Promise<{ position: number | null }>} the event's position, null if it is not recorded. Rejects with a
   *   `BayeuxError`, whose `isOutcomeUnknown` says whether the event may be published all the same.
   */
  async publish(channel, data, { key } = {}) {
    const ext = key === undefined ? undefined : { idempotency_key: key };
    const deadline = AbortSignal.timeout(PUBLISH_MS);
    for (;;) {
      await this.#connected(deadline);
      try {
        const reply = await this.#bayeux.publish(channel, data, ext);
        return { position: reply.ext?.position ?? null };
      } catch (error) {
        const isForgotten = error.message.startsWith("402:"); // the event was refused, and a new session comes
        if (this.#isClosed || deadline.aborted || !(isForgotten || (error.isOutcomeUnknown && ext))) throw error;
      }
      await pause(REPEAT_MS, deadline).catch(() => {});
    }
  }

  /** End the session, and all subscriptions. What is under way is rejected. */
  async close() {
    this.#leaveForGood();
    const left = this.#bayeux.disconnect();
    this.#drop([...this.#entries], new BayeuxError("the client is closed"));
    await left;
  }

  #leaveForGood() {
    this.#isClosed = true;
    globalThis.removeEventListener?.("online", this.#hurry);
  }

  /** Wait until it is connected. @param {AbortSignal} deadline */
  async #connected(deadline) {
    while (this.state !== "connected") {
      if (this.state === "disconnected") throw this.#bayeux.error ?? new BayeuxError("the client is closed");
      if (deadline.aborted) throw new BayeuxError(`not connected within ${PUBLISH_MS / 1000} s`);
      if (this.#waiting.size >= WAITING_PUBLISHES) throw new BayeuxError("too many unsent messages");
      await new Promise((/** @type {(value?: any) => void} */ resolve) => {
        this.#waiting.add(resolve);
        deadline.addEventListener("abort", resolve, { once: true });
        deadline.addEventListener("abort", () => this.#waiting.delete(resolve), { once: true });
      });
    }
  }

  /** Report what has changed. */
  #follow() {
    for (const entry of this.#entries) if (this.#bayeux.isGranted(entry.channel)) settled(entry)?.resolve();
    const { state, error, retryAt } = this.#bayeux;
    if (state === "connected" || state === "disconnected") {
      for (const wake of this.#waiting) wake();
      this.#waiting.clear();
    }
    const before = this.#reported;
    this.#reported = { state, retryAt };
    if (state === "connected" && before.state !== state) call(this.#options.onOpen);
    if (state === "reconnecting" && error && before.retryAt !== retryAt) {
      call(this.#options.onLost, { error, retryMs: Math.max(0, Math.round(retryAt - Date.now())) });
    }
    if (state === "disconnected" && before.state !== state && error) this.#end(error, null);
  }

  /** @param {{ channel: string, data: any, ext?: Record<string, unknown> }} message */
  #deliver({ channel, data, ext: { replay, ...ext } = {} }) {
    const position = typeof replay === "number" ? replay : null;
    const event = { channel, data, position, ...(Object.keys(ext).length ? { ext } : {}) };
    for (const entry of this.#entries) {
      if (!matches(entry.channel, channel)) continue;
      if (position !== null) {
        if (entry.floor !== null && position <= entry.floor) continue;
        entry.floor = position;
      }
      call(entry.callback, event);
    }
  }

  /** @param {{ channel: string, first: number, last: number, reason: Gap["reason"] }} missed */
  #miss({ channel, first, last, reason }) {
    if (reason === "ahead") for (const entry of this.#entries) entry.floor &&= Math.min(entry.floor, last); // a new log
    call(this.#options.onGap, { channel, from: first, to: last, reason });
  }

  /** The server has ended a subscription, or the client if `channel` is null. @param {Error} error */
  #end(error, /** @type {string | null} */ channel) {
    const entries = channel === null ? [...this.#entries] : this.#entriesOf(channel);
    if (channel === null) this.#leaveForGood();
    if (channel !== null && entries.every(({ settle }) => settle)) {
      for (const entry of entries) settled(entry)?.reject(error); // an uncaught exception where nobody waits for it
      for (const entry of entries) this.#entries.delete(entry);
      return;
    }
    this.#drop(entries, error);
    call(this.#options.onEnd ?? raise, { error, channel });
  }

  /** End subscriptions for a reason that the program knows. @param {Entry[]} entries @param {Error} error */
  #drop(entries, error) {
    for (const entry of entries) {
      entry.granted?.catch(() => {}); // may be waited for by nobody
      settled(entry)?.reject(error);
      this.#entries.delete(entry);
    }
  }

  /** The subscriptions to a channel. @param {string} channel */
  #entriesOf(channel) {
    return [...this.#entries].filter((entry) => entry.channel === channel);
  }

  /**
   * The extension of a subscribe that replays, from as far back as any subscription to the channel needs.
   *
   * @param {string} channel
   * @param {number} after
   * @param {Entry[]} others
   */
  #replay(channel, after, others) {
    const reached = this.#bayeux.reached(channel);
    for (const other of others) other.floor = highest(other.floor, reached); // what is before that, they have had
    return { replay: { [channel]: Math.min(after, ...others.map(({ floor }) => floor ?? after)) || ALL } };
  }

  /** End a subscription. @param {Entry} entry */
  async #leave(entry) {
    if (!this.#entries.delete(entry)) return;
    if (!this.#entriesOf(entry.channel).length) await this.#bayeux.unsubscribe(entry.channel);
  }
}

/** Stop waiting for the server's word on a subscription; return what it is to be passed to. @param {Entry} entry */
function settled(entry) {
  const { settle } = entry;
  entry.settle = undefined;
  return settle;
}

/** @param {number | null} one @param {number | null} other */
function highest(one, other) {
  return one === null || other === null ? (one ?? other) : Math.max(one, other);
}

/** @param {{ error: Error }} end @returns {never} */
function raise({ error }) {
  throw error;
}
