/**
 * Values that are kept in the tab's session storage, across reloads, until it is closed. If storage is disabled,
 * nothing is kept.
 */

/** Store a value under a name. @param {string} name @param {unknown} value any JSON value; null deletes it */
export function remember(name, value) {
  try {
    if (value === null) sessionStorage.removeItem(name);
    else sessionStorage.setItem(name, JSON.stringify(value));
  } catch {
    // storage is disabled or full
  }
}

/** The value stored under a name, or null. @param {string} name */
export function recall(name) {
  try {
    return JSON.parse(sessionStorage.getItem(name) ?? "null");
  } catch {
    return null;
  }
}
