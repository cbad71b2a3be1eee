/**
 * Reads pages of recorded events, with `GET /history/CHANNEL`.
 */

const ANSWER_MS = 20_000; // the server's own deadline for a disk is shorter
const EMPTY_PAGES = 20; // the maximum number of pages that one search reads while they are empty

/** Reading failed. The message is the server's if there is one. */
export class RecordError extends Error {
  /** @param {number} status HTTP's, or 0 if there was no response */
  constructor(text, status = 0) {
    super(text);
    this.name = "RecordError";
    this.status = status;
  }
}

/** @typedef {{ channel: string, data: any, position: number, time: string, protocol: string, nt4?: { type: string } }} Recorded */

/**
 * One page, in the requested order.
 *
 * The server can end a page early, even an empty one, and return where to continue; a limited number of empty pages is
 * followed. `next` and `previous` are the queries of the neighbouring pages, or null; `gaps` are pairs of the first and
 * last position of events that are lost.
 *
 * @typedef {{ events: Recorded[], next: string | null, previous: string | null, gaps: [number, number][] }} Page
 */

/**
 * Read a page of a channel's or a pattern's events. Throws `RecordError`, or the reason of `signal`.
 *
 * @param {string} channel
 * @param {string} query a URL's query, with its `?`
 * @param {object} options
 * @param {Record<string, string>} [options.headers]
 * @param {AbortSignal} [options.signal]
 * @param {"next" | "previous"} [options.towards] the direction in which to continue from an empty page
 * @param {boolean} [options.isToBeShown] keep numbers as they were written, as objects that `JSON.stringify` can write
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
      return { events: page.events, ...links, [back]: queryOf(first?.[back]), gaps };
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
    throw new RecordError(timeout.aborted ? `no response within ${ANSWER_MS / 1_000} s` : "the server cannot be reached");
  }
  if (!response.ok) throw new RecordError(text || `the server responded with HTTP ${response.status}`, response.status);
  try {
    return JSON.parse(text, isToBeShown ? unrounded : undefined);
  } catch {
    throw new RecordError("the response is not JSON");
  }
}

/** The path of a channel's history, relative to the page. Throws `RecordError` for a name that changes the path. */
function pathOf(channel) {
  const segments = channel.split("/");
  if (!channel.startsWith("/") || segments.some((segment) => /^\.{1,2}$/.test(segment))) {
    throw new RecordError("channel: expected a Bayeux channel, or one that ends in /* or /**");
  }
  return `history${segments.map(encodeURIComponent).join("/")}`;
}

/** The query of a link; its host and path can be wrong for this page if there is a proxy. */
function queryOf(link) {
  return link ? new URL(link, location.href).search : null;
}

/** Keep a number as it was written if the browser supports that: as a JavaScript number it has 53 bits. */
function unrounded(_, value, context) {
  const { rawJSON } = /** @type {any} */ (JSON); // newer than TypeScript's library
  return typeof value !== "number" || !context || String(value) === context.source || !rawJSON ? value : rawJSON(context.source);
}
