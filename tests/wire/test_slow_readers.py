"""A client that reads its answer slowly keeps its session, unless it reads so slowly that it is cut."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest
from support.clock import ServerClock
from support.frames import shake
from support.messages import connect, publish
from support.server import SHORT_WAY, THOROUGHLY, TLS, brisk, serving
from support.switchboard import speaking
from support.wire import DEADLINE_S, post

import halley.host.http
import halley.host.peer
import halley.server.pump
import halley.server.sweeper
import halley.transports.asgi
import halley.transports.bayeux

pytestmark = pytest.mark.faces(*THOROUGHLY)  # some seconds each

EVENTS = 24
BYTES = 60_000
READ_BYTES = 200_000
"""How much has been read when a test begins."""

STEP_BYTES, STEP_S = 65_536, 1.5
"""How the rest is read: with TLS the client's side keeps 256 KiB, and takes nothing before most of it has been read."""


@pytest.fixture
def clock(monkeypatch):
    server, host = (halley.server.sweeper, halley.server.pump), (halley.host.http, halley.host.peer)
    return ServerClock(monkeypatch, *server, *host, halley.transports.asgi, halley.transports.bayeux)


async def pass_time(served, clock, seconds):
    """Move the server's clock, and let it check every deadline twice: after a standstill it gives peers a respite."""
    sweeper = served.house.sweeper
    clock.now += seconds
    await served.until(lambda: sweeper.age_s == 0)
    await asyncio.sleep(4 * served.house.settings.sweep_s)


def settings(**limits):
    bayeux = {"max_interval_s": 4, "answer_bytes": 4_000_000}
    return brisk(bayeux=bayeux, limits={"queue_bytes": 4_000_000, **limits})


async def half_read(served):
    """Open a session that has read the first part of a long answer; return both, and another connection."""
    client_id = await served.open_session("/a")
    other = await served.wire()
    for number in range(EVENTS):
        await other.post(publish("/a", f"{number}".ljust(BYTES)))
    slow = await served.wire(receive_buffer_bytes=16_384)
    await slow.send(post(json.dumps([connect(client_id)]).encode()))
    async with asyncio.timeout(DEADLINE_S):
        await slow.reader.readexactly(READ_BYTES)
    session = served.house.broker.sessions[client_id]
    assert session.unsettled is not None
    return session, slow, other


async def read_on(served, clock, session, slow):
    """Read the rest of the answer in steps; return the seconds that have passed."""
    passed_s = 0
    while session.unsettled is not None:
        assert passed_s < 100
        async with asyncio.timeout(DEADLINE_S):
            await slow.reader.read(STEP_BYTES)
        await pass_time(served, clock, STEP_S)
        passed_s += STEP_S
    slow.reset()  # with TLS, to close it would mean to read the rest first
    return passed_s


async def test_a_session_does_not_expire_while_its_client_reads(clock):
    """B10: the time for its next connect begins when the answer has been written, however long that took."""
    async with serving(settings()) as served:
        session, slow, _ = await half_read(served)
        assert await read_on(served, clock, session, slow) > 10
        await pass_time(served, clock, 2)
        assert session.closed is None
        again = await (await served.wire()).post(connect(session.id, advice={"timeout": 0}))
        assert again.messages[0]["successful"]
        assert served.watch.cut == 0
        await pass_time(served, clock, 6)  # no connect follows
        await served.until(lambda: session.closed == "expired")


async def test_a_reader_that_trickles_is_cut_and_its_events_come_again(clock):
    """A peer that takes a little at a time cannot keep its session for ever; what it was to read is not lost."""
    async with serving(settings(read_bytes_per_s=150_000)) as served:
        session, slow, other = await half_read(served)
        assert 9 <= await read_on(served, clock, session, slow) <= 25
        assert served.watch.cut == 1
        assert served.house.broker.hits["read_bytes_per_s"] == 1
        assert session.closed is None
        again = await other.post(connect(session.id))
        assert [data.strip() for data in again.data] == [str(number) for number in range(EVENTS)]


async def test_who_is_lost_and_does_not_come_back_expires(clock):
    """The clock runs from the loss on."""
    async with serving(settings()) as served:
        session, slow, _ = await half_read(served)
        await pass_time(served, clock, 6)
        assert session.closed is None
        slow.reset()
        await served.until(lambda: session.unsettled is None)
        await pass_time(served, clock, 6)
        await served.until(lambda: session.closed == "expired")


@pytest.mark.skipif(not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="this system cannot limit unsent bytes")
@pytest.mark.faces(SHORT_WAY, pytest.param(TLS, marks=pytest.mark.slow))
async def test_a_websocket_has_the_kernels_slack():
    """What a WebSocket writes is not reported, so its slow reader need not make the server wait earlier."""

    def limit_of(transport):
        return transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)

    async with speaking() as served:
        wire = await served.wire()
        await shake(wire)
        assert limit_of(served.board.last.link._transport) == 0
        await served.wire()
        await served.until(lambda: served.watch.connections == 2)
        limits = {
            limit_of(each.transport) for each in served.server.server_state.connections if hasattr(each, "transport")
        }
        assert limits == {32_768}
