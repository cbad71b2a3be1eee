/**
 * A Bayeux 1.0 client for browsers and Node: over a WebSocket, or by long-polling over `fetch` where there is none. It
 * does not depend on the program that uses it. `HalleyClient` is the same with a callback for each subscription.
 *
 *     import { Bayeux } from "./client/bayeux.js";
 *
 *     const bayeux = new Bayeux("/bayeux");
 *     bayeux.addEventListener("message", ({ detail }) => console.log(detail.channel, detail.data));
 *     bayeux.subscribe("/chat/*");
 *     bayeux.connect();
 *     await bayeux.publish("/chat/hall", { text: "Hello" }); // once it is connected
 *     await bayeux.disconnect();
 *
 * At most two requests are under way at a time, as Bayeux prescribes: one `/meta/connect`, which the server holds until
 * there are events, and one for all other messages. Messages that are sent in the same turn of the event loop, or while
 * such a request is under way, share one request. A request is a frame of the WebSocket, or a POST.
 *
 * Where a proxy does not let WebSockets through, the session goes on by long-polling, and a WebSocket is tried again
 * after ten minutes.
 *
 * Subscriptions outlive sessions: after a restart of the server they are made again. Events that were sent over a
 * connection that broke are not lost, since the server repeats events that the next connect does not acknowledge
 * (`ext.ack`). Events that were published while there was no session are lost, except to subscriptions that replay: a
 * later session continues where the one before stopped. A publish whose request failed is rejected and not repeated,
 * because the client cannot know whether it arrived.
 *
 * It dispatches these events:
 *
 * - `change`: one of the public properties has changed
 * - `message`: an event was received; `detail` is `{ channel, data }` and, if the server adds it, `ext`
 * - `refused`: the server refused a subscription, or has ended it; `detail` is `{ channel, error }`
 * - `missed`: events of a replay are not in the history; `detail` is `{ channel, first, last, reason }`: their positions,
 *   and `expired` if they were there; or `ahead` if the position `first` is not in this log, and the subscription goes on
 *   with what is new, after the position `last`
 */

import { Backoff } from "./backoff.js";
import { BayeuxError, post } from "./long-polling.js";
import { checkPlatform } from "./platform.js";
import { Tokens } from "./tokens.js";
import { Socket } from "./websocket.js";

export { BayeuxError };

const NETWORK_MS = 10_000; // the time for a response, in addition to the time for which the server holds the request
const WAITING_MESSAGES = 1_000; // the maximum number of messages that wait to be sent; more are rejected
const BATCH_MESSAGES = 100; // the maximum number in one request; servers limit it
const PROOF_MS = 5_000; // in which a WebSocket is opened, and brings its first reply; else it is blocked
// For how long no WebSocket is tried where one was blocked and POST works: after one that has worked, the first time is
// short and each next twice as long, since a network that is lost as a WebSocket opens looks the same.
const BLOCKED_MS = 600_000;
const LOST_MS = 10_000;
const FRAME_CHARS = 20_000; // at most 60,000 bytes; some servers close the connection for a message of more than 64 KiB
const ONLY_NEW = -1; // in place of a position, as ALL
const ALL = -2;
const TOKEN_REFUSED = /^403:(token_\w+):handshake_denied$|^403::(token_expired)$/; // the second ends a session
const UNREAD = [1002, 1003, 1007, 1009]; // closing codes for a frame of which nothing was done; by POST the reply says why

/** A message, as Bayeux names its fields. @typedef {Record<string, any>} Message */
/** @typedef {Parameters<typeof post>[2]} Options */
/** @typedef {"auto" | "websocket" | "long-polling"} Transport */
/** @typedef {{ reason: "expired" | "ahead", first: number }} Missing */
/**
 * @typedef {{
 *   askedOf: string | null, grantedIn: string | null, ext?: Record<string, any>, news?: object, missing?: Missing
 * }} Subscription
 */
/** @typedef {{ message: Message, resolve: (reply: Message) => void, reject: (error: Error) => void }} Waiting */

