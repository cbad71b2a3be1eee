/** What computes without a page: shapes, numbers, times, JSON, names, patterns. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { matches } from "../../static/client/patterns.js";
import { even, powers } from "../../static/console/axis.js";
import { withBytesCounted } from "../../static/console/bytes.js";
import { Clock, exactSpan, span } from "../../static/console/clock.js";
import { troubles } from "../../static/console/cluster-troubles.js";
import { parsed } from "../../static/console/json.js";
import { duration, perSecond, short, weight, whole } from "../../static/console/numbers.js";
import { nameOf, PROTOCOLS } from "../../static/console/protocol.js";
import { isDenied, plain, refusal } from "../../static/console/refusals.js";
import { Replay } from "../../static/console/replay.js";
import { flag, list, map, number, object, optional, text, time } from "../../static/console/shape.js";
import { topicName } from "../../static/console/topic-name.js";
import { controlOf, textOf, valueOf } from "../../static/console/value-types.js";

/** Test that a function returns, for the arguments of each row, what the row ends with. */
function table(name, call, rows) {
  test(name, () => {
    for (const row of rows) assert.deepEqual(call(...row.slice(0, -1)), row.at(-1), `${name}: ${JSON.stringify(row)}`);
  });
}

const TICK = object({ time, note: optional(text), counts: map(number), on: list(object({ is: flag })) });
const GOOD = { time: "2026-01-01T00:00:00Z", counts: { a: 1 }, on: [{ is: true }], more: 1 };

table("a shape accepts what has its names, and more", TICK, [
  [GOOD, true],
  [{ ...GOOD, note: null }, true],
  [{ ...GOOD, note: "x" }, true],
]);
table("a shape refuses what a view could not show", TICK, [
  [null, false],
  [undefined, false],
  [[], false],
  ["", false],
  [{ ...GOOD, time: "yesterday" }, false],
  [{ ...GOOD, note: 1 }, false],
  [{ ...GOOD, counts: { a: "1" } }, false],
  [{ ...GOOD, counts: [1] }, false],
  [{ ...GOOD, counts: { a: Infinity } }, false],
  [{ ...GOOD, on: {} }, false],
  [{ ...GOOD, on: [{ is: true }, { is: 1 }] }, false],
]);
table("a shape reads no inherited names", object({ toString: (value) => value === undefined }), [[{}, true]]);

table("a number in at most five characters", short, [
  [0, "0"], [0.123, "0.12"], [1.25, "1.3"], [0.996, "1.0"], [9.99, "10"], [10.4, "10"], [9_999, "9999"], [12_345, "12.3k"],
  [123_456, "123k"], [99_999, "100k"], [999_999, "1.0M"], [1_234_567, "1.2M"],
  [99_999_999, "100M"], [5e9, "5000M"],
]);
table("a span of milliseconds in its unit", duration, [
  [0, "0 ms"], [0.0004, "0 µs"], [0.25, "250 µs"], [0.9994, "999 µs"], [1, "1 ms"], [999.4, "999 ms"], [999.5, "1.0 s"],
]);
table("counts, and a dash for what is not known", whole, [[0, "0"], [1_234.6, "1,235"], [null, "–"], [undefined, "–"]]);
table("rates have one decimal place", perSecond, [[0, "0.0"], [1_234.56, "1,234.6"], [null, "–"]]);
table("bytes in their unit", weight, [[999, "999 B"], [1_000, "1.0 kB"], [1_500_000, "1.5 MB"]]);

table("a span in its largest unit", span, [[0.9, "0 s"], [59.9, "59 s"], [60, "1 min"], [7_199, "1 h"], [172_800, "2 d"]]);
table("a span in its two largest units", exactSpan, [
  [-1, "0 s"], [59, "59 s"], [184, "3 min 4 s"], [3_660, "1 h 1 min"], [90_000, "1 d 1 h"],
]);
test("ages are told by the server's clock", () => {
  const clock = new Clock();
  clock.set(new Date(Date.now() + 90_000).toISOString());
  clock.set("never");
  assert.equal(clock.ago(Date.now()), "1 min ago");
  assert.equal(clock.ago(Date.now() + 150_000), "now");
});

