/**
 * Waits with an end.
 */

/**
 * Wait for a promise, at most `ms`; then reject with an error that says what did not come.
 *
 * @template T
 * @param {number} ms
 * @param {Promise<T>} promise
 * @param {string} missing
 * @returns {Promise<T>}
 */
export async function within(ms, promise, missing) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  try {
    const late = new Promise((/** @type {(value: T) => void} */ _, reject) => {
      timer = setTimeout(() => reject(new Error(`${missing} within ${ms / 1000} s`)), ms);
    });
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

/**
 * Wait for `ms`. Rejects with the reason of `signal` once that is aborted.
 *
 * @param {number} ms
 * @param {AbortSignal} signal
 */
export async function pause(ms, signal) {
  signal.throwIfAborted();
  await new Promise((/** @type {(value?: any) => void} */ resolve) => {
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", done, { once: true });
    function done() {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      resolve();
    }
  });
  signal.throwIfAborted();
}

/**
 * A controller that is aborted with a signal, until it is released: `AbortSignal.any` does not give back its memory in
 * Node 20 as long as the signal lives.
 *
 * @param {AbortSignal} [signal]
 * @returns {{ controller: AbortController, release: () => void }}
 */
export function abortedWith(signal) {
  const controller = new AbortController();
  const abort = () => controller.abort(signal?.reason);
  if (signal?.aborted) abort();
  signal?.addEventListener("abort", abort);
  return { controller, release: () => signal?.removeEventListener("abort", abort) };
}
