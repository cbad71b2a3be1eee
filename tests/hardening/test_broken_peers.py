"""Peers that break off in any phase of a request: nothing leaks or is lost, and others are served (D3, D4)."""

from __future__ import annotations

import asyncio
import json

import pytest
from support.messages import connect, publish, subscribe
from support.refusals import PUBLISH
from support.server import THOROUGHLY, brisk, serving
from support.wire import chunked, post

pytestmark = pytest.mark.faces(*THOROUGHLY)

BODY = json.dumps([publish("/b", 1)]).encode()
LARGE = "x" * 60_000


PHASES = {
    "before-a-byte": b"",
    "within-a-head": post(BODY)[:40],
    "after-a-head": post(BODY)[: -len(BODY)],
    "within-a-body": post(BODY)[:-5],
    "within-a-chunk": chunked(BODY)[:-15],
    "within-a-trailer": chunked(BODY)[:-2] + b"X-Tr",
    "after-a-request": post(BODY),
    "after-a-request-and-a-half": post(BODY) + post(BODY)[:-5],
    "after-many-requests": post(BODY) * 10,
    "after-a-bad-request": b"c4n4ry\r\n\r\n",
    "after-a-refused-one": post(BODY, origin="http://evil.example"),
    "after-too-much": b"POST /bayeux HTTP/1.1\r\n" + b"x" * 20_000,
    "after-an-upgrade": post(BODY, upgrade="websocket", connection="upgrade"),
}


@pytest.mark.parametrize("leave", ["reset", "close", "half_close"])
async def test_a_peer_may_leave_in_any_phase(leave):
    """C3, D4: after a reset, close or half-close in any phase, no connection remains and others are served."""
    async with serving(brisk(limits={"linger_s": 0.05})) as served:
        for data in PHASES.values():
            wire = await served.wire()
            await wire.send(data)
            await depart(wire, leave)
            await served.until(lambda: served.watch.connections == 0)
        assert (await (await served.wire()).request(PUBLISH)).status == 200


async def depart(wire, leave):
    if leave == "close":
        await wire.close()
    elif leave == "reset":
        wire.reset()
    else:
        wire.half_close()


@pytest.mark.parametrize("leave", ["reset", "close", "half_close"])
async def test_a_peer_may_leave_in_any_phase_of_a_connect(leave):
    """B15: the session stays if its peer leaves at any turn of the event loop while a connect is processed."""
    async with serving(brisk(bayeux={"holds_per_browser": -1})) as served:
        for turns in range(8):
            client_id = await served.open_session("/a")
            wire = await served.wire()
            await wire.send(post(json.dumps([connect(client_id)]).encode()))
            for _ in range(turns):
                await asyncio.sleep(0)
            await depart(wire, leave)
            await served.until(lambda: served.watch.connections + served.house.engine.sessions.holds == 0)
            assert client_id in served.house.broker.sessions
            assert served.house.broker.sessions[client_id].unsettled is None


@pytest.mark.parametrize("turns", range(8))
async def test_events_are_lost_at_no_turn_of_the_loop_when_a_peer_ends_its_stream(turns):
    """Events that a half-closed peer has not received are sent with the next connect, each exactly once."""
    async with serving() as served:
        client_id = await served.open_session("/a")
        wire = await served.hold(client_id)
        served.halley.publish("/a", turns)
        for _ in range(turns):
            await asyncio.sleep(0)
        wire.half_close()
        got = await wire.rest()
        arrived = [
            message["data"] for message in json.loads(got.partition(b"\r\n\r\n")[2] or b"[]") if "data" in message
        ]
        other = await served.wire()
        later = (await other.post(connect(client_id, advice={"timeout": 0}))).data
        assert arrived + later == [turns]


UNREAD = 8  # events of `LARGE` in one answer, which is then as long as it may be


async def fill(served, client_id, events):
    """Let a connect be answered with more than its socket takes, and return that slow reader's connection."""
    other = await served.wire()
    for number in range(events):
        await other.post(publish("/a", [number, LARGE]))
    slow = await served.wire(receive_buffer_bytes=4096)
    await slow.send(post(json.dumps([connect(client_id)]).encode()))
    session = served.house.broker.sessions[client_id]
    await served.until(lambda: session.unsettled is not None)
    return slow


