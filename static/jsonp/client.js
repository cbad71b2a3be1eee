/**
 * A Bayeux client over callback-polling (JSONP), which uses script elements only. It does not depend on the page.
 *
 * A request is a script whose URL ends in `?message=<JSON>&jsonp=<function>`; the response is a script that calls the
 * function with an array of messages. One connect is always held by the server; all other messages are sent one request
 * at a time in addition to it. This is a plain script, since browsers do not load modules from `file:` URLs; its
 * globals are `JsonpClient` and `halleyJsonp`, which holds the functions that responses call.
 */
"use strict";

const halleyJsonp = {};

class JsonpClient {
  static #NETWORK_MS = 10_000; // the time for a response, in addition to the time for which the server holds a request
  static #URL_CHARS = 2_000; // some browsers and proxies cut longer URLs
  static #ADVICE = { reconnect: "retry", interval: 0, timeout: 60_000 };
  static #BACKOFF_MOST_MS = 60_000;

  /** @type {"disconnected" | "connecting" | "connected" | "reconnecting"} */
  state = "disconnected";
  /** The session's clientId. @type {string | null} */
  session = null;
  /** The error that broke or ended the connection. @type {Error | null} */
  error = null;
  /** The patterns that are subscribed to. */
  subscriptions = new Set();

  #server = "";
  #advice = JsonpClient.#ADVICE;
  #life = 0; // counts connects and disconnects; results that belong to an earlier count are ignored
  #lastId = 0;
  #others = Promise.resolve(); // settled when the latest request other than the connect has ended

  /**
   * `onChange()` is called when a property has changed, `onEvent(event)` for each event, and
   * `onRequest(message, answers)` with a message that was sent and the messages of the response.
   */
  constructor({ onChange, onEvent, onRequest }) {
    this.onChange = onChange;
    this.onEvent = onEvent;
    this.onRequest = onRequest;
  }

  /** Connect to the server at that URL, and stay connected until `disconnect`. */
  async connect(server) {
    const life = (this.#life += 1);
    this.#server = server;
    let failures = 0;
    this.#become("connecting");
    while (life === this.#life) {
      let error = null;
      try {
        await (this.session === null ? this.#handshake(life) : this.#hold(life));
      } catch (caught) {
        error = caught;
      }
      if (life !== this.#life) return;
      const { reconnect, interval } = this.#advice;
      if (reconnect === "none" || interval < 0) return this.#end(error);
      if (reconnect === "handshake") this.session = null;
      const isBroken = error !== null || this.session === null;
      if (isBroken) failures += 1;
      else if (this.state === "connected") failures = 0;
      if (isBroken) this.#become("reconnecting", error);
      // Partly random, so that a thousand pages do not reconnect at the same moment.
      const backoffMs = Math.min(failures * 1_000, JsonpClient.#BACKOFF_MOST_MS) * (0.5 + Math.random() / 2);
      await new Promise((resolve) => setTimeout(resolve, Math.max(interval, backoffMs)));
    }
  }

  async disconnect() {
    const goodbye = this.session === null ? null : this.#send({ channel: "/meta/disconnect" });
    this.#end(null);
    await goodbye?.catch(() => {}); // if this fails, the session expires on the server
  }

  async subscribe(subscription) {
    await this.#send({ channel: "/meta/subscribe", subscription });
    this.subscriptions.add(subscription);
    this.onChange();
  }

  async unsubscribe(subscription) {
    this.subscriptions.delete(subscription);
    this.onChange();
    if (this.session !== null) await this.#send({ channel: "/meta/unsubscribe", subscription });
  }

  async publish(channel, data) {
    await this.#send({ channel, data });
  }

  async #handshake(life) {
    this.#advice = JsonpClient.#ADVICE; // the advice to an earlier session no longer applies
    const supportedConnectionTypes = ["callback-polling"];
    const reply = await this.#exchange({ channel: "/meta/handshake", version: "1.0", supportedConnectionTypes });
    const { clientId } = reply;
    for (const subscription of this.subscriptions) {
      try {
        await this.#exchange({ channel: "/meta/subscribe", subscription, clientId });
      } catch (error) {
        if (!error.cause || error.message.startsWith("402:")) throw error; // the handshake is tried again
        this.subscriptions.delete(subscription); // refused
      }
    }
    if (life !== this.#life) return;
    this.session = clientId;
    this.onChange();
  }

  async #hold(life) {
    const message = { channel: "/meta/connect", connectionType: "callback-polling", clientId: this.session };
    const isFirst = this.state !== "connected"; // not held by the server, so that its reply proves the connection
    if (isFirst) message.advice = { timeout: 0 };
    await this.#exchange(message, (isFirst ? 0 : this.#advice.timeout) + JsonpClient.#NETWORK_MS);
    if (life === this.#life) this.#become("connected");
  }

  /** Send one message once the response to the previous one has been received. */
  #send(message) {
    const whole = { ...message, clientId: this.session };
    const sent = this.#others.then(() => this.#exchange(whole));
    this.#others = sent.catch(() => {});
    return sent;
  }

  /** Send one message; returns its reply, adopts the advice in it, and delivers the events of the same response. */
  async #exchange(message, timeoutMs = JsonpClient.#NETWORK_MS) {
    const life = this.#life;
    const id = String((this.#lastId += 1));
    const answers = await this.#ask([{ ...message, id }], timeoutMs);
    this.onRequest(message, answers);
    if (life !== this.#life) throw new Error("disconnected");
    const reply = answers.find((answer) => answer.id === id && "successful" in answer);
    if (reply?.advice) this.#advice = { ...JsonpClient.#ADVICE, ...reply.advice, ...reply.advice["callback-polling"] };
    for (const answer of answers) if (answer !== reply && "data" in answer) this.onEvent(answer);
    if (!reply?.successful) throw new Error(reply?.error ?? "the server did not reply", { cause: reply });
    return reply;
  }

  /** Send one request; resolves with the messages of the response. */
  async #ask(messages, timeoutMs) {
    const name = `r${this.#lastId}`;
    const url = new URL(this.#server);
    url.searchParams.set("message", JSON.stringify(messages));
    url.searchParams.set("jsonp", `halleyJsonp.${name}`);
    const { length } = url.href;
    const most = JsonpClient.#URL_CHARS;
    if (length > most) throw new Error(`too long for JSONP: a URL of ${length} characters, of at most ${most}`);
    const script = document.createElement("script");
    let timer = 0;
    try {
      return await new Promise((resolve, reject) => {
        const settle = (how, what) => (delete halleyJsonp[name], how(what));
        halleyJsonp[name] = (answers) => settle(resolve, answers);
        // The function is kept for a response that arrives after the deadline.
        timer = setTimeout(() => reject(new Error(`no response within ${timeoutMs / 1_000} s`)), timeoutMs);
        // Once the function was called, `onload` has no effect.
        script.onload = () => settle(reject, new Error("the response did not call the callback function"));
        script.onerror = () => settle(reject, new Error("the server cannot be reached or refused the request"));
        script.src = url.href;
        document.head.append(script);
      });
    } finally {
      clearTimeout(timer);
      script.remove();
    }
  }

  #end(error) {
    this.#life += 1;
    this.session = null;
    this.#become("disconnected", error);
  }

  #become(state, error = null) {
    Object.assign(this, { state, error });
    this.onChange();
  }
}
