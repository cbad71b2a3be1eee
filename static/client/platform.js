/**
 * What the client needs of its platform.
 */

/** Throw an error that says what to do, if the platform is too old. What is checked is the latest of what is used. */
export function checkPlatform() {
  const { AbortSignal, CustomEvent } = globalThis;
  if (typeof AbortSignal?.timeout === "function" && typeof CustomEvent === "function") return;
  throw new Error("halley-client needs Node.js 20 or later, or a browser of 2022 or later: please update");
}
