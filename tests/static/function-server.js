/** A Bayeux server that is a function, in place of `fetch`. */

/** What an answer is to be for a connect that is held. */
export const HELD = Symbol("a connect that is held");

/**
 * Let `fetch` answer each message by the function of its channel, or grant it.
 *
 * @param {Record<string, (message: object, sent: object[]) => unknown>} answers by channel; one returns the fields of a
 *   reply, or a list of these and events, or a `Response`, or `HELD`
 * @returns {{ sent: object[][], posted: object[] }} all requests, each as its messages; and the messages of those that were
 *   posted
 */
export function serve(answers) {
  let sessions = 0;
  const sent = [];
  const posted = [];
  const usual = {
    "/meta/handshake": () => ({ clientId: `s${(sessions += 1)}`, ext: { ack: true } }),
    "/meta/connect": ({ advice }) => (advice?.timeout === 0 ? {} : HELD),
  };
  globalThis.fetch = async (url, { body, signal, isFrame }) => {
    const messages = JSON.parse(body);
    sent.push(messages);
    if (!isFrame) posted.push(...messages);
    const replies = [];
    for (const message of messages) {
      const answering = (answers[message.channel] ?? usual[message.channel] ?? (() => ({})))(message, sent.flat());
      const aborted = new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
      signal.throwIfAborted();
      const answer = await Promise.race([answering === HELD ? aborted : answering, aborted]);
      if (answer instanceof Response) return answer;
      const [reply, ...events] = [answer].flat();
      replies.push(...events, { channel: message.channel, id: message.id, successful: true, ...reply });
    }
    return Response.json(replies);
  };
  return { sent, posted };
}
