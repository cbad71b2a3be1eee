"""Frames and news that no node sends, published on real NATS servers: all nodes make the same of them, and go on.

Whoever has the rights of a node can send them, and so can a node with a fault: a keeper and a front must outlive both,
also when they are started again behind them.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from contextlib import asynccontextmanager

import httpx
import pytest
from cluster.golden import sealed
from nats.aio.client import Client as NatsClient
from support import wamp
from support.messages import publish
from support.nats import FREE_PORTS, nats_servers, node, taken, url_of
from support.process import ended
from support.wire import DEADLINE_S

from halley.client import Client
from halley.cluster.frames import Row, SharedFields, UnrecordedFields, pack, unpack

pytestmark = pytest.mark.slow

KIND = ["bayeux", "bare", None, None, None, None]
PLAIN = SharedFields(*KIND)
DEEP = "/".join("a" * 50_000)


def frame(run, topics=("t",), kind=KIND, payload=b'"x"', keys=None, stamps=None, number=1):
    """Return a frame with one event and a right checksum."""
    columns = [topics, [kind], [0], [0], [len(payload)], keys or {}, stamps, None]
    return sealed([1, run, number, *columns], payload)


POISON = (
    frame("p1", {"a": 1}),
    frame("p2", "abc"),
    frame("p3", [DEEP]),
    frame("p4", ["a" * 100_000]),
    frame("p5", keys={"0": "k" * 100_000}),
    frame("p6", keys={"0": "\n"}),
    frame("p7", kind=["wamp", "bare", "{", None, None, None]),
    frame("p8", kind=["wamp", "bare", "{}", None, None, None]),
    frame("p9", kind=["bayeux", "bare", None, None, "x" * 100_000, None]),
    frame("p10", kind=["bayeux", "bare", None, ["me", None, [], []], None, None]),
    frame("p11", stamps=[[1, 1, None, []]]),
    frame("p" * 300),
    frame("p15", ["a!ff"]),
    frame("p18", ['a"b']),
    frame("p19", ["a/**"]),
    frame("p20", kind=['"', "bare", None, None, None, None]),
    sealed([1, "p16", 1, [], [], [], [], [], {}, None, {"erase": [None, None, None]}], b""),
    sealed([1, "p17", 1, [], [], [], [], [], {}, None, {"erase": ["exact", "a", "b"]}], b""),
    sealed([1.5, "p12", 1, ["t"], [KIND], [0], [0], [2], {}, None, None]),
    sealed([1, "p13", 1, [], [], [], [], [], {}, None, {"erase": ["exact", DEEP, None]}], b""),
    sealed([1, "p14", 1, [], [], [], [], [], {}, None, {"keeps": "x" * 1_000}], b""),
)


@asynccontextmanager
async def stranger(nats):
    """Yield a client of NATS that is none of the nodes."""
    client = NatsClient()
    await client.connect(nats.urls)
    try:
        yield client
    finally:
        await client.close()


async def until_published(server, channel="/chat/room", data="after"):
    """Publish once, again with the same key until it is acknowledged; return the position."""
    message = publish(channel, data) | {"ext": {"idempotency_key": secrets.token_hex()}}
    async with asyncio.timeout(DEADLINE_S):
        while True:
            reply = (await (await server.wire()).post(message)).messages[0]
            if reply["successful"]:
                return reply["ext"]["position"]
            await asyncio.sleep(0.05)


async def operations(server, path):
    async with httpx.AsyncClient(verify=False) as http:
        return await http.get(f"http://127.0.0.1:{server.operations_port}{path}")


async def foreign(server, wanted):
    """How many messages a node has dropped, once it is `wanted`: what is not in the stream may arrive behind it."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            text = (await operations(server, "/metrics")).text
            (line,) = (line for line in text.splitlines() if line.startswith("halley_cluster_foreign_total "))
            if (count := int(float(line.split()[1]))) >= wanted:
                return count
            await asyncio.sleep(0.02)


