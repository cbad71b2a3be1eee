/** The Bayeux client's states: what it sends to a server that is a function, and what it makes of the replies. */

import assert from "node:assert/strict";
import { afterEach, test } from "node:test";

import { Backoff } from "../../static/client/backoff.js";
import { Bayeux } from "../../static/client/bayeux.js";
import { HELD, serve } from "./function-server.js";

const clients = new Set();
afterEach(async () => {
  delete globalThis.WebSocket;
  globalThis.fetch = async () => Response.json([]);
  for (const client of clients) await client.disconnect();
  clients.clear();
});

delete globalThis.WebSocket; // of later Nodes: most tests are of long-polling

/**
 * Let WebSockets lead to the server that `fetch` is, be refused, or be closed with a code when something is sent.
 *
 * @returns {object[]} the WebSockets, in the order of being made
 */
function offerSockets({ refused = false, closedWith = 0 } = {}) {
  const sockets = [];
  globalThis.WebSocket = class {
    static OPEN = 1;
    readyState = 0;
    constructor(url) {
      this.url = url;
      this.life = new AbortController();
      this.frames = [];
      sockets.push(this);
      setTimeout(() => (refused ? this.end(1006) : this.open()));
    }
    open() {
      this.readyState = 1;
      this.onopen();
    }
    end(code) {
      this.readyState = 3;
      this.life.abort();
      this.onclose({ code });
    }
    close() {
      if (this.readyState < 2) this.end(1000);
    }
    async send(body) {
      this.frames.push(JSON.parse(body));
      if (closedWith) return this.end(closedWith);
      try {
        for (const message of JSON.parse(body)) this.answer(JSON.stringify([message]));
      } catch (error) {
        if (!this.life.signal.aborted) throw error;
      }
    }
    async answer(body) {
      const signal = this.life.signal;
      const response = await globalThis.fetch(this.url, { body, signal, isFrame: true }).catch(() => null);
      if (response && this.readyState === 1) this.onmessage({ data: await response.text() });
    }
  };
  return sockets;
}

/** A client of a server that answers each message by the function of its channel, or grants it. */
function connected(answers = {}, options = {}) {
  const { sent, posted } = serve(answers);
  const bayeux = new Bayeux("http://127.0.0.1/bayeux", options);
  const heard = [];
  for (const type of ["message", "refused", "missed"]) bayeux.addEventListener(type, ({ detail }) => heard.push([type, detail]));
  clients.add(bayeux);
  bayeux.connect();
  return { bayeux, sent, posted, heard };
}

