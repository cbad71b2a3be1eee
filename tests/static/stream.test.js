/** The reader of event streams: its parser, and what it makes of a server's responses. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { eventStream, StreamError } from "../../static/client/index.js";
import { ServerSentEvents } from "../../static/client/server-sent-events.js";

const SERVER = "http://127.0.0.1:8080/rt";
const event = (position, data = position) => `id: ${position}\ndata: {"channel":"/a","data":${data},"position":${position}}\n\n`;
const begin = (position) => `retry: 0\nid: ${position}\n\n`;
const end = (reason) => `event: end\ndata: {"reason":"${reason}"}\n\n`;

/** A response whose body is the given pieces, and which stays open at its end if the last one is null. */
function stream(...pieces) {
  let cut;
  const body = new ReadableStream({
    start: (controller) => (cut = (reason) => controller.error(reason)),
    pull(controller) {
      const piece = pieces.shift();
      if (piece === undefined) controller.close();
      else if (piece !== null) controller.enqueue(new TextEncoder().encode(piece));
      else return new Promise(() => {});
      return undefined;
    },
  });
  const response = new Response(body, { headers: { "Content-Type": "text/event-stream", "Halley-Log": "L" } });
  return Object.assign(response, { cut });
}

/** Let `fetch` give these responses, or throw these errors, one after the other; returns what it was asked for. */
function serve(...responses) {
  const asked = [];
  globalThis.fetch = async (url, { headers, signal }) => {
    asked.push({ url: String(url), headers, signal });
    const response = responses.shift();
    if (response instanceof Error) throw response;
    signal.addEventListener("abort", () => response.cut?.(signal.reason));
    return response;
  };
  return asked;
}

/** Let pauses between attempts take no time; longer times are deadlines. */
function skipPauses(t) {
  const { setTimeout } = globalThis;
  t.mock.method(globalThis, "setTimeout", (callback, ms) => setTimeout(callback, ms < 10_000 ? 0 : ms));
}

/** Read until there are so many events. */
async function read(reader, count) {
  const events = [];
  for await (const { data } of reader) if (events.push(data) === count) break;
  return events;
}

test("a parser makes the same of a text, however it is cut, and of any line ends", () => {
  const text = "\uFEFFretry: 5\nid: 1\n\n:\n\nevent: gap\nid:2\ndata: a\ndata:  b\ndata\n\nunknown: x\nid: 3\ndata: é\n\n";
  const expected = [
    { event: "message", data: null, id: "1", retryMs: 5 },
    { event: "message", data: null, id: null, retryMs: null },
    { event: "gap", data: "a\n b\n", id: "2", retryMs: null },
    { event: "message", data: "é", id: "3", retryMs: null },
  ];
  for (const lineEnd of ["\n", "\r", "\r\n"]) {
    const ended = text.replaceAll("\n", lineEnd);
    for (let size = 1; size <= ended.length; size += 1) {
      const parser = new ServerSentEvents();
      const blocks = [];
      for (let at = 0; at < ended.length; at += size) blocks.push(...parser.push(ended.slice(at, at + size)));
      assert.deepEqual(blocks, expected, `${JSON.stringify(lineEnd)} by ${size}`);
    }
  }
});

test("a parser keeps no more than a few MiB", () => {
  const parser = new ServerSentEvents();
  assert.throws(() => { for (;;) parser.push("x".repeat(100_000)); }, RangeError);
  const lines = new ServerSentEvents();
  assert.throws(() => { for (;;) lines.push("data: x\n".repeat(10_000)); }, RangeError);
});

test("the first request asks for what is wanted, with the token in a header; a later one goes on at the position", async (t) => {
  skipPauses(t);
  const asked = serve(stream(begin(6), event(7)), new TypeError("reset"), stream(begin(7), event(8), event(9)));
  const lost = [];
  const reader = eventStream(SERVER, {
    channels: ["/a", "/b/**"], last: 2, token: "secret", onLost: ({ error, retryMs }) => lost.push([error.message, retryMs]),
  });
  assert.deepEqual(await read(reader, 3), [7, 8, 9]);
  assert.deepEqual(asked.map(({ url }) => url), [
    "http://127.0.0.1:8080/rt/events?channel=%2Fa&channel=%2Fb%2F**&last=2",
    "http://127.0.0.1:8080/rt/events?channel=%2Fa&channel=%2Fb%2F**&log=L",
    "http://127.0.0.1:8080/rt/events?channel=%2Fa&channel=%2Fb%2F**&log=L",
  ]);
  const { Accept, Authorization } = asked[0].headers;
  assert.deepEqual([Accept, Authorization], ["text/event-stream", "Bearer secret"]);
  assert.deepEqual(asked.map(({ headers }) => headers["Last-Event-ID"]), [undefined, "7", "7"]);
  assert.deepEqual(lost.map(([message]) => message), ["the server has closed the connection", "the server cannot be reached"]);
  assert.ok(lost[0][1] <= 1_000 && lost[1][1] > lost[0][1], `${lost}`);
  assert.equal(reader.position, 9);
  assert.ok(asked[2].signal.aborted, "leaving the loop closes the connection");
});

