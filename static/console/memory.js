/**
 * What the tab remembers until it is closed, over reloads. Readers may have switched storage off; then nothing is.
 */

/** @param {string} name @param {unknown} value any JSON value; null to forget it */
export function remember(name, value) {
  try {
    if (value === null) sessionStorage.removeItem(name);
    else sessionStorage.setItem(name, JSON.stringify(value));
  } catch {
    // as said above
  }
}

/** What was remembered under a name, or null. @param {string} name */
export function recall(name) {
  try {
    return JSON.parse(sessionStorage.getItem(name));
  } catch {
    return null;
  }
}
