/**
 * The axes of charts: a linear one from 0 to a round number, and a logarithmic one for values that differ by so large a factor that
 * the largest would flatten all others.
 *
 * An axis is made for the values that a chart shows: `{ part(value), marks }`. `part` returns a height, from 0 at the
 * bottom to 1 at the top; `marks` are the values at which a line is drawn.
 */

const MARKS = 7; // the most that are readable
const LEAST = 0.001; // smaller values are at the bottom
const STEPS = [1, 2, 5];

/** Return a linear axis. @param {number[]} values */
export function even(values) {
  const top = roundUp(Math.max(0, ...values));
  return { part: (value) => value / top, marks: [0, top / 2, top] };
}

/**
 * Return a logarithmic axis over at least two powers of ten, with marks at 1, 2 and 5 of each if there is room.
 *
 * @param {number[]} values
 */
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

/** The smallest of 1, 2, 5, 10, 20, ... that is not below `value`. */
function roundUp(value) {
  if (value <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [...STEPS, 10].map((step) => step * power).find((round) => round >= value) ?? 10 * power;
}
