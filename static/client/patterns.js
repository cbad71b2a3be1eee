/**
 * Bayeux patterns: a channel, or one that ends in `/*` for one more segment, or in `/**` for any number of them.
 */

/**
 * Whether a channel matches a pattern. `/**` does not match the server's own topics, below `/halley`.
 *
 * @param {string} pattern
 * @param {string} channel
 * @returns {boolean}
 */
export function matches(pattern, channel) {
  if (pattern.endsWith("/**")) {
    const above = pattern.slice(0, -2);
    return channel.startsWith(above) && (above !== "/" || !/^\/halley(\/|$)/.test(channel));
  }
  if (!pattern.endsWith("/*")) return channel === pattern;
  const above = pattern.slice(0, -1);
  return channel.startsWith(above) && !channel.slice(above.length).includes("/") && channel !== "/halley";
}
