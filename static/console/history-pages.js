/**
 * The recorded history as the server tells it: pages of events, by `GET /history/CHANNEL`.
 */

const ANSWER_MS = 20_000; // the server's own deadline for a disk is shorter
const EMPTY_PAGES = 20; // followed by themselves until there is something to show

/** The answer was no page; the text is the server's own where there is one. */
export class RecordError extends Error {
  /** @param {number} status of HTTP, 0 where there was no answer */
  constructor(text, status = 0) {
    super(text);
    this.name = "RecordError";
    this.status = status;
  }
}

/**
 * One page, in the order that was asked for.
 *
 * The server may end a page early, even an empty one, and say where to go on; that is followed for a while. `next` and
 * `previous` are the queries of the pages beside it, or null; `gaps` pairs of first and last positions that are lost.
 *
 * @typedef {{ events: object[], next: string | null, previous: string | null, gaps: [number, number][] }} Page
 */

/**
 * Read a page of a channel's or a pattern's events. Throws `RecordError`, or the reason of `signal`.
 *
 * @param {string} channel
 * @param {string} query as a URL has it behind its path
 * @param {object} options
 * @param {Record<string, string>} [options.headers]
 * @param {AbortSignal} [options.signal]
 * @param {"next" | "previous"} [options.towards] where to go on from an empty page
 * @param {boolean} [options.isToBeShown] numbers stay as they were written, as objects that only `JSON.stringify` knows
 * @returns {Promise<Page>}
 */
export async function read(channel, query, { headers = {}, signal, towards = "next", isToBeShown = false } = {}) {
  const gaps = [];
  let first = null;
  for (let pages = 1; ; pages += 1) {
    const page = await ask(`${pathOf(channel)}${query}`, headers, signal, isToBeShown);
    first ??= page;
    gaps.push(...(page.gaps ?? []));
    const links = { next: queryOf(page.next), previous: queryOf(page.previous) };
    if (page.events.length > 0 || links[towards] === null || pages >= EMPTY_PAGES) {
      const back = towards === "next" ? "previous" : "next";
      return { events: page.events, ...links, [back]: queryOf(first[back]), gaps };
    }
    query = links[towards];
  }
}

async function ask(path, headers, signal, isToBeShown) {
  const timeout = AbortSignal.timeout(ANSWER_MS);
  let response;
  let text;
  try {
    const options = { headers, signal: signal ? AbortSignal.any([signal, timeout]) : timeout };
    response = await fetch(new URL(path, location.href), options);
    text = await response.text();
  } catch {
    signal?.throwIfAborted();
    throw new RecordError(timeout.aborted ? `no answer within ${ANSWER_MS / 1_000} s` : "the server cannot be reached");
  }
  if (!response.ok) throw new RecordError(text || `the server answered HTTP ${response.status}`, response.status);
  try {
    return JSON.parse(text, isToBeShown ? unrounded : undefined);
  } catch {
    throw new RecordError("the answer is no JSON");
  }
}

/** Where a channel's history is, relative to the page. Throws `RecordError` for what a URL would take for another path. */
function pathOf(channel) {
  const segments = channel.split("/");
  if (!channel.startsWith("/") || segments.some((segment) => /^\.{1,2}$/.test(segment))) {
    throw new RecordError("channel: expected a Bayeux channel, or one that ends in /* or /**");
  }
  return `history${segments.map(encodeURIComponent).join("/")}`;
}

/** Of a link only the query counts: behind a proxy its host and path may be other ones. */
function queryOf(link) {
  return link ? new URL(link, location.href).search : null;
}

/** Keep numbers as they were written, where the browser can; its own have 53 bits. */
function unrounded(_, value, context) {
  if (typeof value !== "number" || !context || String(value) === context.source || !JSON.rawJSON) return value;
  return JSON.rawJSON(context.source);
}
