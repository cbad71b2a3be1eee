/**
 * What the client needs of its platform.
 */

/** Throw an error that says what to do, if the platform is too old. What is looked for is the latest that is used. */
export function checkPlatform() {
  if (typeof globalThis.AbortSignal?.any === "function") return;
  throw new Error("halley-client needs Node.js 20.3 or later, or a browser of 2024 or later: please update");
}
