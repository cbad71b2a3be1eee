/**
 * Events of a Halley server as a stream (`GET /events`), by `fetch`: unlike a browser's `EventSource` it sends a token in
 * a header, is in Node too, says why a stream has ended, and is read at the pace of its reader.
 */

import { Backoff } from "./backoff.js";
import { call } from "./callbacks.js";
import { endpoint } from "./endpoint.js";
import { checkPlatform } from "./platform.js";
import { ServerSentEvents } from "./server-sent-events.js";
import { Tokens } from "./tokens.js";
import { abortedWith, pause } from "./waits.js";

const HEAD_MS = 30_000; // for the head of the response; a server may read its history before that
const SILENCE_MS = 60_000; // four times as long as a server is silent (`events.alive_s`); then the connection is lost
const RETRY_MS = 1_000; // until the server says when to come back
const TEXT_CHARS = 500; // of a response that is not a stream
const PASSING = [408, 425, 429]; // statuses that another time may be another one, as all from 500 on

/**
 * An event of a channel.
 *
 * @template [T=unknown]
 * @typedef {object} StreamedEvent
 * @property {string} channel
 * @property {T} data
 * @property {number | null} position its place in the server's history; null if it is not recorded
 * @property {string} time when it was published (RFC 3339)
 * @property {number} publication its id, also where it is not recorded
 * @property {string} protocol that of its publisher, such as `bayeux` or `http`
 * @property {{ type: string, time: number }} [nt4] of a value of NetworkTables: its type, and its time in microseconds
 * @property {Record<string, unknown>} [ext] what its publisher has added for subscribers
 */

/**
 * Positions whose events are missing.
 *
 * @typedef {object} Gap
 * @property {number} from the first one that is missing; or, `ahead`, the position that the server's log does not have
 * @property {number} to the last one; or, `ahead`, the position after which it goes on
 * @property {"expired" | "lost" | "unsearched" | "ahead"} reason `expired`: the server no longer has them; `lost`: it has
 *   lost them by damage; `unsearched`: it has not searched them for the `last` events; `ahead`: its log is another one than
 *   that of the position, or was restored, and what follows is what is new
 */

/**
 * A connection that was lost, or could not be made.
 *
 * @typedef {object} Loss
 * @property {Error} error why
 * @property {number} retryMs after how many ms it is tried again
 */

/**
 * @typedef {object} StreamOptions
 * @property {readonly string[]} channels channels or patterns, at most 16; an event that matches several comes once
 * @property {number} [after] begin with what is kept after this position; 0: with all that is kept
 * @property {number} [last] begin with this number of events before those that are new
 * @property {import("./tokens.js").Token} [token] a token, or a function that returns one, also by a promise; it is called
 *   for each connection, with null, or with the server's reason if it has refused the token before, as `token_expired`
 * @property {AbortSignal} [signal] ends the stream: reading rejects with the reason of the signal
 * @property {() => void} [onOpen] called each time that the server begins to send
 * @property {(loss: Loss) => void} [onLost] called each time that the connection is lost, or cannot be made
 * @property {(gap: Gap) => void} [onGap] called between the events where events are missing
 */

/**
 * The server has ended a stream, or refused it, and would do so again.
 *
 * `status` is that of the HTTP response: 401 or 403 without the right to subscribe, 200 for a stream that has begun.
 * `reason` is what the server has said: of a stream that has begun `token_expired`, `denied` by changed rights, or
 * `slow_consumer`.
 */
export class StreamError extends Error {
  /** @param {string} text @param {number} status @param {string} reason */
  constructor(text, status, reason) {
    super(text);
    this.name = "StreamError";
    this.status = status;
    this.reason = reason;
  }
}

/**
 * Read the events of channels.
 *
 *     for await (const { channel, data, position } of eventStream("http://127.0.0.1:8080", { channels: ["/orders/**"] })) {
 *       console.log(position, channel, data);
 *     }
 *
 * It does not end by itself. A connection that is lost is made again, and continues after the last position: each
 * recorded event comes once and in order. Leaving the loop closes the connection.
 *
 * @template [T=unknown]
 * @param {string} url the server's, such as `https://example.org/`
 * @param {StreamOptions} options
 * @returns {EventStream<T>}
 * @throws {TypeError} if an argument is wrong
 */