/**
 * The advice before the server has given any, and the value of each field that the server omits.
 *
 * @typedef {{ reconnect: "retry" | "handshake" | "none", interval: number, timeout: number }} Advice times in ms
 * @type {Readonly<Advice>}
 */
const ADVICE = Object.freeze({ reconnect: "retry", interval: 0, timeout: 60_000 });

export class Bayeux extends EventTarget {
  /** @type {"disconnected" | "connecting" | "connected" | "reconnecting"} */
  state = "disconnected";
  /** The session's clientId. @type {string | null} */
  session = null;
  /** The server's latest advice. @type {Advice} */
  advice = ADVICE;
  /** The error that broke or ended the connection. @type {Error | null} */
  error = null;
  /** The time of the next attempt after a failure, in ms since the epoch. */
  retryAt = 0;

  /** Ends everything from connect() to disconnect(). @type {AbortController | null} */
  #life = null;
  #tokens;
  #resume;
  /** @type {Transport} */
  #allowed;
  /** @type {Socket | null} */
  #socket = null;
  #isBlocked = false; // WebSockets are, if POST works
  #blockedUntil = 0; // ms since the epoch
  #blockedMs = BLOCKED_MS; // from the next time on
  #hurry = () => {}; // ends the pause before the next attempt
  /**
   * By pattern: the session that was asked and the one that has granted it, all of `ext`, and the part of it that is not
   * granted yet; and what the server did not have of it.
   *
   * @type {Map<string, Subscription>}
   */
  #subscriptions = new Map();
  /** The id of the log that positions belong to. @type {string | undefined} */
  #log;
  /** The number of the last batch received, or null if the server does not number batches. @type {number | null} */
  #ack = null;
  /** Not yet sent. @type {Waiting[]} */
  #waiting = [];
  #isSending = false;
  #lastId = 0;

  /**
   * @param {string} url the server's Bayeux endpoint, absolute or relative to the page
   * @param {{ token?: import("./tokens.js").Token, transport?: Transport, resume?: boolean }} options `token` is asked
   *   for at each handshake, and once more if the server refuses what it has given; it is an empty string if the client
   *   has none. `transport` is `auto`: a WebSocket where there is one, else long-polling. With `resume` all subscriptions
   *   replay, from what is new on unless they say otherwise, and data has no positions added.
   */
  constructor(url, { token = "", transport = "auto", resume = false } = {}) {
    super();
    checkPlatform();
    this.url = url;
    this.#tokens = new Tokens(token);
    this.#resume = resume;
    this.#allowed = transport;
  }

  /** How it is connected. @returns {"websocket" | "long-polling"} */
  get transport() {
    return this.#socket?.isOpen || this.#allowed === "websocket" ? "websocket" : "long-polling";
  }

  /** Connect, and stay connected until `disconnect`. While reconnecting: try now. */
  connect() {
    if (this.#life) {
      this.#hurry();
      return;
    }
    this.#life = new AbortController();
    this.#run(this.#life.signal);
  }

  /** Disconnect and end the session; subscriptions are kept for the next `connect`. */
  async disconnect() {
    const { session } = this;
    this.#stop();
    if (session === null) return;
    const options = { timeoutMs: NETWORK_MS, keepalive: true }; // it may outlive the page
    // If this fails, the session expires on the server.
    await this.#exchange([{ channel: "/meta/disconnect" }], session, options).catch(() => {});
  }

