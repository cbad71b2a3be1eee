/**
 * Refusals in words: what the reader can do, instead of the server's texts, such as `403::subscribe_denied`, which are
 * for programs.
 */

/** What the server's words mean, as the last part of its text or as the reason in it. */
const MEANINGS = {
  __proto__: null,
  audience_invalid: "the audience is not valid",
  channel_invalid: "a channel begins with / and has letters, digits and -_!~()$@ between its slashes",
  channel_is_a_wildcard: "a channel for publishing has no * in it",
  data_too_large: "the data is larger than the server allows",
  history_outcome_unknown: "the server does not know yet whether the event is stored",
  history_unavailable: "the server cannot store events at present",
  networktables_unavailable: "no node of the cluster serves NetworkTables at present",
  no_room: "the server is at a limit: try again later",
  overloaded: "the server is short of memory: try again later",
  rate_limited: "too many events within a short time: try again in a second",
  session_unknown: "the server has ended the session",
  subscription_invalid: "a pattern begins with /, and only its last segment can be * or **",
  token_expired: "the token has expired: enter a new one",
  token_invalid: "the server does not accept this token",
  too_many_patterns: "this session has the maximum number of patterns: unsubscribe from some",
  too_many_subscriptions: "this session has the maximum number of subscriptions: unsubscribe from some",
  too_many_topics: "the server has the maximum number of NetworkTables topics",
  value_for_some: "a value of NetworkTables is for all clients",
};
const RULES = ["", "denied_by_security_policy", "denied_by_not_granting"]; // any other reason is a program's
const DENIED = [401, 403]; // HTTP's

/** Whether the server denied something that another identity may be allowed to do. @param {Error & { status?: number }} error */
export function isDenied(error) {
  const { reason, text } = parts(error);
  return DENIED.includes(error.status ?? 0) || (text.endsWith("_denied") && !(reason in MEANINGS));
}

/** An error in plain words. @param {Error} error */
export function plain(error) {
  const { reason, text } = parts(error);
  if (text === "value_type_mismatch") return `expected a value of the type ${reason}`;
  return MEANINGS[text] ?? MEANINGS[reason] ?? (text ? text.replaceAll("_", " ") : error.message);
}

/**
 * A sentence on a refusal: the right that is missing, or why the reader cannot do what they wanted to.
 *
 * @param {Error} error a `BayeuxError` or `RecordError`
 * @param {string} right what a role has to be allowed to, as `subscribe to /halley/**`
 * @param {string} purpose what the reader wanted, as `see the sessions`
 */
export function refusal(error, right, purpose) {
  if (!isDenied(error)) return `Cannot ${purpose}: ${plain(error)}.`;
  if (right.includes(" /meta/")) return `No client may ${right}.`;
  const { reason } = parts(error);
  const why = RULES.includes(reason) ? "" : ` (${reason})`;
  return `Sign in with a token that may ${right} to ${purpose}${why}.`;
}

/** The parts of the server's `CODE:REASON:TEXT`; empty strings for other errors. */
function parts({ message }) {
  const [, reason = "", text = ""] = /^\d{3}:(.*):(\w+)$/s.exec(message) ?? [];
  return { reason, text };
}
