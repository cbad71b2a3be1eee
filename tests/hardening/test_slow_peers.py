"""Slow peers: each step that a peer can delay has its own deadline (S3, D1)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time

import pytest
from support.clock import ServerClock
from support.messages import connect, publish
from support.refusals import PUBLISH
from support.server import PARSED, SHORT_WAY, THOROUGHLY, brisk, serving
from support.wire import chunked, head, post, request

import halley.host.http
import halley.host.peer
import halley.server.sweeper

pytestmark = pytest.mark.faces(*THOROUGHLY)

BRIEF = {"head_s": 0.2, "body_s": 0.2, "linger_s": 0.1}
BODY = json.dumps(publish("/a", "x" * 100)).encode()
PUBLISHED = [{"channel": "/a", "successful": True}]


async def trickle(wire, data):
    """Send byte after byte until the server responds or closes; return what it sent."""
    answer = asyncio.create_task(wire.rest())
    with contextlib.suppress(ConnectionError):
        for byte in data:
            await wire.send(bytes([byte]))
            await asyncio.wait([answer], timeout=0.005)  # the pace, not a wait for anything
            if answer.done():
                break
    return await answer


@pytest.mark.parametrize(
    "beginning",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"P", id="one-byte"),
        pytest.param(b"\r\n\r\n\r\n", id="empty-lines"),
        pytest.param(b"POST /bayeux HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ", id="half-a-head"),
        pytest.param(post(BODY).partition(b"\r\n\r\n")[0] + b"\r\n", id="all-but-the-last-line"),
    ],
)
async def test_s3_a_head_that_does_not_come_ends_the_connection_without_a_word(beginning):
    """S3: a head that is incomplete at its deadline gets no response, so that a browser can repeat it silently."""
    async with serving(brisk(limits=BRIEF)) as served:
        wire = await served.wire()
        await wire.send(beginning)
        assert await wire.rest() == b""
        assert served.watch.cut == 1
        assert served.house.broker.published == 0


async def test_s3_a_byte_now_and_then_buys_no_time():
    """S3: the deadline runs from the first moment, not from the last byte."""
    async with serving(brisk(limits=BRIEF)) as served:
        wire = await served.wire()
        assert await trickle(wire, b"POST /bayeux HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: " + b"x" * 10_000) == b""
        assert served.watch.cut == 1


async def test_s3_half_a_head_after_an_answer_is_under_the_deadline_too():
    """S3: keep-alive allows silence, but not an incomplete head, even if it arrived with the request before."""
    async with serving(brisk(limits=BRIEF)) as served:
        for first, second in ((PUBLISH, b"POST /bay"), (PUBLISH + b"POST /bay", b"")):
            wire = await served.wire()
            await wire.send(first)
            assert (await wire.read()).status == 200
            await wire.send(second)
            assert await wire.rest() == b""
        assert served.watch.cut == 2


async def test_s3_half_a_head_behind_a_held_connect_waits_for_its_turn():
    """S3: nothing is parsed during a hold, and the head's deadline begins after the hold's answer."""
    async with serving(brisk(limits=BRIEF)) as served:
        client_id = await served.open_session("/a")
        wire = await served.wire()
        await wire.send(post(json.dumps([connect(client_id)]).encode()) + b"POST /bay")
        await served.until(lambda: served.house.engine.sessions.holds == 1)
        silent = await served.wire()
        assert await silent.is_closed()
        assert served.house.engine.sessions.holds == 1
        await (await served.wire()).post(publish("/a", 1))
        assert (await wire.read()).data == [1]
        assert await wire.is_closed()


@pytest.mark.parametrize(
    "beginning",
    [
        pytest.param(post(BODY)[: -len(BODY)], id="no-byte-of-it"),
        pytest.param(post(BODY)[:-1], id="all-but-one-byte"),
        pytest.param(chunked(BODY)[:-2], id="chunks-without-their-end"),
        pytest.param(chunked(BODY)[:-5] + b"0\r\nX-Trailer: ", id="half-a-trailer"),
        pytest.param(post(BODY, expect="100-continue")[: -len(BODY)], id="expecting-to-continue"),
    ],
)
async def test_s3_a_body_that_does_not_come_gets_408_and_nothing_is_processed(beginning):
    """S3: a body that is incomplete at its deadline gets 408, and the connection is closed."""
    async with serving(brisk(limits=BRIEF)) as served:
        wire = await served.wire()
        await wire.send(beginning)
        answer = await wire.read()
        if answer.status == 100:
            answer = await wire.read()
        assert (answer.status, answer.text) == (408, "request body took too long")
        assert answer.headers["connection"] == "close"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert await wire.is_closed()
        assert served.house.broker.published == 0
        assert served.watch.refused == {408: 1}


async def test_s3_a_byte_of_the_body_now_and_then_buys_no_time_either():
    """S3: a body that arrives byte by byte, with a length or in chunks, gets 408 at the deadline."""
    async with serving(brisk(limits=BRIEF)) as served:
        for data in (post(b" " * 10_000 + BODY), chunked(*[b" "] * 2_000, BODY)):
            wire = await served.wire()
            whole_head, _, body = data.partition(b"\r\n\r\n")
            await wire.send(whole_head + b"\r\n\r\n")
            assert (await trickle(wire, body)).startswith(b"HTTP/1.1 408 ")
        assert served.house.broker.published == 0


async def test_s3_deadlines_of_heads_and_bodies_do_not_end_a_hold_or_an_idle_connection():
    """S3: the deadline of a silent connection does not end older ones that are held or idle."""
    async with serving(brisk(limits=BRIEF)) as served:
        idle = await served.wire()
        await idle.request(PUBLISH)
        held = await served.hold(await served.open_session("/a"))
        silent = await served.wire()
        assert await silent.is_closed()
        assert (await idle.post(publish("/a", 1))).status == 200
        assert (await held.read()).data == [1]
        assert (await held.request(PUBLISH)).status == 200


async def test_s3_half_a_body_behind_a_held_connect_is_not_blamed_for_the_hold():
    """Bytes that arrive during a hold are parsed after it, so a peer that sent them in time must not get 408."""
    async with serving(brisk(limits=BRIEF)) as served:
        client_id = await served.open_session("/a")
        wire = await served.wire()
        behind = post(BODY)
        await wire.send(post(json.dumps([connect(client_id)]).encode()) + behind[:-20])
        await served.until(lambda: served.house.engine.sessions.holds == 1)
        await wire.send(behind[-20:])
        silent = await served.wire()
        assert await silent.is_closed()
        assert served.house.engine.sessions.holds == 1
        await (await served.wire()).post(publish("/a", 1))
        assert (await wire.read()).data == [1]
        assert (await wire.read()).messages == PUBLISHED


async def test_an_idle_connection_ends_after_its_keep_alive():
    async with serving(brisk(limits={"keep_alive_s": 1})) as served:
        wire = await served.wire()
        await wire.request(PUBLISH)
        assert await wire.rest() == b""


async def test_an_answer_before_the_end_of_the_request_leaves_a_deadline():
    """If the rest of a body arrives after the response, the idle connection still ends at its deadline."""
    async with serving(brisk(limits={"keep_alive_s": 1})) as served:
        wires = []
        for early, status in [
            (head("PUT /bayeux HTTP/1.1", "Host: 127.0.0.1", "Content-Length: 5"), 405),
            (post(b"12345", origin="http://evil.example")[:-5], 403),
            (request("OPTIONS", "/bayeux", content_length="5"), 200),
            (request("GET", "/", content_length="5"), 200),
            (request("GET", "/c4n4ry", content_length="5"), 404),
        ]:
            wires.append(await served.wire())
            assert (await wires[-1].request(early)).status == status
            with contextlib.suppress(ConnectionError):
                await wires[-1].send(b"12345")
        await served.until(lambda: served.watch.connections == 0)


async def test_an_early_answer_does_not_take_the_next_request_for_the_body():
    """RFC 9112, 9.3: unless its response closes the connection, the server reads the announced body, then continues."""
    async with serving() as served:
        wire = await served.wire()
        answer = await wire.request(post(BODY, origin="http://evil.example")[: -len(BODY)])
        assert answer.status == 403
        if answer.headers.get("connection") == "close":
            assert await wire.is_closed()
        else:
            answer = await wire.request(BODY + post(BODY))
            assert answer.messages == PUBLISHED
        assert served.house.broker.published <= 1


@pytest.fixture
def clock(monkeypatch):
    """The clock for deadlines of connections."""
    return ServerClock(monkeypatch, halley.server.sweeper, halley.host.http, halley.host.peer)


async def stand_still(served, clock, seconds):
    """Stop the loop until the sweeper is due; by the server's clock it stood still for `seconds`."""
    clock.now += seconds
    asyncio.get_running_loop().call_soon(time.sleep, 2 * served.house.settings.sweep_s)
    await asyncio.sleep(0)


