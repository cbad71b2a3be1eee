/**
 * One HTTP exchange of Bayeux messages, with a deadline. It knows nothing of sessions.
 */

/**
 * A message that was refused, or a request that failed.
 *
 * Its text is the server's own `CODE:ARGUMENTS:TEXT` where there is one. `reply` is the server's reply, or null when
 * none came. With a `cause` the request broke off on the way, and nobody can tell whether the server has acted.
 */
export class BayeuxError extends Error {
  constructor(text, reply = null, cause = undefined) {
    super(text, { cause });
    this.name = "BayeuxError";
    this.reply = reply;
  }
}

/**
 * Post `messages` to `url` and return the messages that come back, within `timeoutMs`.
 *
 * `keepalive` lets the request outlive the page. Throws `BayeuxError`, or the reason of `signal` once that is aborted.
 *
 * @param {string} url
 * @param {object[]} messages
 * @param {{ timeoutMs: number, signal?: AbortSignal, keepalive?: boolean }} options
 * @returns {Promise<object[]>}
 */
export async function post(url, messages, { timeoutMs, signal = null, keepalive = false }) {
  const timeout = new AbortController();
  const timer = setTimeout(() => timeout.abort(), timeoutMs);
  let response = null;
  let answers = null;
  try {
    response = await fetch(url, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(messages),
      credentials: "include", // the session may be bound to a cookie
      signal: signal ? AbortSignal.any([signal, timeout.signal]) : timeout.signal,
      keepalive,
    });
    if (response.ok) answers = await response.json();
  } catch (cause) {
    signal?.throwIfAborted();
    throw new BayeuxError(failure(response, timeout.signal.aborted, timeoutMs), null, cause);
  } finally {
    clearTimeout(timer);
  }
  signal?.throwIfAborted();
  if (!response.ok) throw new BayeuxError(`the server answered HTTP ${response.status}`);
  if (!Array.isArray(answers)) throw new BayeuxError("the answer is no array of messages");
  return answers;
}

function failure(response, isLate, timeoutMs) {
  if (isLate) return `no answer within ${timeoutMs / 1000} s`;
  return response ? "the answer broke off, or is no JSON" : "the server cannot be reached";
}
