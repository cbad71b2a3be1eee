"""What connections keep in memory: idle ones, those with a held poll, those that remember a request, and closed ones.

Bytes are those of Python's objects (`tracemalloc`), of both ends of each connection: of the server, and of the test.
The cyclic collector is off meanwhile, since it counts objects and not their bytes: it can be long in coming.
"""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
from pathlib import Path

import pytest
import uvicorn
from support import nt4, wamp
from support.messages import HANDSHAKE, connect, publish
from support.server import PARSED, SHORT_WAY, TLS, brisk, serving
from support.streams import StreamReader
from support.wire import head, post, request

import halley
from halley.host.http import Connection
from halley.host.repeated import REMEMBERED_BYTES
from halley.host.requests import Received
from halley.host.streams import Stream
from halley.host.tls import Tls
from halley.host.websocket import WebSocket

pytestmark = pytest.mark.slow

COUNT = 20
PAD = " " * 200_000
SMALL_BYTES = 20_000
"""More than a connection takes, and far less than what is sent on it."""


@pytest.fixture(scope="module", autouse=True)
def its_face(face):
    """Give the servers the face that a test's marker names."""


class Kept:
    """The bytes that were allocated since the beginning and are still in use, by each of `COUNT` connections."""

    def __enter__(self):
        gc.collect()
        gc.disable()
        tracemalloc.start()
        self._before = tracemalloc.get_traced_memory()[0]
        return self

    @property
    def nbytes(self):
        return (tracemalloc.get_traced_memory()[0] - self._before) // COUNT

    def __exit__(self, *_):
        tracemalloc.stop()
        gc.enable()


def padded(client_id, number):
    """Return a connect as clients send it, but for much white space in it."""
    text = json.dumps([{**connect(client_id), "id": str(number)}])
    return post(text.replace('"id"', PAD + '"id"').encode())


async def idle(served):
    """Serve a publish, a request of the application, and another publish with a long head."""
    wire = await served.wire()
    await wire.post(publish("/a", 1))
    assert (await wire.request(request("GET", "/rights", **{"X-Long": "x" * 12_000}))).status == 200
    assert (await wire.post(publish("/a", "x" * 60_000), **{"X-Long": "x" * 12_000})).status == 200
    return wire


async def idle_after_the_application(served):
    wire = await served.wire()
    assert (await wire.request(request("GET", "/rights", **{"X-Long": "x" * 12_000}))).status == 200
    return wire


async def held(served):
    client_id = await served.open_session("/a")
    return await served.hold(client_id, **{"X-Long": "x" * 12_000})


async def remembering(served):
    """Let a padded connect be held and answered, on a connection that has served a request before."""
    client_id = await served.open_session()
    wire = await served.wire()
    await wire.post(publish("/b", 1))
    holds = served.house.engine.sessions.holds
    await wire.send(padded(client_id, 1))
    await served.until(lambda: served.house.engine.sessions.holds == holds + 1)
    served.halley.session(client_id).deliver("/a", 1)
    assert (await wire.read()).data == [1]
    return wire


@pytest.mark.parametrize("use", [idle, idle_after_the_application, held, remembering])
async def test_an_open_connection_keeps_little_of_what_was_sent_on_it(use):
    """Neither heads nor bodies of answered requests are kept, and about a kilobyte of what is remembered."""
    async with serving(brisk(limits={"head_bytes": 16_384})) as served:
        await use(served)
        with Kept() as kept:
            wires = [await use(served) for _ in range(COUNT)]
            assert kept.nbytes < SMALL_BYTES
            assert served.watch.connections >= len(wires)


async def published(served):
    wire = await served.wire()
    for number in range(3):
        assert (await wire.post(publish("/b", number))).status == 200
    return wire


async def answered(served):
    wire = await served.wire()
    assert (await wire.request(request("GET", "/rights"))).status == 200
    return wire


async def polling(served):
    return await served.hold(await served.open_session("/a"))


async def streaming(served):
    return (await StreamReader.open(served, "/events/a")).wire


