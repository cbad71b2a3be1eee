/**
 * The URLs of a server's endpoints.
 */

/**
 * The URL of a path below the server's.
 *
 * @param {string} server such as `https://example.org/`; in a page it may be relative to the page
 * @param {string} path without a slash before it
 * @returns {URL}
 * @throws {TypeError} if the server's URL cannot be used
 */
export function endpoint(server, path) {
  const url = parsed(server);
  if (!url || !["http:", "https:"].includes(url.protocol)) {
    throw new TypeError(`url: expected that of a server, such as http://127.0.0.1:8080/, instead of ${server}`);
  }
  if (!url.pathname.endsWith("/")) url.pathname += "/";
  url.search = url.hash = "";
  return new URL(path, url);
}

/** @param {string} server */
function parsed(server) {
  try {
    return new URL(server, globalThis.location?.href);
  } catch {
    return null; // also for a relative one in a program without a page
  }
}