@pytest.mark.parametrize("turns", [0, 1, 3, 7])
@pytest.mark.parametrize("times", [1, 2, 3])
async def test_d5_a_server_that_stood_still_blames_nobody(clock, times, turns):
    """D5: bytes that arrived during a standstill or in the next turns are read before a deadline counts.

    This is so for a standstill that follows directly after others, too; the deadline passes during the last one.
    """
    async with serving() as served:
        wire = await served.wire()
        await served.until(lambda: len(served.watch.heads) == 1)
        seconds = 1.2 * served.watch.limits.head_s / times
        for _ in range(times - 1):
            await stand_still(served, clock, seconds)
            while served.house.sweeper.age_s:
                await asyncio.sleep(0)
        await stand_still(served, clock, seconds)
        for _ in range(turns):
            await asyncio.sleep(0)
        assert (await wire.request(PUBLISH)).status == 200
        assert served.watch.cut == 0


async def test_s3_a_server_that_is_always_late_still_ends_the_slow():
    """S3: a loop that is always late still ends a connection with an incomplete head."""
    async with serving(brisk(limits=BRIEF)) as served:
        wire = await served.wire()
        await wire.send(PUBLISH[:30])

        def stall():
            time.sleep(0.05)
            nonlocal stalled
            stalled = asyncio.get_running_loop().call_soon(stall)

        stalled = asyncio.get_running_loop().call_soon(stall)
        assert await wire.rest() == b""
        stalled.cancel()
        assert served.watch.cut == 1


@pytest.mark.faces(SHORT_WAY, PARSED)  # 200 TLS handshakes take longer than the deadlines
async def test_d1_many_slow_peers_cost_the_others_nothing():
    """D1: 100 half heads and 100 half bodies are cut in time, while another client is served."""
    async with serving(brisk(limits=BRIEF)) as served:
        good = await served.wire()
        assert (await good.request(PUBLISH)).status == 200
        for number in range(200):
            await (await served.wire()).send(PUBLISH[:30] if number % 2 else PUBLISH[:-1])
        served_meanwhile = 0
        while served.watch.connections > 1:
            assert (await good.request(PUBLISH)).status == 200
            served_meanwhile += 1
        assert served_meanwhile > 1
        assert served.watch.cut == 100
        assert served.watch.refused == {408: 100}
