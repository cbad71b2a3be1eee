/**
 * Checks of the shape of data. Without access rules any client can publish to the server's topics, so a view checks
 * data and ignores what it cannot show.
 *
 *     const TICK = object({ time, topics: list(object({ channel: text, per_s: number })) });
 *     if (!TICK(data)) return;
 *
 * A shape is a function that returns whether a value has it; a type checker then knows the type of the data.
 *
 * @template T
 * @typedef {(value: unknown) => value is T} Shape
 */

/** @template S @typedef {S extends Shape<infer T> ? T : never} Of the type of data that has a shape */

/** @param {unknown} value @returns {value is string} */
export const text = (value) => typeof value === "string";

/** A finite number. @param {unknown} value @returns {value is number} */
export const number = (value) => Number.isFinite(value);

/** @param {unknown} value @returns {value is boolean} */
export const flag = (value) => typeof value === "boolean";

/** A string that is a time. @param {unknown} value @returns {value is string} */
export const time = (value) => text(value) && !Number.isNaN(Date.parse(value));

/** A value of this shape, null or undefined. @template T @param {Shape<T>} shape @returns {Shape<T | null | undefined>} */
export const optional = (shape) => (value) => value === null || value === undefined || shape(value);

/** @template T @param {Shape<T>} shape @returns {Shape<T[]>} */
export const list = (shape) => (value) => Array.isArray(value) && value.every(shape);

/** An object whose values have this shape, under any names. @template T @param {Shape<T>} shape */
export function map(shape) {
  /** @param {unknown} value @returns {value is Record<string, T>} */
  return (value) => isObject(value) && Object.values(value).every(shape);
}

/** An object that has at least these names. @template {Record<string, Shape<any>>} S @param {S} shapes */
export function object(shapes) {
  const entries = Object.entries(shapes);
  /** @param {unknown} value @returns {value is { [K in keyof S]: Of<S[K]> }} */
  return (value) => isObject(value) && entries.every(([name, shape]) => shape(Object.hasOwn(value, name) ? value[name] : undefined));
}

/** @param {unknown} value @returns {value is Record<string, unknown>} */
function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
