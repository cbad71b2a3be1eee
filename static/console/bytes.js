/**
 * Bytes in JSON, as WAMP writes them: a string of U+0000 and base64. To a reader their number says more.
 */

import { whole } from "./numbers.js";

const BYTES = /(?<!\\)"\\u0000((?:[A-Za-z\d+/]{4})*(?:[A-Za-z\d+/]{2}(?:==)?|[A-Za-z\d+/]{3}=?)?)"/g;

/** Replace all bytes in JSON text by their number, as `8 bytes`. @param {string} json */
export function withBytesCounted(json) {
  return json.replace(BYTES, (_, base64) => {
    const count = Math.floor((base64.replace(/=+$/, "").length * 3) / 4);
    return count === 1 ? "1 byte" : `${whole(count)} bytes`;
  });
}