test("a linear axis ends at a round number", () => {
  for (const [values, top] of [[[], 1], [[0.3], 1], [[2], 2], [[3], 5], [[51, 7], 100], [[1_000], 1_000]]) {
    const axis = even(values);
    assert.deepEqual(axis.marks, [0, top / 2, top]);
    assert.equal(axis.part(top), 1);
  }
});
test("a logarithmic axis has two powers of ten at least, and few marks", () => {
  assert.deepEqual(powers([]).marks, [1, 2, 5, 10, 20, 50, 100]);
  assert.deepEqual(powers([3, 40]).marks, [1, 2, 5, 10, 20, 50, 100]);
  const wide = powers([0.0000001, 1e6]);
  assert.ok(wide.marks.length <= 7);
  assert.equal(wide.part(0), 0);
  assert.equal(wide.part(1e6), 1);
});

table("JSON that people type", parsed, [[' {"a": [1, -2.5e3, "x\\n", null, true]} ', { a: [1, -2500, "x\n", null, true] }], ["0", 0]]);
test("the place of what is not JSON", () => {
  for (const [typed, expected] of [
    ["", "Not JSON at line 1, column 1: expected a value, found the end"],
    ["{a: 1}", 'Not JSON at line 1, column 2: expected a name in "quotes", found a'],
    ['{"a" 1}', 'Not JSON at line 1, column 6: expected ":", found 1'],
    ["[1,\n2", 'Not JSON at line 2, column 2: expected "," or "]", found the end'],
    ["[1,]", "Not JSON at line 1, column 4: expected a value, found ]"],
    ["1 2", "Not JSON at line 1, column 3: expected the end, found 2"],
    ['"a', "Not JSON at line 1, column 1: this string is not closed or has a character that must be escaped"],
    ["tru", "Not JSON at line 1, column 1: expected a value, found tru"],
    ["01", "Not JSON at line 1, column 2: expected the end, found 1"],
    ["9007199254740993", "Integer beyond 53 bits: a browser would round it to 9007199254740992"],
  ]) assert.throws(() => parsed(typed), { name: "SyntaxError", message: expected }, typed);
});

table("bytes in JSON are shown by their number", withBytesCounted, [
  ['"\\u0000AAAA"', "3 bytes"], ['["\\u0000AA==", "x"]', '[1 byte, "x"]'], ['"\\\\u0000AAAA"', '"\\\\u0000AAAA"'],
]);
table("a topic's name is unescaped", topicName, [
  ["/robot/Auto!20Chooser", "/robot/Auto Chooser"], ["/a!c3!a9", "/aé"], ["/a!21", "/a!21"], ["/a!2120", "/a!20"],
  ["/a!41", "/a!41"], ["/a!ff", "/a!ff"],
]);
table("the control of a type", controlOf, [
  ["boolean", "switch"], ["int", "number"], ["string", "text"], ["double[]", "json"], ["json", "json"], ["raw", "none"],
  ["struct:Pose2d", "none"], ["boolean[][]", "none"],
]);
table("a value in its control", textOf, [["string", "a", "a"], ["int", 1, "1"], ["raw", "\0AAAA", "3 bytes"]]);
table("a control's value", valueOf, [["string", " a", " a"], ["double", " -1.5", -1.5], ["int[]", "[1]", [1]]]);
test("what is not a number is refused", () => assert.throws(() => valueOf("int", "true"), { message: "Expected a number" }));

table("patterns match channels as at the server", matches, [
  ["/a", "/a", true], ["/a", "/a/b", false], ["/a/*", "/a/b", true], ["/a/*", "/a/b/c", false], ["/a/*", "/a", false],
  ["/a/**", "/a/b/c", true], ["/a/**", "/ab", false], ["/**", "/a", true], ["/**", "/halley/rates", false],
  ["/**", "/halleys", true], ["/halley/**", "/halley/rates", true], ["/*", "/halley", false],
]);

