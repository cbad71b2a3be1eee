/**
 * Times and spans of time, formatted. Ages use the server's clock, since the browser's can be wrong.
 */

const MINUTE_S = 60;
const HOUR_S = 3_600;
const DAY_S = 86_400;

/** @type {Intl.DateTimeFormatOptions} */
export const TO_SECONDS = { hour: "2-digit", minute: "2-digit", second: "2-digit" };
const TIME_OF_DAY = new Intl.DateTimeFormat("en-GB", TO_SECONDS);

export class Clock {
  #aheadMs = 0; // how far the server's clock is ahead of the browser's

  /** Set the clock to a time that the server has just sent. @param {string} time RFC 3339 */
  set(time) {
    const ms = Date.parse(time);
    if (!Number.isNaN(ms)) this.#aheadMs = ms - Date.now();
  }

  /** The server's time, in ms since the epoch. */
  get now() {
    return Date.now() + this.#aheadMs;
  }

  /** The age of a time, as `3 s ago`. @param {number} ms since the epoch */
  ago(ms) {
    const seconds = Math.max(0, (this.now - ms) / 1_000);
    return seconds < 1 ? "now" : `${span(seconds)} ago`;
  }
}

/** The local time of day, as `18:04:09`. @param {number | Date} at in ms since the epoch */
export function timeOfDay(at) {
  return TIME_OF_DAY.format(at);
}

/** A span of time in its largest unit, as `3 s`. @param {number} seconds */
export function span(seconds) {
  if (seconds < MINUTE_S) return `${Math.floor(seconds)} s`;
  if (seconds < HOUR_S) return `${Math.floor(seconds / MINUTE_S)} min`;
  if (seconds < DAY_S) return `${Math.floor(seconds / HOUR_S)} h`;
  return `${Math.floor(seconds / DAY_S)} d`;
}

/** A span of time in its two largest units, as `3 min 4 s`. @param {number} seconds */
export function exactSpan(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < MINUTE_S) return `${whole} s`;
  if (whole < HOUR_S) return `${span(whole)} ${whole % MINUTE_S} s`;
  if (whole < DAY_S) return `${span(whole)} ${Math.floor((whole % HOUR_S) / MINUTE_S)} min`;
  return `${span(whole)} ${Math.floor((whole % DAY_S) / HOUR_S)} h`;
}