export function eventStream(url, options) {
  return new EventStream(url, options);
}

/**
 * An iterable of events, which is read once; `eventStream` makes it. Reading rejects with a `StreamError` if the server
 * ends the stream for good.
 *
 * @template [T=unknown]
 * @implements {AsyncIterable<StreamedEvent<T>>}
 */
export class EventStream {
  /** @type {number | null} */
  #position;
  #options;
  #signal;
  #tokens;
  #url;
  #log = ""; // the id of the log that positions belong to
  #retryMs = RETRY_MS;
  #isRead = false;

  /** @param {string} url @param {StreamOptions} options */
  constructor(url, options) {
    checkPlatform();
    checkOptions(options);
    this.#position = options.after ?? null;
    this.#options = options;
    this.#signal = options.signal ?? new AbortController().signal;
    this.#tokens = new Tokens(options.token ?? "");
    this.#url = endpoint(url, "events");
    for (const channel of options.channels) this.#url.searchParams.append("channel", channel);
  }

  /**
   * The position after which another stream would continue; null while it is not known, or if there is no history.
   *
   * @returns {number | null}
   */
  get position() {
    return this.#position;
  }

  /** @returns {AsyncGenerator<StreamedEvent<T>, never, void>} */
  [Symbol.asyncIterator]() {
    if (this.#isRead) throw new TypeError("a stream is read once: make another one, which can continue at its position");
    this.#isRead = true;
    return this.#events();
  }

  /** @returns {AsyncGenerator<StreamedEvent<T>, never, void>} */
  async *#events() {
    const backoff = new Backoff();
    for (;;) {
      const error = yield* this.#connection(backoff);
      const loss = await this.#lossBy(error, backoff);
      call(this.#options.onLost, loss);
      await pause(loss.retryMs, this.#signal);
    }
  }

  /**
   * One connection: yields its events, and returns the error that has ended it. Throws the reason of the signal.
   *
   * @param {Backoff} backoff reset once the server serves the stream
   * @returns {AsyncGenerator<StreamedEvent<T>, Error, void>}
   */
  async *#connection(backoff) {
    const { controller, release } = abortedWith(this.#signal);
    let blocks = 0;
    try {
      for await (const block of blocksOf(await this.#open(controller), controller)) {
        this.#signal.throwIfAborted();
        blocks += 1;
        if (blocks > 1) backoff.reset(); // a server that has no room sends the first one, too
        const event = this.#take(block);
        if (event) yield event;
      }
      return new Error("the server has closed the connection");
    } catch (error) {
      this.#signal.throwIfAborted();
      return error;
    } finally {
      controller.abort();
      release();
    }
  }

  /** Send the request, and return the body of its response. @param {AbortController} controller */
  async #open(controller) {
    const url = new URL(this.#url);
    const token = await this.#tokens.next();
    /** @type {Record<string, string>} */
    const headers = { Accept: "text/event-stream" };
    if (token) headers.Authorization = `Bearer ${token}`;
    if (this.#position !== null) headers["Last-Event-ID"] = String(this.#position);
    else if (this.#options.last !== undefined) url.searchParams.set("last", String(this.#options.last));
    if (this.#position !== null && this.#log) url.searchParams.set("log", this.#log);
    const response = await ended(HEAD_MS, controller, "no response", async () => {
      const { signal } = controller;
      return fetch(url, { headers, signal, cache: "no-store" }).catch((cause) => {
        throw signal.aborted ? cause : new Error("the server cannot be reached", { cause });
      });
    });
    const { status } = response;
    if (PASSING.includes(status) || status >= 500) {
      this.#retryMs = 1_000 * Number(response.headers.get("Retry-After")) || this.#retryMs;
      throw new Error(`the server responded with HTTP ${status}`);
    }
    if (status !== 200) {
      const text = (await ended(HEAD_MS, controller, "no response", () => response.text())).slice(0, TEXT_CHARS);
      throw new StreamError(`the server responded with HTTP ${status}: ${text}`, status, text);
    }
    if (!response.body || !response.headers.get("Content-Type")?.startsWith("text/event-stream")) {
      throw new StreamError("the response is not a stream of events: is it the URL of a Halley server?", status, "");
    }
    this.#log = response.headers.get("Halley-Log") ?? "";
    call(this.#options.onOpen);
    return response.body;
  }

  /**
   * Note what a block says, and return its event, if it has one. Throws a `StreamError` if it is the end.
   *
   * @param {import("./server-sent-events.js").Block} block
   * @returns {StreamedEvent<T> | undefined}
   */
  #take({ event, data, id, retryMs }) {
    if (id) this.#position = Number(id);
    if (retryMs !== null) this.#retryMs = retryMs;
    if (data === null) return undefined;
    const value = parsed(data);
    if (event === "message") return value;
    if (event === "gap") call(this.#options.onGap, value);
    if (event === "end") throw new StreamError(`the server has ended the stream: ${value.reason}`, 200, value.reason);
    return undefined; // other events are those of a later version
  }

  /**
   * What the loss of a connection means: when it is tried again. Throws the error if the server would do the same again.
   *
   * @param {Error} error
   * @param {Backoff} backoff
   * @returns {Promise<Loss>}
   */
  async #lossBy(error, backoff) {
    if (!(error instanceof StreamError)) return { error, retryMs: Math.max(this.#retryMs, backoff.next(false)) };
    if (!isAboutToken(error)) throw error;
    /** @type {boolean} */
    let hasToken;
    try {
      hasToken = await this.#tokens.renew(error.reason);
    } catch (failure) {
      return { error: failure, retryMs: Math.max(this.#retryMs, backoff.next(false)) };
    }
    if (!hasToken) throw error;
    return { error, retryMs: backoff.next(true) };
  }
}

/** Whether another token may help. @param {StreamError} error */
function isAboutToken({ status, reason }) {
  return status === 401 || status === 403 || reason === "token_expired" || reason === "denied";
}

/**
 * The blocks of a body, as they come.
 *
 * @param {ReadableStream<Uint8Array>} body
 * @param {AbortController} controller
 */
async function* blocksOf(body, controller) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const parser = new ServerSentEvents();
  for (;;) {
    const { done, value } = await ended(SILENCE_MS, controller, "nothing was received", () => reader.read());
    if (done) return;
    yield* blocksIn(parser, decoder.decode(value, { stream: true }));
  }
}

/** @param {ServerSentEvents} parser @param {string} text */
function blocksIn(parser, text) {
  try {
    return parser.push(text);
  } catch (error) {
    throw new StreamError(error.message, 200, ""); // it would come again
  }
}

/** @param {string} data */
function parsed(data) {
  try {
    return JSON.parse(data);
  } catch {
    throw new StreamError("the server has sent an event that is not JSON", 200, "");
  }
}

/**
 * Wait for a part of a response, at most `ms`; then end the connection with an error.
 *
 * @template T
 * @param {number} ms
 * @param {AbortController} controller
 * @param {string} missing
 * @param {() => Promise<T>} read
 * @returns {Promise<T>}
 */
async function ended(ms, controller, missing, read) {
  const timer = setTimeout(() => controller.abort(new Error(`${missing} within ${ms / 1000} s`)), ms);
  try {
    return await read();
  } finally {
    clearTimeout(timer);
  }
}

/** @param {StreamOptions} options */
function checkOptions({ channels, after, last }) {
  if (!Array.isArray(channels) || !channels.length || channels.some((channel) => !String(channel).startsWith("/"))) {
    throw new TypeError('channels: expected a list of channels or patterns, such as ["/orders/**"]');
  }
  if (after !== undefined && last !== undefined) throw new TypeError("expected one of after and last, not both");
  if (after !== undefined && !isCount(after)) throw new TypeError("after: expected a position, a whole number from 0 on");
  if (last !== undefined && !isCount(last)) throw new TypeError("last: expected a number of events, from 0 on");
}

/** @param {number} value */
function isCount(value) {
  return Number.isSafeInteger(value) && value >= 0;
}