test("a refusal names the right that is missing, or the reason", () => {
  const say = (message) => refusal(new Error(message), "publish to /a", "publish this");
  assert.equal(say("403:denied_by_security_policy:publish_denied"), "Sign in with a token that may publish to /a to publish this.");
  assert.equal(say("403:closed_today:publish_denied"), "Sign in with a token that may publish to /a to publish this (closed_today).");
  assert.equal(say("413::data_too_large"), "Cannot publish this: the data is larger than the server allows.");
  assert.equal(plain(new Error("400:int:value_type_mismatch")), "expected a value of the type int");
  assert.equal(plain(new Error("400::__proto__")), "  proto  ");
  assert.ok(isDenied(Object.assign(new Error("no"), { status: 403 })));
});

test("a replay's beginning and end are noted once", () => {
  const replay = new Replay("/a/*", 5, 7);
  const notes = (position, channel = "/a/b") => replay.notesOn({ channel, ext: { replay: position } });
  assert.deepEqual(notes(3), { before: "", after: "" });
  assert.equal(notes(5).before, "Replay of /a/* from position 5");
  assert.deepEqual(notes(6, "/c"), { before: "", after: "" });
  assert.deepEqual(replay.notesOn({ channel: "/a/b" }), { before: "", after: "" });
  assert.equal(notes(8).after, "The replay of /a/* is complete, up to position 8");
  assert.ok(replay.isOver);
});

const SOUND = {
  nodes: [{ node: "a", refusal: null }, { node: "b" }],
  stream: { bytes: 79, max_bytes: 100 },
  keepers: [{ node: "a", away_s: 0, is_left_behind: false }],
  differs: [],
};
const AWAY = { node: "c", away_s: 9, is_left_behind: false };
table("the sentences about a cluster", troubles, [
  [SOUND, []],
  [{ ...SOUND, stream: null, keepers: undefined }, []],
  [{ ...SOUND, stream: { bytes: 80, max_bytes: 100 } }, ["80 % of the stream's bytes are used."]],
  [{ ...SOUND, keepers: [...SOUND.keepers, AWAY] }, ["Away, and waited for: c."]],
  [
    { ...SOUND, keepers: [...SOUND.keepers, { ...AWAY, is_left_behind: true }] },
    ["Left behind by the stream, and copying from another keeper when back: c."],
  ],
  [{ ...SOUND, keepers: [AWAY] }, ["No keeper is there that can write.", "Away, and waited for: c."]],
  [
    { ...SOUND, nodes: [{ node: "a", refusal: "stream_full" }, { node: "b", refusal: "stream_full" }, { node: "c", refusal: "later" }] },
    ["Durable publishes are refused at a, b: the stream is full.", "Durable publishes are refused at c: later."],
  ],
  [{ ...SOUND, differs: [{ what: "record", nodes: [["a", "b"], ["c"]] }] }, ["The nodes differ in record (a and b, unlike c)."]],
]);

table("the name of a protocol", nameOf, [
  ["bayeux", "Bayeux"],
  ["wamp", "WAMP"],
  ["nt4", "NT4"],
  ["events", "SSE"],
  ["another", "another"],
  ["constructor", "constructor"],
]);

test("each protocol has a choice in the filter of sessions, and a colour of its own", () => {
  const read = (/** @type {string} */ file) => readFileSync(new URL(`../../static/${file}`, import.meta.url), "utf8");
  const filter = read("index.html").match(/id="sessions-protocol"[^]*?<\/select>/)?.[0] ?? "";
  const choices = [...filter.matchAll(/value="(\w+)">([^<]+)</g)].map(([, value, name]) => [value, name]);
  assert.deepEqual(Object.fromEntries(choices), PROTOCOLS);
  for (const protocol of Object.keys(PROTOCOLS)) {
    assert.match(read("console/console.css"), new RegExp(`\\[data-protocol="${protocol}"\\]`));
    assert.match(read("look.css"), new RegExp(`--${protocol}: `));
  }
});
