/**
 * A WebSocket with Bayeux messages: requests with their replies, and what comes by itself. It does not depend on sessions.
 */

import { BayeuxError } from "./long-polling.js";

/** @typedef {import("./bayeux.js").Message} Message */
/** @typedef {Parameters<typeof import("./long-polling.js").post>[2]} Options */
/** @typedef {{ ids: Set<string>, replies: Message[], resolve: (replies: Message[]) => void, reject: (error: unknown) => void }} Exchange */

export class Socket {
  /** Whether a message was received: some proxies open a WebSocket, and pass nothing on. */
  isProven = false;

  #socket;
  #receive;
  /** Those that wait for replies. @type {Set<Exchange>} */
  #exchanges = new Set();

  /**
   * Open a WebSocket; null if that fails, or takes longer than `timeoutMs`. It is closed once `signal` is aborted.
   *
   * @param {string} url of the server's Bayeux endpoint
   * @param {(messages: Message[]) => void} receive called with what is not a reply to a request
   * @param {Options & { signal: AbortSignal }} options
   * @returns {Promise<Socket | null>}
   */
  static async open(url, receive, { timeoutMs, signal }) {
    if (typeof WebSocket === "undefined") return null;
    const { href } = new URL(url, globalThis.location?.href);
    const socket = new WebSocket(href.replace(/^http/, "ws"));
    const timer = setTimeout(() => socket.close(), timeoutMs);
    const close = () => socket.close();
    signal.addEventListener("abort", close);
    const forget = () => signal.removeEventListener("abort", close);
    const isOpen = await new Promise((resolve) => {
      socket.onopen = () => resolve(true);
      socket.onclose = () => resolve(false);
    });
    clearTimeout(timer);
    if (isOpen) return new Socket(socket, receive, forget);
    forget();
    return null;
  }

  /** @param {WebSocket} socket @param {(messages: Message[]) => void} receive @param {() => void} whenClosed */
  constructor(socket, receive, whenClosed) {
    this.#socket = socket;
    this.#receive = receive;
    socket.onmessage = ({ data }) => this.#sort(data);
    socket.onclose = (event) => {
      whenClosed();
      const error = new BayeuxError("the connection was lost", null, event);
      for (const { reject } of this.#exchanges) reject(error);
    };
  }

  /** Whether messages can be sent. */
  get isOpen() {
    return this.#socket.readyState === WebSocket.OPEN;
  }

  close() {
    this.#socket.close();
  }

  /**
   * Send messages in one frame, and return their replies in any order. Throws as `post` does; if the WebSocket was
   * closed, the `cause` of the error is the event, which has the `code`.
   *
   * @param {Message[]} messages
   * @param {Options} options
   * @returns {Promise<Message[]>}
   */
  async exchange(messages, { timeoutMs, signal }) {
    /** @type {Exchange | undefined} */
    let exchange;
    let timer;
    const abort = () => exchange?.reject(signal?.reason);
    signal?.addEventListener("abort", abort);
    try {
      return await new Promise((resolve, reject) => {
        exchange = { ids: new Set(messages.map(({ id }) => id)), replies: [], resolve, reject };
        this.#exchanges.add(exchange);
        const late = `no response within ${timeoutMs / 1000} s`;
        timer = setTimeout(() => reject(new BayeuxError(late, null, new Error(late))), timeoutMs);
        this.#socket.send(JSON.stringify(messages));
      });
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", abort);
      if (exchange) this.#exchanges.delete(exchange);
    }
  }

  /** Events come before the replies of their frame, so they are delivered before these. @param {string} data */
  #sort(data) {
    /** @type {Message[]} */
    let messages;
    try {
      messages = [JSON.parse(data)].flat();
    } catch {
      this.close(); // it does not speak Bayeux
      return;
    }
    this.isProven = true;
    const replies = new Map(messages.map((message) => [message, this.#exchangeOf(message)]));
    this.#receive(messages.filter((message) => !replies.get(message)));
    for (const [message, exchange] of replies) {
      if (!exchange) continue;
      exchange.ids.delete(message.id);
      exchange.replies.push(message);
      if (!exchange.ids.size) exchange.resolve(exchange.replies);
    }
  }

  /** The exchange that waits for this message. @param {Message} message */
  #exchangeOf(message) {
    return "successful" in message && [...this.#exchanges].find(({ ids }) => ids.has(message.id));
  }
}
