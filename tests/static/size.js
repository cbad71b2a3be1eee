/** Prints how large `halley-client` is for a page that imports all of it: `npm run size` in `static/client`. */

import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

import { build } from "vite";

const entry = fileURLToPath(new URL("../../static/client/index.js", import.meta.url));
const { output } = await build({
  configFile: false,
  logLevel: "warn",
  build: { rolldownOptions: { input: entry, preserveEntrySignatures: "strict" }, modulePreload: { polyfill: false }, write: false },
});
const code = output.map((part) => part.code).join("");
const inKB = (bytes) => `${(bytes / 1000).toFixed(1)} KB`;
console.log(`halley-client: ${inKB(Buffer.byteLength(code))} minified, ${inKB(gzipSync(code).length)} with gzip`);
