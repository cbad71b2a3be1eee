/**
 * What data looks like. A page hears what anybody may publish, also on the server's topics where no access rule keeps
 * them; so a view says what it can show, and passes over the rest.
 *
 *     const TICK = object({ time, topics: list(object({ channel: text, per_s: number })) });
 *     if (!TICK(data)) return;
 *
 * A shape is a function that says of a value whether it fits.
 */

export const text = (value) => typeof value === "string";

/** One that can be drawn. */
export const number = (value) => Number.isFinite(value);

/** As the server writes it. */
export const time = (value) => text(value) && !Number.isNaN(Date.parse(value));

/** Null, or nothing, will do too. */
export const optional = (shape) => (value) => value === null || value === undefined || shape(value);

export const list = (shape) => (value) => Array.isArray(value) && value.every(shape);

/** An object with any names. */
export const map = (shape) => (value) => isObject(value) && Object.values(value).every(shape);

/** An object with these names at least. @param {Record<string, (value: unknown) => boolean>} shapes */
export const object = (shapes) => (value) =>
  isObject(value) && Object.entries(shapes).every(([name, shape]) => shape(Object.hasOwn(value, name) ? value[name] : undefined));

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
