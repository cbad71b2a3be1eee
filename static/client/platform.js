/**
 * What the client needs of its platform.
 */

/** Throw an error that says what to do, if the platform is too old. What is checked is the latest of what is used. */
export function checkPlatform() {
  const { AbortSignal, CustomEvent } = globalThis;
  if (typeof AbortSignal?.any === "function" && typeof CustomEvent === "function") return;
  throw new Error("halley-client needs Node.js 20.3 or later, or a browser of 2024 or later: please update");
}
