/**
 * Checks of the shape of data. Without access rules any client can publish to the server's topics, so a view checks
 * data and ignores what it cannot show.
 *
 *     const TICK = object({ time, topics: list(object({ channel: text, per_s: number })) });
 *     if (!TICK(data)) return;
 *
 * A shape is a function that returns whether a value has it.
 */

export const text = (value) => typeof value === "string";

/** A finite number. */
export const number = (value) => Number.isFinite(value);

export const flag = (value) => typeof value === "boolean";

/** A string that is a time. */
export const time = (value) => text(value) && !Number.isNaN(Date.parse(value));

/** A value of this shape, null or undefined. */
export const optional = (shape) => (value) => value === null || value === undefined || shape(value);

export const list = (shape) => (value) => Array.isArray(value) && value.every(shape);

/** An object whose values have this shape, under any names. */
export const map = (shape) => (value) => isObject(value) && Object.values(value).every(shape);

/** An object that has at least these names. @param {Record<string, (value: unknown) => boolean>} shapes */
export const object = (shapes) => (value) =>
  isObject(value) && Object.entries(shapes).every(([name, shape]) => shape(Object.hasOwn(value, name) ? value[name] : undefined));

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
