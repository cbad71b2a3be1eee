/** What the console's modules hold without drawing it: subscriptions, the tree of channels, pages, timers. */

import assert from "node:assert/strict";
import { mock, test } from "node:test";

import { ChannelTree } from "../../static/console/channel-tree.js";
import { Feed } from "../../static/console/feed.js";
import { read } from "../../static/console/history-pages.js";
import { LastData } from "../../static/console/last-data.js";
import { Redraw } from "../../static/console/redraw.js";

/** A Bayeux client that notes what it is asked for. */
class Client extends EventTarget {
  calls = [];
  subscribe(pattern, ext) {
    this.calls.push(ext ? ["subscribe", pattern, ext] : ["subscribe", pattern]);
  }
  async unsubscribe(pattern) {
    this.calls.push(["unsubscribe", pattern]);
  }
  omit(pattern, name) {
    this.calls.push(["omit", pattern, name]);
  }
  dispatch(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}

function owner() {
  const received = [];
  return { all: received, received: ({ channel, data }) => received.push([channel, data]), refused: (...what) => received.push(what) };
}

test("an event is received once by each owner with a pattern that matches", () => {
  const client = new Client();
  const feed = new Feed(client);
  const [one, other] = [owner(), owner()];
  feed.subscribe("/a/*", one);
  feed.subscribe("/a/b", one);
  feed.subscribe("/c", other);
  client.dispatch("message", { channel: "/a/b", data: 1 });
  assert.deepEqual([one.all, other.all], [[["/a/b", 1]], []]);
});

test("the page stays subscribed as long as a pattern has an owner", async () => {
  const client = new Client();
  const feed = new Feed(client);
  const [one, other] = [owner(), owner()];
  feed.subscribe("/a", one, { latest: true });
  feed.subscribe("/a", other);
  await feed.unsubscribe("/a", one);
  await feed.unsubscribe("/a", one);
  assert.deepEqual(client.calls.slice(2), [["omit", "/a", "latest"]]);
  feed.unsubscribeAll(other);
  assert.deepEqual(client.calls.slice(3), [["unsubscribe", "/a"]]);
});

test("a refusal ends the owners' subscriptions", () => {
  const client = new Client();
  const feed = new Feed(client);
  const one = owner();
  feed.subscribe("/a", one);
  client.dispatch("refused", { channel: "/a", error: "no" });
  client.dispatch("message", { channel: "/a", data: 1 });
  assert.deepEqual([one.all, feed.patternsOf(one)], [[["/a", "no"]], []]);
});

test("the position that a replay adds to data is removed, and data that has such a member itself is kept", () => {
  const client = new Client();
  const feed = new Feed(client);
  const one = owner();
  feed.subscribe("/a", one);
  client.dispatch("message", { channel: "/a", data: { x: 1, event: { replayId: 7 } }, ext: { replay: 7 } });
  client.dispatch("message", { channel: "/a", data: { event: { replayId: 7 } } });
  assert.deepEqual(one.all, [["/a", { x: 1 }], ["/a", { event: { replayId: 7 } }]]);
});

test("a value that the server repeats is for those who requested it", () => {
  const client = new Client();
  const feed = new Feed(client);
  const [asking, other] = [owner(), owner()];
  feed.subscribe("/nt/a", asking, { latest: true });
  feed.subscribe("/nt/a", other);
  const value = (data, time, more) => client.dispatch("message", { channel: "/nt/a", data, ext: { nt4: { time }, ...more } });
  value(1, 10);
  value(1, 10);
  value(2, 10);
  value(1, 5, { replay: 3 }); // an old one, read from the history: what is newest stays known
  value(2, 10);
  assert.deepEqual(other.all.map(([, data]) => data), [1, 2, 1]);
  assert.deepEqual(asking.all.map(([, data]) => data), [1, 1, 2, 1, 2]);
});

const TIME = "2026-01-01T00:00:0";
const topic = (channel, published, second, perS = 1) => ({ channel, published, per_s: perS, subscribers: 1, last: `${TIME}${second}Z` });
const names = (tree, by, sign = 1, fits = null) => tree.visible(by, sign, fits).map(({ node }) => node.name);

test("the tree sums up what is below a branch, and sorts by each column", () => {
  const tree = new ChannelTree();
  tree.update({ time: `${TIME}9Z`, topics: [topic("/a/2", 5, 3, 9), topic("/a/10", 7, 2), topic("/b", 1, 1)], others: 4 });
  assert.deepEqual([tree.size, tree.unknown], [3, 4]);
  assert.deepEqual(names(tree, "name"), ["/a", "/a/2", "/a/10", "/b"]);
  assert.deepEqual(names(tree, "rate", 1), ["/b", "/a", "/a/10", "/a/2"]);
  assert.deepEqual(names(tree, "latest", -1), ["/a", "/a/2", "/a/10", "/b"]);
  assert.deepEqual(names(tree, "name", 1, (name) => name.endsWith("10")), ["/a", "/a/10"]);
  const { sum } = tree.find("/a");
  assert.deepEqual([sum.channels, sum.published, sum.perS], [2, 12, 10]);
  assert.equal(tree.find("/a/x"), null);
});

test("a channel that a tick no longer lists is silent only if the tick shows that", () => {
  const tree = new ChannelTree();
  tree.update({ time: `${TIME}2Z`, topics: [topic("/a", 1, 1)], others: 0 });
  tree.update({ time: `${TIME}4Z`, topics: [topic("/b", 1, 3)], others: 1 });
  assert.equal(tree.find("/a").own.perS, 1);
  tree.update({ time: `${TIME}5Z`, topics: [topic("/b", 1, 3)], others: 1 });
  assert.equal(tree.find("/a").own.perS, 0);
  tree.update({ time: `${TIME}7Z`, topics: [topic("/c", 1, 6)], others: 0 }); // it lists all that there are
  assert.equal(tree.find("/b").own.perS, 0);
});

test("the tree keeps the channels that were updated last, and no branch without any", () => {
  const tree = new ChannelTree();
  for (let index = 0; index < 5_001; index += 1) tree.addEvent(`/a/${index}/x`, index, index);
  assert.deepEqual([tree.size, tree.find("/a/0"), tree.find("/a/1/x").event.data], [5_000, null, 1]);
});

test("a search continues over empty pages, and reports the gaps of all", async () => {
  const pages = [
    { events: [], next: "http://elsewhere/history/a?after=1", previous: "/history/a?before=0", gaps: [[1, 2]] },
    { events: [{ position: 9 }], next: null, previous: "/history/a?before=9", gaps: [[5, 6]] },
  ];
  const asked = [];
  mock.method(globalThis, "fetch", async (url) => (asked.push(url.pathname + url.search), Response.json(pages.shift())));
  globalThis.location = { href: "http://here/rt/" };
  const page = await read("/a/é", "?limit=1");
  assert.deepEqual(asked, ["/rt/history/a/%C3%A9?limit=1", "/rt/history/a/%C3%A9?after=1"]);
  assert.deepEqual(page, { events: [{ position: 9 }], next: null, previous: "?before=0", gaps: [[1, 2], [5, 6]] });
  globalThis.fetch.mock.mockImplementation(async () => new Response("no such channel", { status: 404 }));
  await assert.rejects(read("/a", ""), { name: "RecordError", message: "no such channel", status: 404 });
  globalThis.fetch.mock.mockImplementation(async () => new Response("<html>"));
  await assert.rejects(read("/a", ""), { message: "the response is not JSON" });
  for (const name of ["a", "/a/../b", "/./a"]) await assert.rejects(read(name, ""), { name: "RecordError" }, name);
  mock.restoreAll();
});

test("channels in sight are looked up in the history once, two at a time", async () => {
  let running = 0;
  let most = 0;
  const asked = [];
  const recorded = {
    async newest(name) {
      asked.push(name);
      most = Math.max(most, (running += 1));
      await null;
      running -= 1;
      if (name === "/b") throw new Error("the history is off");
      return name === "/c" ? [] : [{ data: name, time: "2026-01-01T00:00:00Z" }];
    },
  };
  const nodes = ["/a", "/b", "/c", "/d"].map((name) => ({ name, own: {}, event: null }));
  const lastData = await new Promise((resolve) => {
    let found = 0;
    const looking = new LastData(recorded, () => (found += 1) === nodes.length && resolve(looking));
    for (const node of [...nodes, ...nodes, { name: "/branch", own: null }]) looking.want(node);
  });
  assert.deepEqual([asked, most], [["/a", "/b", "/c", "/d"], 2]);
  assert.equal(nodes[0].event.data, "/a");
  assert.deepEqual(nodes.map((node) => lastData.reason(node)), [
    "", "No event received yet, and the history is off.", "No event received yet, and none is recorded.", "",
  ]);
});

test("a view is drawn when it is shown, soon after data, and each second, but not while it is hidden", () => {
  mock.timers.enable({ apis: ["setTimeout", "setInterval"] });
  let drawn = 0;
  const redraw = new Redraw(() => (drawn += 1), 250);
  redraw.soon();
  mock.timers.tick(5_000);
  assert.equal(drawn, 0);
  redraw.start();
  for (let index = 0; index < 100; index += 1) redraw.soon();
  assert.equal(drawn, 1);
  mock.timers.tick(250);
  assert.equal(drawn, 2);
  mock.timers.tick(750);
  assert.equal(drawn, 3);
  redraw.soon();
  redraw.stop();
  mock.timers.tick(5_000);
  assert.equal(drawn, 3);
  mock.timers.reset();
});
