/**
 * NetworkTables' types in the page: the control for a type, and the conversion between values and the control's text.
 */

import { withBytesCounted } from "./bytes.js";
import { parsed } from "./json.js";

const NUMBERS = ["double", "float", "int"];
const SCALARS = ["boolean", ...NUMBERS, "string"];

/**
 * The control for a type: `switch`, `number`, `text`, `json`, or `none` if the page cannot create values of the type.
 *
 * @param {string} type
 */
export function controlOf(type) {
  if (type === "boolean") return "switch";
  if (NUMBERS.includes(type)) return "number";
  if (type === "string") return "text";
  return type === "json" || SCALARS.some((scalar) => type === `${scalar}[]`) ? "json" : "none";
}

/** A value as the control's text. */
export function textOf(type, value) {
  if (type === "string" && typeof value === "string") return value;
  const json = JSON.stringify(value);
  return controlOf(type) === "none" ? withBytesCounted(json) : json; // what can be set is shown as it is set
}

/** The value of the control's text. Throws `SyntaxError`. */
export function valueOf(type, text) {
  if (type === "string") return text;
  if (controlOf(type) === "number" && !/^\s*-?\d/.test(text)) throw new SyntaxError("Expected a number");
  return parsed(text);
}