/** Wait until the client is as wanted; its events say when it has changed. */
async function until(bayeux, isSo) {
  const deadline = Date.now() + 5_000;
  while (!isSo()) {
    assert.ok(Date.now() < deadline, `the client stayed ${bayeux.state}: ${bayeux.error}`);
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
}

const channelsOf = (sent) => sent.flat().map(({ channel }) => channel);

test("it shakes hands, proves the connection by a connect that is not held, then holds one", async () => {
  const { bayeux, sent } = connected({}, { token: () => "secret" });
  await until(bayeux, () => sent.length === 3);
  assert.equal(bayeux.state, "connected");
  assert.deepEqual(channelsOf(sent), ["/meta/handshake", "/meta/connect", "/meta/connect"]);
  const [[handshake], [first], [second]] = sent;
  assert.deepEqual(handshake.ext, { ack: true, authentication: "secret" });
  assert.deepEqual([first.clientId, first.advice, first.ext], ["s1", { timeout: 0 }, { ack: 0 }]);
  assert.deepEqual([second.clientId, second.advice], ["s1", undefined]);
});

test("messages of one turn share a request, in their order, and each gets its own reply", async () => {
  const { bayeux, sent } = connected({ "/b": () => ({ successful: false, error: "403::publish_denied" }) });
  await until(bayeux, () => bayeux.state === "connected");
  const results = await Promise.allSettled([bayeux.publish("/a", 1), bayeux.publish("/b", 2), bayeux.publish("/c", 3)]);
  assert.deepEqual(results.map(({ status }) => status), ["fulfilled", "rejected", "fulfilled"]);
  assert.equal(results[1].reason.message, "403::publish_denied");
  assert.equal(results[1].reason.isOutcomeUnknown, false);
  assert.deepEqual(sent.find((messages) => messages[0].data).map(({ data }) => data), [1, 2, 3]);
});

test("a publish whose request failed may have taken effect", async () => {
  const { bayeux } = connected({ "/a": () => { throw new TypeError("reset"); }, "/b": () => new Response("", { status: 413 }) });
  await until(bayeux, () => bayeux.state === "connected");
  await assert.rejects(bayeux.publish("/a", 1), { message: "the server cannot be reached", isOutcomeUnknown: true });
  await assert.rejects(bayeux.publish("/b", 1), { message: "the server responded with HTTP 413" });
});

test("without a session nothing is published", async () => {
  const bayeux = new Bayeux("http://127.0.0.1/bayeux");
  await assert.rejects(bayeux.publish("/a", 1), { message: "not connected" });
});

test("a server that has forgotten the session is given a new one, without a pause, and the subscriptions again", async () => {
  let isForgotten = true;
  const forget = () => {
    isForgotten = false;
    return { successful: false, error: "402::session_unknown", advice: { reconnect: "handshake", interval: 0 } };
  };
  const { bayeux, sent } = connected({
    "/meta/connect": ({ advice }) => (advice?.timeout === 0 ? {} : isForgotten ? forget() : HELD),
  });
  bayeux.subscribe("/a/*", { replay: { "/a/*": 7 } });
  await until(bayeux, () => bayeux.session === "s2" && bayeux.isGranted("/a/*"));
  const asked = sent.flat().filter(({ channel }) => channel === "/meta/subscribe");
  assert.deepEqual(asked.map(({ clientId, ext }) => [clientId, ext.replay["/a/*"]]), [["s1", 7], ["s2", 7]]);
});

test("a later session continues a replay where it stopped, and says what is lost", async () => {
  const connects = [
    {},
    { ext: { ack: 3, replay: { "/a": 12 }, replay_gap: { "/a": [8, 9] } } },
    { successful: false, error: "402::session_unknown", advice: { reconnect: "handshake" } },
    {},
  ];
  const { bayeux, sent, heard } = connected({ "/meta/connect": () => connects.shift() ?? HELD });
  bayeux.subscribe("/a", { replay: { "/a": 5 } });
  assert.deepEqual(bayeux.replayed, ["/a"]);
  await until(bayeux, () => bayeux.session === "s2" && bayeux.isGranted("/a"));
  const positions = sent.flat().filter(({ channel }) => channel === "/meta/subscribe").map(({ ext }) => ext.replay["/a"]);
  assert.deepEqual(positions, [5, 12]);
  assert.deepEqual(sent.flat().filter(({ channel }) => channel === "/meta/connect").map(({ ext }) => ext.ack), [0, 0, 3, 0, 0]);
  assert.deepEqual(heard, [["missed", { channel: "/a", first: 8, last: 9, reason: "expired" }]]);
});

test("a subscription that is refused is dropped; one whose session was unknown is not", async () => {
  const { bayeux, heard } = connected({
    "/meta/subscribe": ({ subscription }, all) => {
      const isFirst = all.filter((message) => message.subscription === subscription).length === 1;
      if (subscription === "/no") return { successful: false, error: "403::subscribe_denied" };
      return isFirst ? { successful: false, error: "402::session_unknown" } : {};
    },
    "/meta/connect": (_, all) => (all.filter(({ channel }) => channel === "/meta/connect").length < 4 ? {} : HELD),
  });
  bayeux.subscribe("/no");
  bayeux.subscribe("/yes");
  await until(bayeux, () => bayeux.isGranted("/yes"));
  assert.deepEqual(bayeux.subscriptions, ["/yes"]);
  assert.deepEqual(heard.map(([type, { channel, error }]) => [type, channel, error.message]), [["refused", "/no", "403::subscribe_denied"]]);
});

test("events are delivered, replies and meta messages are not, and a revoked subscription is given up", async () => {
  const event = { channel: "/a", data: 1 };
  const revoked = { channel: "/meta/unsubscribe", subscription: "/a", successful: true, ext: { revoked: true } };
  const forged = { channel: "/meta/connect", data: 1 };
  const { bayeux, heard } = connected({ "/meta/connect": ({ advice }) => (advice ? [{}, event, forged, revoked] : HELD) });
  bayeux.subscribe("/a");
  await until(bayeux, () => bayeux.state === "connected");
  assert.deepEqual(heard[0], ["message", event]);
  assert.deepEqual([heard.length, heard[1][0], heard[1][1].channel], [2, "refused", "/a"]);
  assert.deepEqual(bayeux.subscriptions, []);
});

test("advice against reconnecting ends it, with the server's error", async () => {
  const { bayeux, sent } = connected({
    "/meta/handshake": () => ({ successful: false, error: "403::token_invalid", advice: { reconnect: "none" } }),
  });
  await until(bayeux, () => bayeux.state === "disconnected");
  assert.equal(bayeux.error.message, "403::token_invalid");
  assert.equal(sent.length, 1);
});

test("advice for the transport takes precedence, and new advice replaces all of the old", async () => {
  const advice = { timeout: 1, interval: 5, "long-polling": { interval: 0 } };
  const { bayeux } = connected({ "/meta/connect": (message) => (message.advice ? { advice } : HELD) });
  await until(bayeux, () => bayeux.state === "connected");
  assert.deepEqual([bayeux.advice.interval, bayeux.advice.timeout, bayeux.advice.reconnect], [0, 1, "retry"]);
});

test("advice that a later reply omits is no longer in force", async () => {
  const replies = [{ advice: { timeout: 1 } }, { advice: { interval: 3 } }];
  const { bayeux, sent } = connected({ "/meta/connect": () => replies.shift() ?? HELD });
  await until(bayeux, () => sent.length === 4);
  assert.deepEqual([bayeux.advice.interval, bayeux.advice.timeout], [3, 60_000]);
});

test("an event that comes with a reply to an earlier session is not delivered", async () => {
  let release;
  const { bayeux, sent, heard } = connected({ "/slow": () => [{}, { channel: "/a", data: 1 }] });
  await until(bayeux, () => sent.length === 3);
  const answering = globalThis.fetch;
  globalThis.fetch = async (url, options) => {
    if (options.body.includes("/slow")) await new Promise((resolve) => (release = resolve));
    return answering(url, options);
  };
  const published = bayeux.publish("/slow", 1);
  await until(bayeux, () => release);
  await bayeux.disconnect();
  release();
  await published;
  assert.deepEqual(heard, []);
});

test("while it reconnects, connect() tries at once", async () => {
  let isUp = false;
  const { bayeux, sent } = connected({ "/meta/handshake": () => (isUp ? { clientId: "s" } : new Response("", { status: 502 })) });
  await until(bayeux, () => bayeux.state === "reconnecting");
  assert.ok(bayeux.retryAt > Date.now());
  isUp = true;
  bayeux.connect();
  await until(bayeux, () => bayeux.state === "connected");
  assert.equal(sent[1][0].channel, "/meta/handshake");
  assert.equal(bayeux.error, null);
});

test("disconnect ends the session, rejects what waits, and no reply brings it back", async () => {
  const { bayeux, sent } = connected();
  await until(bayeux, () => sent.length === 3);
  const waiting = bayeux.publish("/a", 1);
  const leaving = bayeux.disconnect();
  await assert.rejects(waiting, { message: "disconnected" });
  await leaving;
  assert.deepEqual([bayeux.state, bayeux.session], ["disconnected", null]);
  assert.deepEqual(sent.at(-1).map(({ channel, clientId }) => [channel, clientId]), [["/meta/disconnect", "s1"]]);
});

test("over a WebSocket nothing is posted, replies are told apart, and events of a reply come before it", async () => {
  const sockets = offerSockets();
  const { bayeux, sent, posted, heard } = connected({ "/a": ({ data }) => [{}, { channel: "/b", data }] });
  await until(bayeux, () => sent.length === 3);
  assert.deepEqual([bayeux.state, bayeux.transport], ["connected", "websocket"]);
  assert.equal(sockets[0].url, "ws://127.0.0.1/bayeux");
  assert.deepEqual(sent[0][0].supportedConnectionTypes, ["websocket", "long-polling"]);
  assert.deepEqual(sent.slice(1).flat().map(({ connectionType, advice }) => [connectionType, advice]), [
    ["websocket", { timeout: 0 }],
    ["websocket", undefined],
  ]);
  const replies = await Promise.all([1, 2, 3].map((data) => bayeux.publish("/a", data)));
  assert.deepEqual(replies.map(({ successful }) => successful), [true, true, true]);
  assert.deepEqual(heard.map(([, { data }]) => data), [1, 2, 3]);
  assert.equal(sockets[0].frames.length, 4);
  sockets[0].onmessage({ data: '{"channel":"/c","data":"pushed"}' });
  assert.equal(heard.at(-1)[1].data, "pushed");
  assert.deepEqual(posted, []);
});

for (const [name, fault] of [["refused", { refused: true }], ["closed before the first reply", { closedWith: 1006 }]]) {
  test(`a WebSocket that is ${name} is not tried again for a while, and the session goes by POST`, async () => {
    const sockets = offerSockets(fault);
    const { bayeux, sent } = connected({ "/meta/connect": (_, all) => (all.length < 9 ? {} : HELD) });
    await until(bayeux, () => sent.length >= 9);
    assert.deepEqual([bayeux.state, bayeux.transport, bayeux.error], ["connected", "long-polling", null]);
    assert.equal(sockets.length, 1);
    assert.ok((await bayeux.publish("/a", 1)).successful);
  });
}

test("while the server is away WebSockets are not taken for blocked", async () => {
  const sockets = offerSockets({ refused: true });
  let isUp = false;
  const { bayeux } = connected({ "/meta/handshake": () => (isUp ? { clientId: "s" } : new Response("", { status: 502 })) });
  await until(bayeux, () => bayeux.state === "reconnecting");
  const before = sockets.length;
  offerSockets();
  isUp = true;
  bayeux.connect();
  await until(bayeux, () => bayeux.state === "connected");
  assert.deepEqual([before, bayeux.transport], [1, "websocket"]);
});

test("a WebSocket that is cut is opened again, with the same session and a connect first", async () => {
  const sockets = offerSockets();
  const { bayeux, sent } = connected();
  await until(bayeux, () => sent.length === 3);
  const { session } = bayeux;
  sockets[0].end(1006);
  await until(bayeux, () => bayeux.state === "reconnecting");
  bayeux.connect();
  await until(bayeux, () => sent.length === 5);
  assert.deepEqual([bayeux.transport, bayeux.session, sockets.length], ["websocket", session, 2]);
  const [{ channel, advice }] = sockets[1].frames[0];
  assert.deepEqual([channel, advice], ["/meta/connect", { timeout: 0 }]);
});

test("after a WebSocket that has worked, one that is lost as it opens is tried again soon", async (t) => {
  const sockets = offerSockets();
  let isHeld = true;
  const { bayeux, sent } = connected({
    "/meta/connect": ({ advice }) =>
      isHeld && advice?.timeout !== 0 ? HELD : new Promise((resolve) => setTimeout(() => resolve({}), 1)),
  });
  await until(bayeux, () => sent.length === 3);
  isHeld = false;
  const lost = offerSockets({ refused: true });
  sockets[0].end(1006);
  await until(bayeux, () => bayeux.state === "reconnecting");
  bayeux.connect();
  await until(bayeux, () => bayeux.state === "connected");
  assert.deepEqual([bayeux.transport, lost.length], ["long-polling", 1]);
  const later = offerSockets();
  const now = Date.now;
  t.mock.method(Date, "now", () => now() + 11_000);
  await until(bayeux, () => bayeux.transport === "websocket");
  isHeld = true;
  assert.equal(later.length, 1);
});

test("what is long is posted, and what a WebSocket is closed for is posted to learn why", async () => {
  const sockets = offerSockets();
  const { bayeux, sent, posted } = connected({
    "/deep": (_, all) => (all.filter(({ channel }) => channel === "/deep").length > 1 ? new Response("", { status: 400 }) : HELD),
  });
  await until(bayeux, () => sent.length === 3);
  await bayeux.publish("/a", "x".repeat(30_000));
  assert.deepEqual([posted.length, bayeux.transport], [1, "websocket"]);
  const publishing = bayeux.publish("/deep", 1);
  await until(bayeux, () => sockets[0].frames.at(-1)[0].channel === "/deep");
  sockets[0].end(1002);
  await assert.rejects(publishing, { message: "the server responded with HTTP 400", isOutcomeUnknown: false });
});

test("a publish whose WebSocket was cut may have taken effect", async () => {
  const sockets = offerSockets();
  const { bayeux, sent } = connected({ "/a": () => HELD });
  await until(bayeux, () => sent.length === 3);
  const publishing = bayeux.publish("/a", 1);
  await until(bayeux, () => sent.length === 4);
  sockets[0].end(1006);
  await assert.rejects(publishing, { message: "the connection was lost", isOutcomeUnknown: true });
});

test("transports can be chosen", async () => {
  const sockets = offerSockets({ refused: true });
  const polling = connected({}, { transport: "long-polling" });
  await until(polling.bayeux, () => polling.bayeux.state === "connected");
  assert.deepEqual([sockets.length, polling.sent[0][0].supportedConnectionTypes], [0, ["long-polling"]]);
  const { bayeux, posted } = connected({}, { transport: "websocket" });
  await until(bayeux, () => bayeux.state === "reconnecting");
  assert.deepEqual([bayeux.error.message, posted], ["the server cannot be reached", []]);
});

const forgotten = { successful: false, error: "402::session_unknown", advice: { reconnect: "handshake", interval: 0 } };
const denied = (reason) => ({ successful: false, error: `403:${reason}:handshake_denied`, advice: { reconnect: "none" } });

test("with `resume` each subscription continues: where its grant has placed it, or a connect after that", async () => {
  const connects = [{ ext: { replay: { "/b": 9 } } }, {}, forgotten, {}];
  const { bayeux, sent, heard } = connected(
    {
      "/meta/handshake": (_, all) => ({ clientId: `s${all.length}`, ext: { ack: true, replay: true, replay_log: "L" } }),
      "/meta/subscribe": ({ subscription }) => ({ ext: { replay: { [subscription]: 4 } } }),
      "/meta/connect": (_, all) => (all.some(({ subscription }) => subscription) ? (connects.shift() ?? HELD) : {}),
    },
    { resume: true },
  );
  bayeux.subscribe("/a");
  bayeux.subscribe("/b");
  const asked = () => sent.flat().filter(({ subscription }) => subscription);
  await until(bayeux, () => asked().length === 4 && bayeux.isGranted("/b"));
  assert.deepEqual(sent[0][0].ext.replay, { in_data: false });
  assert.deepEqual(asked().map(({ ext }) => ext), [
    undefined,
    undefined,
    { replay: { "/a": 4 }, replay_log: "L" },
    { replay: { "/b": 9 }, replay_log: "L" },
  ]);
  assert.deepEqual([bayeux.reached("/a"), bayeux.reached("/b"), bayeux.reached("/c")], [4, 9, null]);
  assert.deepEqual(heard, []);
});

for (const [name, position, log, start, next, missed] of [
  ["is too old", 5, "L", 8, -2, { first: 6, last: 7, reason: "expired" }],
  ["is beyond the log", 50, "L", 1, -1, { first: 50, last: 7, reason: "ahead" }],
]) {
  test(`a subscription whose position ${name} is made again without it, and what is missing is reported`, async () => {
    const { bayeux, sent, heard } = connected({
      "/meta/handshake": () => ({ clientId: "s", ext: { replay: true, replay_log: log } }),
      "/meta/subscribe": ({ subscription, ext }) =>
        ext.replay[subscription] > 0
          ? { successful: false, error: "400::The replayId was invalid", ext: { replay_start: { [subscription]: start } } }
          : { ext: { replay: { [subscription]: 7 } } },
    });
    bayeux.subscribe("/a", { replay: { "/a": position } });
    await until(bayeux, () => bayeux.isGranted("/a"));
    const asked = sent.flat().filter(({ subscription }) => subscription).map(({ ext }) => ext.replay["/a"]);
    assert.deepEqual(asked, [position, next]);
    assert.deepEqual(heard, [["missed", { channel: "/a", ...missed }]]);
    assert.equal(bayeux.reached("/a"), 7);
  });
}

test("a position of another log is not asked for in this one", async () => {
  let log = "old";
  const connects = [{ ext: { replay: { "/a": 3 } } }, forgotten];
  const { bayeux, heard } = connected({
    "/meta/handshake": () => ({ clientId: log, ext: { replay: true, replay_log: log } }),
    "/meta/connect": (_, all) => {
      const reply = all.some(({ subscription }) => subscription) ? (connects.shift() ?? HELD) : {};
      if (reply === forgotten) log = "new";
      return reply;
    },
    "/meta/subscribe": ({ ext }) =>
      (ext.replay_log ?? log) === log
        ? { ext: { replay: { "/a": ext.replay["/a"] < 0 ? 70 : ext.replay["/a"] } } }
        : { successful: false, error: "400::The replayId was invalid", ext: { replay_start: { "/a": 60 } } },
  });
  bayeux.subscribe("/a", { replay: { "/a": 0 } });
  await until(bayeux, () => bayeux.session === "new" && bayeux.isGranted("/a"));
  assert.deepEqual(heard, [["missed", { channel: "/a", first: 3, last: 70, reason: "ahead" }]]);
});

test("a token that the server refuses is asked for again, with the reason, and another one is shown at once", async () => {
  const reasons = [];
  const tokens = ["old", "newer", "newest"];
  const token = async (refused) => (reasons.push(refused), tokens[reasons.length - 1]);
  const connects = [{ successful: false, error: "403::token_expired", advice: { reconnect: "handshake" } }];
  const { bayeux, sent } = connected(
    {
      "/meta/handshake": ({ ext }) => (ext.authentication === "old" ? denied("token_expired") : { clientId: ext.authentication }),
      "/meta/connect": ({ advice }) => (advice ? {} : (connects.shift() ?? HELD)),
    },
    { token },
  );
  bayeux.subscribe("/a");
  await until(bayeux, () => bayeux.session === "newest" && bayeux.isGranted("/a"));
  assert.deepEqual(reasons, [null, "token_expired", "token_expired"]);
  const shown = sent.flat().filter(({ channel }) => channel === "/meta/handshake").map(({ ext }) => ext.authentication);
  assert.deepEqual(shown, tokens);
});

test("a token that is refused, and is the same again, ends it; so does one without a function", async () => {
  for (const token of ["bad", () => "bad"]) {
    const { bayeux, sent } = connected({ "/meta/handshake": () => denied("token_invalid") }, { token });
    await until(bayeux, () => bayeux.state === "disconnected");
    assert.equal(bayeux.error.message, "403:token_invalid:handshake_denied");
    assert.equal(sent.length, 1);
  }
});

test("a function that has no token is asked again after a pause", async () => {
  let isUp = false;
  const token = async () => {
    if (!isUp) throw new Error("the login is down");
    return "good";
  };
  const { bayeux, sent } = connected({}, { token });
  await until(bayeux, () => bayeux.state === "reconnecting");
  assert.equal(bayeux.error.message, "the login is down");
  assert.equal(sent.length, 0);
  isUp = true;
  bayeux.connect();
  await until(bayeux, () => bayeux.state === "connected");
  assert.equal(sent[0][0].ext.authentication, "good");
});

test("pauses grow to a minute; a forgotten session costs none, once", () => {
  const backoff = new Backoff();
  assert.equal(backoff.next(true), 0);
  const pauses = Array.from({ length: 200 }, () => backoff.next(true));
  for (const [index, pause] of pauses.entries()) {
    const most = Math.min(60_000, (index + 2) * 1_000);
    assert.ok(pause >= most / 2 && pause <= most, `${pause} of ${most}`);
  }
  backoff.reset();
  assert.equal(backoff.next(true), 0);
  assert.ok(backoff.next(false) <= 2_000);
});
