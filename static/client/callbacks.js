/**
 * Calls of a program's own functions.
 */

/**
 * Call a function, if there is one. What it throws is reported as an uncaught exception, since it is not an error of the
 * connection: other functions are called all the same.
 *
 * @template {unknown[]} Arguments
 * @param {((...values: Arguments) => unknown) | undefined} callback
 * @param {Arguments} values
 */
export function call(callback, ...values) {
  try {
    callback?.(...values);
  } catch (error) {
    queueMicrotask(() => {
      throw error;
    });
  }
}