  /** The patterns that are subscribed to or will be once there is a session. @returns {string[]} */
  get subscriptions() {
    return [...this.#subscriptions.keys()];
  }

  /** Whether the server has granted the subscription in the current session, as it is now. @param {string} pattern */
  isGranted(pattern) {
    const subscription = this.#subscriptions.get(pattern);
    return this.session !== null && subscription?.grantedIn === this.session && subscription.news === undefined;
  }

  /**
   * The position up to which a subscription that replays has all events; null if that is not known yet.
   *
   * @param {string} pattern
   * @returns {number | null}
   */
  reached(pattern) {
    const position = this.#subscriptions.get(pattern)?.ext?.replay?.[pattern] ?? ONLY_NEW;
    return position < 0 ? null : position;
  }

  /** The patterns whose subscriptions replay: a later session continues where this one stopped. @returns {string[]} */
  get replayed() {
    return this.subscriptions.filter((pattern) => this.#subscriptions.get(pattern)?.ext?.replay);
  }

  /**
   * Subscribe to a channel or a pattern, in this session and in later ones. An existing subscription is requested again
   * only if `ext` is given.
   *
   * @param {string} pattern
   * @param {object} [ext] the extension of the subscribe message. With `{ replay: { [pattern]: position } }` the
   *   recorded events after that position are delivered first; a later session continues where this one stopped.
   */
  subscribe(pattern, ext) {
    const known = this.#subscriptions.get(pattern);
    if (known && !ext) return;
    // A position that the program gives is of the log that the server has.
    if (known) Object.assign(known, { askedOf: null, ext: { ...known.ext, replay_log: undefined, ...ext }, news: ext });
    else this.#subscriptions.set(pattern, { askedOf: null, grantedIn: null, ext });
    this.#emit("change");
    this.#askFor(pattern);
  }

  /** Remove a member of `ext` from later sessions' subscribe message. @param {string} pattern @param {string} name */
  omit(pattern, name) {
    const subscription = this.#subscriptions.get(pattern);
    if (subscription?.ext) subscription.ext = { ...subscription.ext, [name]: undefined }; // omitted from JSON
  }

  /** Unsubscribe. Rejects with a `BayeuxError` if the request fails. @param {string} pattern */
  async unsubscribe(pattern) {
    const subscription = this.#subscriptions.get(pattern);
    if (!subscription) return;
    this.#subscriptions.delete(pattern);
    this.#emit("change");
    if (this.session === null || subscription.askedOf !== this.session) return;
    await this.#send({ channel: "/meta/unsubscribe", subscription: pattern });
  }

  /**
   * Publish. Resolves with the server's reply; rejects with a `BayeuxError`, whose `isOutcomeUnknown` says whether the
   * data may be published all the same.
   *
   * @param {string} channel
   * @param {unknown} data any JSON value
   * @param {object} [ext] the extension of the message, such as `{ idempotency_key }`
   */
  async publish(channel, data, ext) {
    if (this.session === null) throw new BayeuxError("not connected");
    return this.#send({ channel, data, ext });
  }

  // The life of a connection

  async #run(/** @type {AbortSignal} */ life) {
    const backoff = new Backoff();
    this.#become("connecting");
    while (!life.aborted) {
      let error = await this.#attempt(life);
      const { reconnect, interval } = this.advice;
      let isForgotten = reconnect === "handshake";
      let isOver = reconnect === "none" || interval < 0;
      const refused = refusedToken(error);
      if (refused) {
        try {
          if (await this.#tokens.renew(refused)) [isForgotten, isOver] = [true, false];
        } catch (failure) {
          [error, isOver] = [failure, false]; // the next attempt asks for a token again
        }
      }
      if (life.aborted) return;
      if (isOver) {
        this.#stop(error ?? new BayeuxError("the server has ended the session"));
        return;
      }
      const isBroken = error !== null || isForgotten;
      if (isForgotten) this.session = null;
      if (!isBroken && this.state === "connected") backoff.reset();
      const pauseMs = Math.max(interval, isBroken ? backoff.next(isForgotten) : 0);
      if (isBroken) this.#become("reconnecting", error, Date.now() + pauseMs);
      if (pauseMs > 0) await this.#pause(pauseMs, life);
    }
  }

  /** Send one handshake or one connect. @param {AbortSignal} life @returns {Promise<Error | null>} */
  async #attempt(life) {
    try {
      await this.#open(life);
      await (this.session === null ? this.#handshake(life) : this.#poll(life));
      return null;
    } catch (error) {
      return error;
    }
  }

  /** Open a WebSocket, unless there is one or should be none. */
  async #open(/** @type {AbortSignal} */ signal) {
    if (this.#socket?.isOpen || this.#allowed === "long-polling" || Date.now() < this.#blockedUntil) return;
    const receive = (/** @type {Message[]} */ messages) => this.#deliver(messages);
    this.#socket = await Socket.open(this.url, receive, { timeoutMs: PROOF_MS, signal });
    this.#isBlocked = this.#socket === null;
    signal.throwIfAborted();
    if (this.#isBlocked && this.#allowed === "websocket") throw new BayeuxError("the server cannot be reached");
  }

  async #handshake(/** @type {AbortSignal} */ life) {
    this.advice = ADVICE; // the advice to an earlier session no longer applies
    const supportedConnectionTypes = this.#allowed === "auto" ? ["websocket", "long-polling"] : [this.#allowed];
    const token = await this.#tokens.next();
    life.throwIfAborted();
    const replay = this.#resume ? { in_data: false } : undefined;
    const ext = { ack: true, authentication: token || undefined, replay }; // omitted from JSON if undefined
    const request = { channel: "/meta/handshake", version: "1.0", supportedConnectionTypes, ext };
    const reply = await this.#ask(request, { timeoutMs: NETWORK_MS, signal: life });
    this.session = reply.clientId;
    this.#ack = reply.ext?.ack ? (reply.ext.ack.batch ?? 0) : null;
    this.#log = reply.ext?.replay_log;
    this.#askForAll();
    this.#flush();
  }

  async #poll(/** @type {AbortSignal} */ life) {
    // Not held by the server, so that its reply proves the connection.
    const isFirst = this.state !== "connected" || this.#socket?.isProven === false;
    /** @type {Message} */
    const request = { channel: "/meta/connect", connectionType: this.transport };
    if (isFirst) request.advice = { timeout: 0 };
    if (this.#ack !== null) request.ext = { ack: this.#ack };
    const timeoutMs = (isFirst ? 0 : this.advice.timeout) + NETWORK_MS;
    const reply = await this.#ask(request, { timeoutMs, signal: life });
    if (this.#ack !== null) this.#ack = reply.ext?.ack ?? this.#ack;
    this.#remember(reply.ext?.replay ?? {});
    for (const [channel, [first, last]] of Object.entries(reply.ext?.replay_gap ?? {})) {
      this.#emit("missed", { channel, first, last, reason: "expired" });
    }
    this.#become("connected");
    this.#askForAll(); // for those whose request failed
  }

  /** @param {Error | null} error */
  #stop(error = null) {
    this.#life?.abort();
    this.#life = this.#socket = null;
    this.session = null;
    for (const { reject } of this.#waiting.splice(0)) reject(new BayeuxError("disconnected"));
    this.#become("disconnected", error);
  }

  /** @param {Bayeux["state"]} state @param {Error | null} error */
  #become(state, error = null, retryAt = 0) {
    Object.assign(this, { state, error, retryAt });
    this.#emit("change");
  }

  /** @param {string} type @param {object | null} detail */
  #emit(type, detail = null) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }

  async #pause(/** @type {number} */ ms, /** @type {AbortSignal} */ life) {
    await new Promise((/** @type {(value?: any) => void} */ resolve) => {
      const timer = setTimeout(resolve, ms);
      this.#hurry = () => (clearTimeout(timer), resolve());
      life.addEventListener("abort", this.#hurry, { once: true });
    });
    life.removeEventListener("abort", this.#hurry);
    this.#hurry = () => {};
  }

  // Subscriptions

  #askForAll() {
    for (const pattern of this.#subscriptions.keys()) this.#askFor(pattern);
  }

  /** Request a subscription in this session, unless it has been requested. */
  async #askFor(/** @type {string} */ pattern) {
    const { session } = this;
    const subscription = this.#subscriptions.get(pattern);
    if (session === null || !subscription || subscription.askedOf === session) return;
    subscription.askedOf = session;
    const { news } = subscription;
    const ext = subscription.grantedIn === session ? news : subscription.ext;
    try {
      const reply = await this.#send({ channel: "/meta/subscribe", subscription: pattern, ext });
      subscription.grantedIn = session;
      if (subscription.news === news) subscription.news = undefined;
      if (this.session === session) this.#place(pattern, reply.ext?.replay?.[pattern]);
    } catch (error) {
      const isWanted = this.#subscriptions.get(pattern) === subscription;
      if (!isWanted || this.session !== session) return;
      subscription.askedOf = null;
      if (!error.reply || error.message.startsWith("402:")) return; // the next connect or session requests it again
      const start = error.reply.ext?.replay_start?.[pattern];
      if (start !== undefined && this.#skip(pattern, subscription, start)) return;
      this.#subscriptions.delete(pattern);
      this.#emit("refused", { channel: pattern, error });
    }
    this.#emit("change");
  }

  /** Drop a subscription that the server has ended, since it would refuse it in the next session. */
  #giveUp(/** @type {string} */ pattern) {
    if (!this.#subscriptions.delete(pattern)) return;
    this.#emit("refused", { channel: pattern, error: new BayeuxError("no longer allowed: the server has ended it") });
    this.#emit("change");
  }

  /** Remember how far replays are, so that a later session continues there. */
  #remember(/** @type {Record<string, number>} */ reached) {
    for (const [pattern, position] of Object.entries(reached)) {
      const subscription = this.#subscriptions.get(pattern);
      if (!subscription || !(this.#resume || subscription.ext?.replay)) continue;
      subscription.ext = { ...subscription.ext, replay: { [pattern]: position }, replay_log: this.#log };
    }
  }

  /**
   * Remember where a granted subscription begins, unless a connect has brought it further, and report what is missing.
   *
   * @param {string} pattern
   * @param {number} [position] as the server's reply has it, if the subscription replays
   */
  #place(pattern, position) {
    const subscription = this.#subscriptions.get(pattern);
    if (!subscription || position === undefined) return;
    if (this.reached(pattern) === null) this.#remember({ [pattern]: position });
    const { missing } = subscription;
    subscription.missing = undefined;
    if (missing) this.#emit("missed", { channel: pattern, ...missing, last: position });
  }

  /**
   * Go on where the log begins, or with what is new, since the server does not have the position of a subscription.
   *
   * @param {string} pattern
   * @param {Subscription} subscription
   * @param {number} start the first position that the server has
   * @returns {boolean} false if it was not a position
   */
  #skip(pattern, subscription, start) {
    const after = this.reached(pattern);
    if (after === null) return false;
    const isExpired = after + 1 < start && [undefined, this.#log].includes(subscription.ext?.replay_log);
    subscription.missing ??= isExpired ? { reason: "expired", first: after + 1 } : { reason: "ahead", first: after };
    this.subscribe(pattern, { replay: { [pattern]: isExpired ? ALL : ONLY_NEW } });
    return true;
  }

  // Requests

  /** Send a message with the next request that is not a connect. @param {Message} message @returns {Promise<Message>} */
  #send(message) {
    if (this.#waiting.length >= WAITING_MESSAGES) return Promise.reject(new BayeuxError("too many unsent messages"));
    const answer = new Promise((resolve, reject) => this.#waiting.push({ message, resolve, reject }));
    this.#flush();
    return answer;
  }

  async #flush() {
    if (this.#isSending) return;
    this.#isSending = true;
    await null; // until the end of this turn of the event loop, so that its messages share one request
    while (this.session !== null && this.#waiting.length) await this.#sendBatch(this.#waiting.splice(0, BATCH_MESSAGES));
    this.#isSending = false;
  }

  async #sendBatch(/** @type {Waiting[]} */ batch) {
    try {
      const messages = batch.map(({ message }) => message);
      const replies = await this.#exchange(messages, this.session, { timeoutMs: NETWORK_MS });
      for (const [index, { resolve, reject }] of batch.entries()) {
        const reply = replies[index];
        if (reply?.successful) resolve(reply);
        else reject(refusal(reply));
      }
    } catch (error) {
      for (const { reject } of batch) reject(error);
    }
  }

  /** Send a handshake or connect; returns the reply. Throws a `BayeuxError` unless it is successful. */
  async #ask(/** @type {Message} */ message, /** @type {Options} */ options) {
    const [reply] = await this.#exchange([message], this.session, { ...options, isPoll: true });
    if (!reply?.successful) throw refusal(reply);
    return reply;
  }

  /** Send one request; returns the reply to each message, adopts their advice, and delivers the events received. */
  async #exchange(
    /** @type {Message[]} */ messages,
    /** @type {string | null} */ session,
    /** @type {Options & { isPoll?: boolean }} */ options,
  ) {
    const clientId = session ?? undefined; // omitted from JSON if undefined
    /** @type {Message[]} */
    const sent = messages.map((message) => ({ ...message, clientId, id: String((this.#lastId += 1)) }));
    const answers = await this.#carry(sent, options);
    /** @type {(answer: Message, message: Message) => boolean} */
    const isReply = (answer, { id, channel }) => "successful" in answer && answer.id === id && answer.channel === channel;
    const replies = sent.map((message) => answers.find((answer) => isReply(answer, message)));
    if (session !== this.session) return replies; // an earlier session's advice and events are no longer ours
    for (const reply of replies) {
      // New advice replaces all of the old; advice for this transport takes precedence over advice for all.
      if (reply?.advice) this.advice = { ...ADVICE, ...reply.advice, ...reply.advice[this.transport] };
    }
    this.#deliver(answers.filter((answer) => !replies.includes(answer)));
    return replies;
  }

  /** Send messages by the WebSocket, if there is one and it has proved itself by a poll, else by POST. */
  async #carry(
    /** @type {Message[]} */ messages,
    /** @type {Options & { isPoll?: boolean }} */ { isPoll = false, ...options },
  ) {
    const socket = this.#socket;
    const isShort = JSON.stringify(messages).length <= FRAME_CHARS;
    if (socket?.isOpen && (isPoll || (socket.isProven && isShort))) {
      try {
        const replies = await socket.exchange(messages, socket.isProven ? options : { ...options, timeoutMs: PROOF_MS });
        this.#blockedMs = LOST_MS;
        return replies;
      } catch (error) {
        options.signal?.throwIfAborted();
        if (isPoll) socket.close();
        const isUnread = !isPoll && UNREAD.includes(error.cause?.code);
        if (this.#allowed === "websocket" || (socket.isProven && !isUnread)) throw error;
        this.#isBlocked ||= isPoll;
      }
    }
    const answers = await post(this.url, messages, options);
    if (isPoll && this.#isBlocked) {
      this.#isBlocked = false; // till one has been tried again
      this.#blockedUntil = Date.now() + this.#blockedMs;
      this.#blockedMs = Math.min(2 * this.#blockedMs, BLOCKED_MS);
    }
    return answers;
  }

  /** Deliver what is not a reply to a request. */
  #deliver(/** @type {Message[]} */ messages) {
    for (const message of messages) {
      if ("data" in message && !message.channel.startsWith("/meta/")) this.#emit("message", message);
      else if (message.channel === "/meta/unsubscribe" && message.ext?.revoked) this.#giveUp(message.subscription);
    }
  }
}

/** @param {Message} [reply] */
function refusal(reply) {
  return new BayeuxError(reply?.error ?? "the server did not reply", reply);
}

/** Why the server has refused a token; undefined if an error is not about that. @param {Error | null} error */
function refusedToken(error) {
  const [, ofHandshake, ofSession] = TOKEN_REFUSED.exec(error?.message ?? "") ?? [];
  return ofHandshake ?? ofSession;
}
