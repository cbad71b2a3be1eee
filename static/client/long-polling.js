/**
 * One HTTP exchange of Bayeux messages, with a deadline. It does not depend on sessions.
 */

import { abortedWith } from "./waits.js";

const OUTCOME_UNKNOWN = "503::history_outcome_unknown"; // the server does not know whether it has stored the message

/**
 * A message that was refused, or a request that failed.
 *
 * Its message is the server's `CODE:ARGUMENTS:TEXT` if there is one. `reply` is the server's reply, or null if none was
 * received. If there is a `cause`, the request failed on the way.
 */
export class BayeuxError extends Error {
  /** @param {string} text @param {Record<string, any> | null} [reply] @param {unknown} [cause] */
  constructor(text, reply = null, cause = undefined) {
    super(text, { cause });
    this.name = "BayeuxError";
    this.reply = reply;
  }

  /** Whether the message may have taken effect all the same. @returns {boolean} */
  get isOutcomeUnknown() {
    return this.cause !== undefined || this.message === OUTCOME_UNKNOWN;
  }
}

/**
 * Post `messages` to `url`, and return the messages of the response, which has to arrive within `timeoutMs`.
 *
 * `keepalive` lets the request outlive the page. Throws `BayeuxError`, or the reason of `signal` once that is aborted.
 *
 * @param {string} url
 * @param {import("./bayeux.js").Message[]} messages
 * @param {{ timeoutMs: number, signal?: AbortSignal, keepalive?: boolean }} options
 * @returns {Promise<import("./bayeux.js").Message[]>}
 */
export async function post(url, messages, { timeoutMs, signal, keepalive = false }) {
  const { controller, release } = abortedWith(signal);
  const timer = setTimeout(() => controller.abort(), timeoutMs);
  /** @type {Response | undefined} */
  let response;
  let answers = null;
  try {
    response = await fetch(url, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(messages),
      credentials: "include", // the session may be bound to a cookie
      signal: controller.signal,
      keepalive,
    });
    if (response.ok) answers = await response.json();
  } catch (cause) {
    signal?.throwIfAborted();
    throw new BayeuxError(failure(response, controller.signal.aborted, timeoutMs), null, cause);
  } finally {
    clearTimeout(timer);
    release();
  }
  signal?.throwIfAborted();
  if (!response.ok) throw new BayeuxError(`the server responded with HTTP ${response.status}`);
  if (!Array.isArray(answers)) throw new BayeuxError("the response is not an array of messages");
  return answers;
}

/** @param {Response | undefined} response @param {boolean} isLate @param {number} timeoutMs */
function failure(response, isLate, timeoutMs) {
  if (isLate) return `no response within ${timeoutMs / 1000} s`;
  return response ? "the response was cut off or is not JSON" : "the server cannot be reached";
}