OWN_FILES = [tracemalloc.Filter(True, f"{Path(package.__file__).parent}/*") for package in (halley, uvicorn)]
OWN_FILES += [tracemalloc.Filter(False, f"*/halley/{name}.py") for name in ("server/past_rates", "broker/flow")]
"""The allocations of the server's code, without those of the event loop, which has both ends, and without the rates of
past seconds, which grow by time and not by connections."""


@pytest.mark.parametrize(
    ("use", "most_bytes"),
    [(published, 1_500), (answered, 1_500), (polling, 4_500), (streaming, 3_500)],
    ids=["idle", "rights", "held", "stream"],
)
async def test_what_a_connection_takes(use, most_bytes):
    """With the loop's transport, which takes another kilobyte, an idle one has 2.5 KB, and a held poll 4.6 KB.

    A held poll has a session, too. What compiled code allocates is not seen. Of three rounds the least counts: in any
    one of them a cache or a table that all connections share may grow.
    """
    async with serving(brisk(limits={"sessions_per_address": 1_000})) as served:
        wires = [await use(served) for _ in range(COUNT)]
        taken = []
        for _ in range(3):
            with Kept():
                before = sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces(OWN_FILES).traces)
                wires += [await use(served) for _ in range(COUNT)]
                after = sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces(OWN_FILES).traces)
            taken.append((after - before) // COUNT)
        assert len(wires) == 4 * COUNT
        assert min(taken) < most_bytes


async def test_what_is_remembered_is_bounded_in_all():
    """A head and a connect that are longer together than `REMEMBERED_BYTES` are parsed each time, and served alike."""
    async with serving() as served:
        client_id = await served.open_session()
        session = served.halley.session(client_id)
        for size in (10, REMEMBERED_BYTES):
            wire = await served.wire()
            await wire.post(publish("/b", 1))
            for number in range(4):
                text = json.dumps([{**connect(client_id), "id": str(number)}]).replace('"id"', " " * size + '"id"')
                await wire.send(post(text.encode()))
                await served.until(lambda: served.house.engine.sessions.holds == 1)
                session.deliver("/a", number)
                reply, event = (await wire.read()).messages
                assert (reply["id"], event["data"]) == (str(number), number)


# Closed connections


async def answered_by_the_application(served):
    wire = await served.wire()
    assert (await wire.request(request("GET", "/rights"))).status == 200
    await wire.close()


async def reset_after_the_application(served):
    """Reset a connection for which the application's timer of `keep_alive_s` runs."""
    wire = await served.wire()
    assert (await wire.request(request("GET", "/rights"))).status == 200
    wire.reset()


async def remembering_and_answered_by_the_application(served):
    wire = await remembering(served)
    assert (await wire.request(request("GET", "/rights"))).status == 200
    await wire.close()


async def by_post(served):
    wire = await served.wire()
    await wire.post(publish("/a", "x" * 60_000))
    await wire.post(publish("/a", "x" * 60_000))
    await wire.close()


async def by_script(served):
    wire = await served.wire()
    assert (await wire.get(HANDSHAKE)).status == 200
    await wire.close()


async def held_with_bytes_behind_it(served):
    """Close a held connect behind which a part of another request was received."""
    holds = served.house.engine.sessions.holds
    wire = await served.hold(await served.open_session("/a"))
    await wire.send(padded("x", 1)[:150_000])
    await wire.close()
    await served.until(lambda: served.house.engine.sessions.holds == holds)


async def in_a_body(served):
    wire = await served.wire()
    await wire.send(padded("x", 1)[:150_000])
    await wire.close()


async def in_a_body_for_the_application(served):
    wire = await served.wire()
    await wire.send(head("POST /publish HTTP/1.1", "Content-Length: 60000", body=b" " * 50_000))
    await wire.close()


async def in_a_head(served):
    wire = await served.wire()
    await wire.send(b"GET / HTTP/1.1\r\nHost: a\r\nX-Long: " + b"x" * 10_000)
    await wire.close()


async def refused(served):
    """Close a connection on which a wrong request was refused, before it has lingered."""
    wire = await served.wire()
    await wire.send(b"GARBAGE\r\n\r\n")
    await wire.rest()
    await wire.close()


USES = [
    answered_by_the_application,
    reset_after_the_application,
    remembering_and_answered_by_the_application,
    by_post,
    by_script,
    held_with_bytes_behind_it,
    in_a_body,
    in_a_body_for_the_application,
    in_a_head,
    refused,
]


KINDS = (Connection, Received, Stream, Tls, WebSocket)


async def left_behind(served, use):
    """Return the objects of connections that the collector would have to free, after `use` has closed some."""
    await use(served)
    await served.until(lambda: not served.watch.connections)
    gc.collect()
    before = [each for each in gc.get_objects() if type(each) in KINDS]  # of servers of other tests
    known = {*map(id, before)}
    gc.disable()
    try:
        for _ in range(3):
            await use(served)
        await served.until(lambda: not served.watch.connections)
        await asyncio.sleep(0.05)  # tasks of requests end behind their connections
        return [each for each in gc.get_objects() if type(each) in KINDS and id(each) not in known]
    finally:
        gc.enable()


@pytest.mark.faces(SHORT_WAY, PARSED, TLS)
@pytest.mark.parametrize("use", USES)
async def test_a_closed_connection_is_freed_without_the_collector(use):
    """No cycle refers to it, whatever was received on it, and however it was closed."""
    async with serving() as served:
        assert await left_behind(served, use) == []


async def stream_closed(served):
    stream = await StreamReader.open(served, "/events/a")
    served.halley.publish("/a", 1)
    await stream.data(1)
    await stream.wire.close()


async def stream_ended(served):
    stream = await StreamReader.open(served, "/events/a")
    for each in served.house.protocol("events").streams.all():
        each.end("denied", 0.0)
    await stream.rest()


async def stream_cut(served):
    (await StreamReader.open(served, "/events/a")).wire.reset()


@pytest.mark.faces(SHORT_WAY, TLS)
@pytest.mark.parametrize("use", [stream_closed, stream_ended, stream_cut])
async def test_a_closed_stream_is_freed_without_the_collector(use):
    async with serving() as served:
        assert await left_behind(served, use) == []


async def wamp_closed(served):
    async with await wamp.join(served.url) as client:
        await client.subscribe("com.a")
        await client.publish("com.a", ["x" * 60_000], exclude_me=False)
        await client.receive()


async def wamp_cut(served):
    """Cut a WebSocket in the middle of a fragmented message and a frame."""
    client = await wamp.join(served.url)
    await client.socket.send(iter(["[" + " " * 50_000, " " * 50_000]))
    client.socket.transport.abort()


async def wamp_without_session(served):
    client = await wamp.connect(served.url, additional_headers={"X-Long": "x" * 10_000})
    client.socket.transport.abort()


@pytest.mark.parametrize("use", [wamp_closed, wamp_cut, wamp_without_session])
async def test_a_closed_websocket_is_freed_without_the_collector(use):
    async with serving() as served:
        assert await left_behind(served, use) == []


async def networktables_subscribed(served):
    """Subscribe to many long names, publish a large value, and be cut."""
    client = await nt4.connect(served.url, additional_headers={"X-Long": "x" * 10_000})
    for subuid in range(1, 5):
        await client.subscribe(*(f"/{subuid}/{number}/{'x' * 500}" for number in range(20)), subuid=subuid)
    await client.quiet()
    client.socket.transport.abort()


async def test_a_closed_connection_of_networktables_keeps_nothing_of_size():
    """Its session may wait for the collector, but without the names, values and heads that were received."""
    async with serving(brisk(nt4={"enabled": True, "port": 0, "ping_s": 5, "pong_s": 10})) as served:
        await networktables_subscribed(served)
        await served.until(lambda: not served.watch.connections)
        with Kept() as kept:
            for _ in range(COUNT):
                await networktables_subscribed(served)
            await served.until(lambda: not served.watch.connections)
            assert kept.nbytes < SMALL_BYTES