test("a sign of life moves the position, and a gap is reported between its events", async () => {
  const gap = 'event: gap\nid: 5\ndata: {"from":3,"to":5,"reason":"expired"}\n\n';
  serve(stream(begin(1), event(2) + gap + event(6) + ":\nid: 20\n\n", null));
  const seen = [];
  const ending = new AbortController();
  const { signal } = ending;
  const reader = eventStream(SERVER, { channels: ["/a"], after: 1, signal, onOpen: () => seen.push("open"), onGap: (each) => seen.push(each) });
  const reading = reader[Symbol.asyncIterator]();
  for (const expected of [2, 6]) {
    seen.push((await reading.next()).value.data);
    assert.equal(reader.position, expected);
  }
  assert.deepEqual(seen, ["open", 2, { from: 3, to: 5, reason: "expired" }, 6]);
  reading.next().catch(() => {});
  while (reader.position !== 20) await new Promise((resolve) => setTimeout(resolve, 1));
  ending.abort();
});

test("a server that is full or draining is tried again when it says", async (t) => {
  const asked = serve(
    new Response("full", { status: 503, headers: { "Retry-After": "0" } }),
    new Response("busy", { status: 429, headers: { "Retry-After": "1" } }),
    stream("retry: 1\nid: 4\n\n"), // a stream for which there is no room
    stream(begin(4), event(5)),
  );
  const lost = [];
  const reader = eventStream(SERVER, { channels: ["/a"], onLost: ({ error, retryMs }) => lost.push([error.message, retryMs]) });
  skipPauses(t);
  assert.deepEqual(await read(reader, 1), [5]);
  assert.equal(asked.length, 4);
  assert.deepEqual(lost.map(([message]) => message), [
    "the server responded with HTTP 503", "the server responded with HTTP 429", "the server has closed the connection",
  ]);
  assert.ok(lost[1][1] >= 1_000 && lost[2][1] > 1_000, `${lost}`); // each later than the one before
});

test("what the server would refuse again is an error; its reason is the server's", async () => {
  for (const [response, status, reason] of [
    [new Response("token_invalid", { status: 401 }), 401, "token_invalid"],
    [new Response("channel: expected a Bayeux channel", { status: 400 }), 400, "channel: expected a Bayeux channel"],
    [new Response("<html>", { headers: { "Content-Type": "text/html" } }), 200, ""],
    [stream(begin(1), end("slow_consumer")), 200, "slow_consumer"],
    [stream(begin(1), end("token_expired")), 200, "token_expired"],
    [stream(begin(1), "data: {\n\n"), 200, ""],
  ]) {
    const asked = serve(response);
    await assert.rejects(read(eventStream(SERVER, { channels: ["/a"], token: "t" }), 1), (error) => {
      assert.ok(error instanceof StreamError);
      assert.deepEqual([error.status, error.reason], [status, reason]);
      return true;
    });
    assert.equal(asked.length, 1);
  }
});

test("a function gives another token for one that has expired, and the stream goes on where it was", async (t) => {
  skipPauses(t);
  const asked = serve(
    stream(begin(1), event(2), end("token_expired")),
    new Response("token_expired", { status: 401 }),
    stream(begin(2), event(3)),
  );
  const reasons = [];
  const token = (refused) => `t${reasons.push(refused)}`;
  assert.deepEqual(await read(eventStream(SERVER, { channels: ["/a"], token }), 2), [2, 3]);
  assert.deepEqual(reasons, [null, "token_expired", "token_expired"]);
  assert.deepEqual(asked.map(({ headers }) => headers.Authorization), ["Bearer t1", "Bearer t2", "Bearer t3"]);
  assert.deepEqual(asked.map(({ headers }) => headers["Last-Event-ID"]), [undefined, "2", "2"]);
});

test("a signal ends the reading, also while it waits for the next attempt", async () => {
  for (const response of [stream(begin(1), null), new TypeError("down")]) {
    const ending = new AbortController();
    serve(response);
    const reading = read(eventStream(SERVER, { channels: ["/a"], signal: ending.signal, onLost: () => ending.abort("enough") }), 1);
    if (response instanceof Response) setTimeout(() => ending.abort("enough"), 10);
    await assert.rejects(reading, (reason) => reason === "enough");
  }
});

test("a silent connection is given up, and a stream is not read twice", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  serve(stream(begin(1), null), stream(begin(1), event(2)));
  const lost = [];
  const reader = eventStream(SERVER, { channels: ["/a"], onLost: ({ error }) => lost.push(error.message) });
  const reading = read(reader, 1);
  let isOver = false;
  reading.then(() => (isOver = true));
  while (!isOver) {
    await new Promise((resolve) => setImmediate(resolve));
    t.mock.timers.tick(1_000);
  }
  assert.deepEqual(await reading, [2]);
  assert.deepEqual(lost, ["nothing was received within 60 s"]);
  assert.throws(() => reader[Symbol.asyncIterator](), /read once/);
});

test("wrong arguments get one sentence", () => {
  for (const [url, options, message] of [
    [SERVER, { channels: [] }, /^channels: expected a list/],
    [SERVER, { channels: "/a" }, /^channels: expected a list/],
    [SERVER, { channels: ["a"] }, /^channels: expected a list/],
    [SERVER, { channels: ["/a"], after: -1 }, /^after: expected a position/],
    [SERVER, { channels: ["/a"], after: 1, last: 1 }, /^expected one of after and last/],
    [SERVER, { channels: ["/a"], last: 1.5 }, /^last: expected a number/],
    [SERVER, { channels: ["/a"], token: 7 }, /^token: expected a text/],
    ["/rt", { channels: ["/a"] }, /^url: expected that of a server/],
    ["ws://127.0.0.1/", { channels: ["/a"] }, /^url: expected that of a server/],
  ]) {
    assert.throws(() => eventStream(url, options), { name: "TypeError", message });
  }
});
