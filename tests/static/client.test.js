/** `HalleyClient`: what its callbacks get, and what its promises become, with a server that is a function. */

import assert from "node:assert/strict";
import { afterEach, test } from "node:test";

import { HalleyClient } from "../../static/client/index.js";
import { HELD, serve } from "./function-server.js";

delete globalThis.WebSocket; // of later Nodes
const clients = new Set();
afterEach(async () => {
  globalThis.fetch = async () => Response.json([]);
  for (const client of clients) await client.close();
  clients.clear();
});

/** A client of a server that answers as `serve` says; `log` has what its callbacks were called with. */
function connected(answers = {}, options = {}) {
  const requests = serve(answers);
  const log = [];
  const client = new HalleyClient("http://127.0.0.1:8080", {
    onOpen: () => log.push("open"),
    onLost: ({ error, retryMs }) => log.push(["lost", error.message, retryMs > 0]),
    onGap: (gap) => log.push(["gap", gap]),
    onEnd: ({ error, channel }) => log.push(["end", error.message, channel]),
    ...options,
  });
  clients.add(client);
  return { client, log, ...requests };
}

async function until(isSo) {
  const deadline = Date.now() + 5_000;
  while (!isSo()) {
    assert.ok(Date.now() < deadline, `not so within 5 s: ${isSo}`);
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
}

const channels = (sent) => sent.flat().map(({ channel }) => channel);
const subscribes = (sent) => sent.flat().filter(({ subscription }) => subscription);

test("a subscription is there when its promise resolves, and its callback gets events of its pattern, once", async () => {
  const events = [
    { channel: "/a/b", data: 1, ext: { replay: 5 } },
    { channel: "/c", data: 2, ext: { replay: 6 } },
    { channel: "/a/b", data: 3, ext: { replay: 5 } }, // again
    { channel: "/a/b", data: 4, ext: { nt4: { type: "int" } } }, // not recorded
  ];
  const connects = [{}, [{ ext: { replay: { "/a/*": 6 } } }, ...events]];
  const { client, log, sent } = connected({ "/meta/connect": () => connects.shift() ?? HELD });
  const received = [];
  const subscription = await client.subscribe("/a/*", (event) => received.push(event));
  await until(() => received.length === 2);
  assert.deepEqual(received, [
    { channel: "/a/b", data: 1, position: 5 },
    { channel: "/a/b", data: 4, position: null, ext: { nt4: { type: "int" } } },
  ]);
  await until(() => subscription.position === 6);
  assert.equal(subscription.channel, "/a/*");
  assert.deepEqual(log, ["open"]);
  assert.deepEqual(sent[0][0].ext.replay, { in_data: false });
  await subscription.unsubscribe();
  assert.deepEqual(channels(sent).filter((channel) => channel.startsWith("/meta/unsub")), ["/meta/unsubscribe"]);
});

test("several subscriptions to a channel are one for the server, which begins where the earliest does", async () => {
  let deliver;
  const answers = {
    "/meta/subscribe": ({ ext }) => ({ ext: { replay: { "/a": ext?.replay?.["/a"] ?? 7 } } }),
    "/meta/connect": ({ advice }) => (advice ? {} : new Promise((resolve) => (deliver = resolve))),
  };
  const { client, sent } = connected(answers);
  const received = { live: [], late: [], early: [] };
  await client.subscribe("/a", ({ data }) => received.live.push(data));
  await client.subscribe("/a", ({ data }) => received.late.push(data), { after: 5 });
  await client.subscribe("/a", ({ data }) => received.early.push(data), { after: 3 });
  assert.deepEqual(subscribes(sent).map(({ ext }) => ext?.replay["/a"]), [undefined, 5, 3]);
  await until(() => deliver);
  deliver([{}, ...[4, 5, 6, 7, 8].map((position) => ({ channel: "/a", data: position, ext: { replay: position } }))]);
  await until(() => received.live.length === 1);
  assert.deepEqual(received, { live: [8], late: [6, 7, 8], early: [4, 5, 6, 7, 8] });
});

test("a callback that throws is reported, and the others are called all the same", async (t) => {
  const uncaught = [];
  t.mock.method(globalThis, "queueMicrotask", (task) => {
    try {
      task();
    } catch (error) {
      uncaught.push(error.message);
    }
  });
  const connects = [{}, [{}, { channel: "/a", data: 1 }]];
  const { client } = connected({ "/meta/connect": () => connects.shift() ?? HELD });
  const received = [];
  client.subscribe("/a", () => { throw new Error("mine"); });
  client.subscribe("/a", ({ data }) => received.push(data));
  await until(() => received.length === 1);
  assert.deepEqual(uncaught, ["mine"]);
});

test("a subscription that is refused rejects; one that ends later, or the client, is reported", async () => {
  const revoked = { channel: "/meta/unsubscribe", subscription: "/a", successful: true, ext: { revoked: true } };
  let revoke;
  const { client, log } = connected({
    "/meta/subscribe": ({ subscription }) => (subscription === "/no" ? { successful: false, error: "403::subscribe_denied" } : {}),
    "/meta/connect": ({ advice }) => (advice ? {} : revoke ? HELD : new Promise((resolve) => (revoke = resolve))),
  });
  await assert.rejects(client.subscribe("/no", () => {}), { message: "403::subscribe_denied" });
  await client.subscribe("/a", () => {});
  await until(() => revoke);
  revoke([{}, revoked]);
  await until(() => log.length === 2);
  assert.deepEqual(log[1], ["end", "no longer allowed: the server has ended it", "/a"]);
  const ended = connected(
    { "/meta/handshake": () => ({ successful: false, error: "403:token_invalid:handshake_denied", advice: { reconnect: "none" } }) },
    { token: "bad" },
  );
  await assert.rejects(ended.client.subscribe("/a", () => {}), { message: "403:token_invalid:handshake_denied" });
  await assert.rejects(ended.client.publish("/a", 1), { message: "403:token_invalid:handshake_denied" });
  assert.deepEqual(ended.log, [["end", "403:token_invalid:handshake_denied", null]]);
});

test("losses and gaps are reported, and a publish waits until it is connected", async (t) => {
  let isUp = false;
  const connects = [{}, { ext: { replay_gap: { "/a": [2, 4] } } }];
  const { client, log } = connected({
    "/meta/handshake": () => (isUp ? { clientId: "s" } : new Response("", { status: 502 })),
    "/meta/connect": () => connects.shift() ?? HELD,
    "/a": () => ({ ext: { position: 9 } }),
  });
  const warnings = [];
  const warn = ({ message }) => warnings.push(message);
  process.on("warning", warn);
  t.after(() => process.off("warning", warn));
  client.subscribe("/a", () => {});
  const [published] = Array.from({ length: 20 }, () => client.publish("/a", 1));
  await until(() => log.length === 1);
  isUp = true;
  assert.deepEqual(await published, { position: 9 });
  await until(() => log.length === 3);
  assert.deepEqual(log, [
    ["lost", "the server responded with HTTP 502", true],
    "open",
    ["gap", { channel: "/a", from: 2, to: 4, reason: "expired" }],
  ]);
  assert.deepEqual(warnings, []); // as of too many listeners
});

test("a key that was used for something else is rejected, and not sent again", async () => {
  const error = "409::idempotency_key_reused";
  const { client, posted } = connected({ "/a": () => ({ successful: false, error }) });
  await assert.rejects(client.publish("/a", 1, { key: "order 7" }), { message: error, isOutcomeUnknown: false });
  assert.equal(posted.filter(({ channel }) => channel === "/a").length, 1);
});

test("a publish with a key is repeated if its outcome is not known; one without is not", async () => {
  let attempts = 0;
  const answers = {
    "/a": ({ ext }) => {
      attempts += 1;
      if (attempts % 2) throw new TypeError("reset");
      return { ext: { position: 3, key: ext?.idempotency_key } };
    },
  };
  const { client, posted } = connected(answers);
  assert.deepEqual(await client.publish("/a", 1, { key: "order 7" }), { position: 3 });
  const keys = posted.filter(({ channel }) => channel === "/a").map(({ ext }) => ext.idempotency_key);
  assert.deepEqual(keys, ["order 7", "order 7"]);
  await assert.rejects(client.publish("/a", 2), { isOutcomeUnknown: true });
  assert.equal(attempts, 3);
});

test("closing rejects what waits, and what comes after", async () => {
  const { client } = connected({ "/meta/handshake": () => new Response("", { status: 502 }) });
  const waiting = [client.subscribe("/a", () => {}), client.publish("/a", 1)];
  await client.close();
  for (const promise of [...waiting, client.subscribe("/b", () => {}), client.publish("/b", 1)]) {
    await assert.rejects(promise, { name: "BayeuxError", message: "the client is closed" });
  }
});

test("wrong arguments, and a platform that is too old, get one sentence", (t) => {
  const { client } = connected();
  assert.throws(() => client.subscribe("a", () => {}), { message: "channel: expected one that begins with /, instead of a" });
  assert.throws(() => client.subscribe("/a"), { message: "callback: expected a function" });
  assert.throws(() => client.subscribe("/a", () => {}, { after: "now" }), /^TypeError: after: expected a position/);
  assert.throws(() => new HalleyClient("/"), /^TypeError: url: expected that of a server, such as/);
  assert.throws(() => new HalleyClient("http://a", { transport: "carrier pigeon" }), /^TypeError: transport: expected auto/);
  const { timeout } = AbortSignal;
  t.after(() => (AbortSignal.timeout = timeout));
  AbortSignal.timeout = undefined;
  assert.throws(() => new HalleyClient("http://a"), { message: /^halley-client needs Node.js 20 or later, .*: please update$/ });
});
