/**
 * Halley's client for browsers and Node: the package `halley-client`, and the same files at `/client/` of a server.
 *
 * - `HalleyClient` subscribes and publishes, over a WebSocket or by long-polling
 * - `eventStream` reads the events of channels, by one HTTP response that stays open
 * - `Bayeux` is the protocol below `HalleyClient`, for programs that need all of it, as Halley's console does
 */

export { Bayeux, BayeuxError } from "./bayeux.js";
export { HalleyClient, Subscription } from "./client.js";
export { EventStream, eventStream, StreamError } from "./event-stream.js";

/** @typedef {import("./client.js").ClientOptions} ClientOptions */
/** @typedef {import("./event-stream.js").StreamOptions} StreamOptions */
/** @typedef {import("./event-stream.js").Gap} Gap */
/** @typedef {import("./event-stream.js").Loss} Loss */
/** @typedef {import("./tokens.js").Token} Token */
/** @typedef {import("./bayeux.js").Transport} Transport */
/**
 * @template [T=unknown]
 * @typedef {import("./client.js").ReceivedEvent<T>} ReceivedEvent
 */
/**
 * @template [T=unknown]
 * @typedef {import("./event-stream.js").StreamedEvent<T>} StreamedEvent
 */