def faults(server):
    """Return what a node has logged that it should not."""
    events = [json.loads(line) for line in server.lines if line.startswith("{")]
    return [each for each in events if each["event"] in {"fault", "cluster_diverged"}]


async def test_frames_that_no_node_sends_are_passed_over_by_all(tmp_path):
    """They take no position, cost nothing, and are counted; also by nodes that are started again behind them."""
    async with nats_servers(tmp_path) as nats:
        async with node(tmp_path, nats, "a") as keeper, node(tmp_path, nats, "f", keeps=False) as front:
            before = await until_published(front)  # a front reads the stream from where the keeper is by then
            async with stranger(nats) as client:
                for data in POISON:
                    await client.publish("halley.f.z", data)
                    await client.publish("halley.c.z", data)
                await client.flush()
            positions = [await until_published(server) for server in (front, keeper)]
            assert positions == [before + 1, before + 2]
            for server in (keeper, front):
                assert (await foreign(server, 2 * len(POISON)), faults(server)) == (2 * len(POISON), [])
        async with node(tmp_path, nats, "a") as keeper, node(tmp_path, nats, "f", keeps=False) as front:
            positions = [await until_published(server) for server in (front, keeper)]
            assert positions == [before + 3, before + 4]
            assert [faults(server) for server in (keeper, front)] == [[], []]


NOT_JSON = (b"{]", b"", b"1,2", b"[1", b"2]", b"1e999", b"nul", b'"\\ud800"', b"[" * 300 + b"]" * 300)


async def test_what_is_not_json_is_null_for_everybody(tmp_path):
    """Also in the history: polls and pages stay readable, and all nodes have the same."""
    async with (
        nats_servers(tmp_path) as nats,
        node(tmp_path, nats, "a") as keeper,
        node(tmp_path, nats, "f", keeps=False) as front,
        Client(url_of(keeper)) as at_keeper,
        Client(url_of(front)) as at_front,
        await wamp.join(url_of(front)) as peer,
        stranger(nats) as client,
    ):
        await peer.subscribe("bad", match="prefix")
        for each in (at_keeper, at_front):
            await each.subscribe("/bad/**")
        await until_published(front)
        args = SharedFields("wamp", "args", None, None, None, None)
        rows = [Row("bad/json", payload, PLAIN) for payload in NOT_JSON]
        rows += [Row("bad/good", b'{"a":1}', PLAIN), Row("bad/shape", b"[5]", args)]
        stamp = UnrecordedFields(1_800_000_000_000_000, 7, None, ())
        await client.publish("halley.f.z", pack("z-1", 1, rows))
        await client.publish("halley.c.z", pack("z-2", 0, [Row("bad/fleeting", b"{]", PLAIN, None, stamp)]))
        await client.flush()
        expected = [None] * len(NOT_JSON) + [{"a": 1}, [5]]
        for each in (at_keeper, at_front):
            events = await taken(each, len(expected) + 1)
            stored = [event.data for event in events if event.channel != "/bad/fleeting"]
            assert (len(events) - len(stored), stored) == (1, expected)
        heard = [(await anext(peer)).args for _ in range(len(expected) + 1)]
        assert sorted(map(repr, heard)) == sorted(repr([data]) for data in [*expected, None])
        async with httpx.AsyncClient(verify=False) as http:
            pages = [(await http.get(f"{url_of(server)}/history/bad/**")).json() for server in (keeper, front)]
        assert [[event["data"] for event in page["events"]] for page in pages] == [expected] * 2
        assert [faults(server) for server in (keeper, front)] == [[], []]


