/**
 * Numbers, formatted. What is not known is a dash.
 */

const NOTHING = "–";
const RATE = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const COUNT = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** A rate. @param {number | null} perS */
export function perSecond(perS) {
  return perS === null ? NOTHING : RATE.format(perS);
}

/** A count, rounded. @param {number | null | undefined} count */
export function whole(count) {
  return count === null || count === undefined ? NOTHING : COUNT.format(count);
}

/** A number in at most five characters, rounded. @param {number} value */
export function short(value) {
  // The limits are the numbers that would be rounded up to one more digit.
  if (value >= 999_500) return `${(value / 1e6).toFixed(value < 99.95e6 ? 1 : 0)}M`;
  if (value >= 9_999.5) return `${(value / 1e3).toFixed(value < 99_950 ? 1 : 0)}k`;
  return value.toFixed(value < 9.95 && !Number.isInteger(value) ? (value < 0.995 ? 2 : 1) : 0);
}

/** A span of time in µs, ms or s, depending on its length. @param {number} ms */
export function duration(ms) {
  if (ms >= 999.5) return `${short(ms / 1e3)} s`;
  return ms >= 0.9995 || ms === 0 ? `${short(ms)} ms` : `${short(Math.round(ms * 1e3))} µs`;
}

/** A number of bytes. @param {number} bytes */
export function weight(bytes) {
  if (bytes < 1_000) return `${bytes} B`;
  if (bytes < 1_000_000) return `${(bytes / 1_000).toFixed(1)} kB`;
  return `${(bytes / 1_000_000).toFixed(1)} MB`;
}
