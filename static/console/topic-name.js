/**
 * The names of topics in their channels' names, where characters that Bayeux does not allow are escaped (as
 * `app/halley/broker/names.py` does it).
 */

const ESCAPE =
  /!((?:21)*)([0-7][\da-f]|[cd][\da-f]![89ab][\da-f]|e[\da-f](?:![89ab][\da-f]){2}|f[0-7](?:![89ab][\da-f]){3})/g;
const PLAIN = /^[\w!~()$@-]$/; // what Bayeux allows in a segment

/**
 * A topic's name, which may have any characters: `/robot/Auto!20Chooser` is `/robot/Auto Chooser`.
 *
 * @param {string} channel
 * @returns {string}
 */
export function topicName(channel) {
  return channel.replace(ESCAPE, (found, marks, bytes) => {
    const char = spelled(bytes);
    if (!char) return found;
    return marks ? `!${found.slice(3)}` : char;
  });
}

/** The character that has these bytes in UTF-8, or "" if there is none, or one that Bayeux does not escape. */
function spelled(bytes) {
  try {
    const char = decodeURIComponent(`%${bytes.replaceAll("!", "%")}`);
    return PLAIN.test(char) ? "" : char;
  } catch {
    return "";
  }
}