async def comes_again(served, client_id, events):
    """Assert that the next connect returns all events, in order."""
    await served.until(lambda: served.house.broker.sessions[client_id].unsettled is None)
    answer = await (await served.wire()).post(connect(client_id, advice={"timeout": 0}))
    assert [number for number, _ in answer.data] == list(range(events))


@pytest.mark.parametrize(
    "nonsense",
    [
        pytest.param(b"c4n4ry\r\n\r\n", id="malformed"),
        pytest.param(b"POST /bayeux HTTP/1.1\r\n" + b"x" * 20_000, id="large-head"),
        pytest.param(post(BODY, content_encoding="gzip"), id="refused-by-the-door"),
        pytest.param(post(BODY)[:-1], id="half-a-body"),
        pytest.param(post(BODY, connection="close"), id="last-request"),
    ],
)
async def test_events_of_an_unread_answer_survive_whatever_its_peer_sends_next(nonsense):
    """If the connection ends with part of an answer unsent, that answer's events count as not written."""
    settings = brisk(limits={"linger_s": 0.1, "body_s": 0.2, "write_s": 1})
    async with serving(settings) as served:
        client_id = await served.open_session("/a")
        slow = await fill(served, client_id, UNREAD)
        await slow.send(nonsense)
        await comes_again(served, client_id, UNREAD)


async def test_d2_a_reader_that_reads_nothing_is_cut_and_its_events_wait():
    """D2, P5: a reader that reads nothing is cut after `write_s`; its session loses no events; others are served."""
    async with serving(brisk(limits={"write_s": 0.3})) as served:
        client_id = await served.open_session("/a")
        slow = await fill(served, client_id, UNREAD)
        other = await served.wire()
        assert (await other.request(PUBLISH)).status == 200
        await served.until(lambda: served.watch.cut == 1)
        await comes_again(served, client_id, UNREAD)
        await slow.close()


async def test_d2_a_reader_that_is_slow_but_steady_gets_all():
    """A reader that is slow but steady is not cut, though it needs longer than `write_s` for an answer."""
    long = {"answer_bytes": 64_000_000}
    async with serving(brisk(limits={"queue_bytes": 64_000_000, "write_s": 0.3}, bayeux=long)) as served:
        client_id = await served.open_session("/a")
        slow = await fill(served, client_id, 150)
        came = b""
        while not came.endswith(b"]}]") and (piece := await slow.reader.read(65_536)):
            came += piece
            if len(came) < 5_000_000:
                await asyncio.sleep(0.01)  # about 5 MB/s, so that it takes longer than write_s
        assert served.watch.cut == 0
        assert came.count(LARGE.encode()) == 150


async def test_d2_many_readers_that_read_nothing_do_not_delay_the_others():
    """P5: 30 readers that read nothing are cut; meanwhile one that reads gets every event in order."""
    limits = {"queue_bytes": 64_000_000, "queue_events": 10_000, "write_s": 0.3}
    async with serving(brisk(limits=limits, bayeux={"holds_per_browser": -1})) as served:
        readers = [await served.open_session("/a") for _ in range(30)]
        wires = [await served.wire(receive_buffer_bytes=4096) for _ in readers]
        other = await served.wire()
        for number in range(100):
            await other.post(publish("/a", [number, LARGE]))
        for wire, client_id in zip(wires, readers, strict=True):
            await wire.send(post(json.dumps([connect(client_id)]).encode()))
        good = await served.open_session("/b")
        for number in range(20):
            await other.post(publish("/b", number))
        assert (await (await served.wire()).post(connect(good))).data == list(range(20))
        await served.until(lambda: served.watch.cut == 30)
        assert set(readers) <= served.house.broker.sessions.keys()


async def test_100_connections_at_once_are_all_served():
    """100 connections, each with a session, a subscription and a held connect, all receive one publish."""
    async with serving(brisk(bayeux={"holds_per_browser": -1})) as served:

        async def live():
            client_id = await served.open_session()
            wire = await served.wire()
            await wire.post(subscribe(client_id, "/all"))
            return (await wire.post(connect(client_id))).data

        lives = [asyncio.create_task(live()) for _ in range(100)]
        await served.until(lambda: served.house.engine.sessions.holds == 100)
        await (await served.wire()).post(publish("/all", "now"))
        assert await asyncio.gather(*lives) == [["now"]] * 100
        assert served.watch.cut == 0