async def test_a_stranger_with_the_run_of_a_node_ends_that_one_alone(tmp_path):
    """Its own frames count no longer. It says why, is not ready, and goes on when it is started again."""
    async with nats_servers(tmp_path) as nats, node(tmp_path, nats, "a") as keeper, stranger(nats) as client:
        async with node(tmp_path, nats, "f", keeps=False) as front:
            heard = await client.subscribe("halley.f.f")
            await client.flush()
            before = await until_published(front)
            own = unpack((await heard.next_msg(DEADLINE_S)).data)
            await client.publish("halley.f.z", pack(own.run, own.number + 1, [Row("chat/z", b"1", PLAIN)]))
            logged = json.loads(await front.until_logged("cluster_diverged"))
            assert logged["why"] == "an error while applying the stream: NotOwn"
            assert (await operations(front, "/health/ready")).status_code == 503
            reply = (await (await front.wire()).post(publish("/chat/room", 1))).messages[0]
            assert reply["error"] == "503::history_unavailable"
            assert await until_published(keeper) == before + 2
        async with node(tmp_path, nats, "f", keeps=False) as front:
            assert await until_published(front) == before + 3


async def test_news_of_wrong_types_are_counted(tmp_path):
    """They are not worth a line with a traceback each."""
    values = (None, True, -1, 2**63, 1e308, "", "x", [], {}, [[]], {"a": 1})
    kinds = ("nt4", "figures", "settings", "wamp.session", "wamp.meta_event", "wamp.meta_api", "wamp.sessions")
    news = [[kind, value] for kind in kinds for value in (*values, *([value] * 4 for value in values))]
    odd = [None, 5, "nt4", ["nt4"], [[], 1], [{}, 1], *news]
    settings = {"HALLEY_NT4_ENABLED": "true", "HALLEY_NT4_PORT": "0"}
    async with nats_servers(tmp_path) as nats, node(tmp_path, nats, "a", **settings) as server:
        before = await until_published(server)
        async with stranger(nats) as client:
            for number, value in enumerate(values):
                beat = {"node": "z", "id": "zzzz", "key": "k", "age_s": 1, "nt4": value, "kept": value, "hears": value}
                await client.publish("halley.h.z", json.dumps(beat).encode())
                for data in (b"x", json.dumps([value, number]).encode() + b"\n" + POISON[0], b"[1,2]\n" + POISON[0]):
                    await client.publish("halley.v.set", data, "x.y")
            for each in odd:
                await client.publish("halley.q", json.dumps({"node": "z", "news": [each]}).encode())
            await client.publish("halley.q", b'{"node": 5, "news": []}')
            await client.flush()
        assert await until_published(server) == before + 1
        least = len(odd) // 2 + 1
        assert await foreign(server, least) >= least
        assert faults(server) == []


async def test_spaces_of_which_one_has_the_name_of_the_others_stream(tmp_path):
    """The stream of NetworkTables would have the name of the other cluster's: whichever is second does not start."""
    nt4 = {"HALLEY_NT4_ENABLED": "true", "HALLEY_NT4_PORT": "0"}
    other = {"HALLEY_CLUSTER_SPACE": "halley-nt4"}

    async def start(nats, **settings):
        more = ("--cluster", nats.urls, "--node", "z", "--data-dir", str(tmp_path / "z"), *FREE_PORTS)
        settings |= {"HALLEY_OPERATIONS_ENABLED": "off", "HALLEY_CLUSTER_SETTLED_BY": "keeper"}
        return await ended("serve", *more, cwd=tmp_path, **settings)

    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    async with nats_servers(tmp_path / "1") as nats, node(tmp_path / "1", nats, "a", **other) as first:
        await until_published(first)
        for kind in ({}, {"HALLEY_CLUSTER_FRONT": "true"}):
            result = await start(nats, **nt4, **kind)
            text = "needs the stream halley-nt4, which another cluster has"
            assert (result.code, text in result.lines[-1]) == (2, True), kind
    async with nats_servers(tmp_path / "2") as nats, node(tmp_path / "2", nats, "a", **nt4) as first:
        await first.until_logged("nt4_home")
        result = await start(nats, **other)
        assert (result.code, "choose cluster.space" in result.lines[-1]) == (2, True)
