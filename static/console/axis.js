/**
 * How a chart's values become heights: even steps from nothing to a round number, or as many pixels for each power of
 * ten, where values differ so much that the largest would flatten all others.
 *
 * An axis is made for the values that are to be seen: `{ part(value), marks }`, `part` from 0 at the bottom to 1 at the
 * top, `marks` the values to draw a line for.
 */

const MARKS = 7; // as many as can be read
const LEAST = 0.001; // what is less stands at the bottom
const STEPS = [1, 2, 5];

/** Even steps. @param {number[]} values */
export function even(values) {
  const top = roundUp(Math.max(0, ...values));
  return { part: (value) => value / top, marks: [0, top / 2, top] };
}

/** Powers of ten, two of them at least; 1, 2 and 5 of each where there is room. @param {number[]} values */
export function powers(values) {
  const seen = values.filter((value) => value > 0).map((value) => Math.max(value, LEAST));
  const low = seen.length ? Math.floor(Math.log10(Math.min(...seen))) : 0;
  const high = seen.length ? Math.max(low + 2, Math.ceil(Math.log10(Math.max(...seen)))) : 2;
  const tens = Array.from({ length: high - low + 1 }, (_, index) => 10 ** (low + index));
  const fine = tens.flatMap((ten) => STEPS.map((step) => step * ten)).slice(0, 1 - STEPS.length);
  const every = Math.ceil(tens.length / MARKS);
  return {
    part: (value) => Math.max(0, (Math.log10(Math.max(value, LEAST)) - low) / (high - low)),
    marks: fine.length <= MARKS ? fine : tens.filter((_, index) => index % every === 0),
  };
}

/** The least of 1, 2, 5, 10, 20, ... that is not below a value. */
function roundUp(value) {
  if (value <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [...STEPS, 10].map((step) => step * power).find((round) => round >= value);
}

/** A number in five characters or fewer, as far as a reader needs it. @param {number} value */
export function short(value) {
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)}M`;
  if (value >= 1e4) return `${(value / 1e3).toFixed(value >= 1e5 ? 0 : 1)}k`;
  return value.toFixed(value < 10 && !Number.isInteger(value) ? (value < 1 ? 2 : 1) : 0);
}

/** A span of time in the unit that fits it. @param {number} ms */
export function duration(ms) {
  if (ms >= 999.5) return `${short(ms / 1e3)} s`;
  return ms >= 0.9995 || ms === 0 ? `${short(ms)} ms` : `${short(Math.round(ms * 1e3))} µs`;
}
