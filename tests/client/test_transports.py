"""By which transport Halley's client is connected, and how it goes from one to the other."""

from __future__ import annotations

import asyncio
import re

import pytest
from support.server import serving
from support.socket_gate import BLOCKING, BUSY, OPEN, REFUSING, gate
from support.wire import DEADLINE_S

from halley.client import Client, ConnectionEvent, Refused, Timeouts, Unreachable, socket_wire
from halley.client.wamp import WampClient

TIMEOUTS = Timeouts(answer_s=DEADLINE_S, network_s=DEADLINE_S, backoff_s=0.02, nudge_s=0.02, goodbye_s=DEADLINE_S)


@pytest.fixture
def brief(monkeypatch):
    """A WebSocket that is silent is taken for blocked after a tenth of a second."""
    monkeypatch.setattr(socket_wire, "_PROOF_S", 0.1)


async def read(client, count):
    """Return the data of the next events, in order."""
    async with asyncio.timeout(DEADLINE_S):
        return [(await anext(client)).data for _ in range(count)]


async def until_connected(served, client, transport):
    """Wait until the client's connect is held, by this transport."""
    await served.until(lambda: client.transport == transport and served.house.engine.sessions.holds == 1)


@pytest.mark.parametrize(
    ("allowed", "used"), [("auto", "websocket"), ("websocket", "websocket"), ("long-polling", "long-polling")]
)
async def test_a_websocket_is_used_unless_the_program_wants_none(allowed, used):
    """Over a WebSocket nothing is posted, whatever is done."""
    async with serving() as served, gate(served.port) as front:
        async with Client(front.url, transport=allowed, timeouts=TIMEOUTS) as client:
            await client.subscribe("/a")
            await client.publish_many("/a", range(300))
            assert await read(client, 300) == [*range(300)]
            await client.unsubscribe("/a")
            assert client.transport == used
        assert not served.house.broker.sessions
        assert {head.split()[0] for head in front.heads} == {b"GET" if used == "websocket" else b"POST"}


@pytest.mark.parametrize("way", BLOCKING)
async def test_where_websockets_are_blocked_it_polls(brief, way):
    """Refused, silent before or after the upgrade, closed after it: the session goes by POST, and no other is tried."""
    async with serving() as served, gate(served.port) as front:
        front.way = way
        async with Client(front.url, timeouts=TIMEOUTS) as client:
            await client.subscribe("/a")
            for number in range(3):
                await client.publish("/a", number)
                assert await read(client, 1) == [number]
            assert (client.transport, front.asked) == ("long-polling", 1)


@pytest.mark.parametrize("way", BLOCKING)
async def test_a_program_that_wants_a_websocket_only_is_told_that_there_is_none(brief, way):
    """Nothing is posted then."""
    async with serving() as served, gate(served.port) as front:
        front.way = way
        with pytest.raises((Unreachable, Refused, socket_wire.OutcomeUnknown), match=re.escape(front.url)):
            async with Client(front.url, transport="websocket", timeouts=TIMEOUTS):
                pass
        assert all(head.startswith(b"GET ") for head in front.heads)


@pytest.mark.parametrize("way", BLOCKING)
async def test_a_session_goes_on_by_polls_when_websockets_are_blocked_in_between(brief, way):
    """The same session, and no event is lost, doubled or reordered."""
    links = []
    async with serving() as served, gate(served.port) as front:
        async with Client(front.url, timeouts=TIMEOUTS, on_link=lambda *link: links.append(link[0])) as client:
            await client.subscribe("/a")
            await until_connected(served, client, "websocket")
            session = client.client_id
            front.way = way
            for number in range(100):
                served.halley.publish("/a", number)
                if number == 50:
                    front.cut()
                await asyncio.sleep(0)
            assert await read(client, 100) == [*range(100)]
            await until_connected(served, client, "long-polling")
            assert client.client_id == session
            await client.publish("/a", "by a post")
            assert await read(client, 1) == ["by a post"]
        assert links == [ConnectionEvent.LOST, ConnectionEvent.RESUMED]
        assert any(head.startswith(b"POST") for head in front.heads)


async def test_one_that_is_lost_as_it_opens_is_tried_again_soon_if_one_has_worked(monkeypatch):
    """A network that is lost twice in a moment does not make a client poll for ten minutes."""
    monkeypatch.setattr(socket_wire, "_LOST_S", 0.2)
    async with serving() as served, gate(served.port) as front, Client(front.url, timeouts=TIMEOUTS) as client:
        await client.subscribe("/a")
        await until_connected(served, client, "websocket")
        front.way = REFUSING
        front.cut()
        await until_connected(served, client, "long-polling")
        front.way = OPEN
        await client.publish_many("/a", range(3))
        assert await read(client, 3) == [0, 1, 2]
        async with asyncio.timeout(DEADLINE_S):
            while client.transport != "websocket":
                await client.publish("/a", "wake")
                assert await read(client, 1) == ["wake"]


async def test_a_websocket_is_tried_again_after_a_while_and_takes_the_session_over(monkeypatch):
    """The events of the change come once and in order."""
    monkeypatch.setattr(socket_wire, "_BLOCKED_S", 0.2)
    async with serving() as served, gate(served.port) as front:
        front.way = REFUSING
        async with Client(front.url, timeouts=TIMEOUTS) as client:
            await client.subscribe("/a")
            session = client.client_id
            assert client.transport == "long-polling"
            front.way = OPEN
            sent = 0
            async with asyncio.timeout(DEADLINE_S):
                while client.transport == "long-polling":
                    served.halley.publish("/a", sent)
                    sent += 1
                    await asyncio.sleep(0.005)
            await until_connected(served, client, "websocket")
            served.halley.publish("/a", sent)
            assert await read(client, sent + 1) == [*range(sent + 1)]
            assert client.client_id == session


async def test_a_busy_server_is_not_taken_for_a_proxy_without_websockets(monkeypatch):
    """A 503 is of a server that starts or leaves: a WebSocket is tried again soon."""
    monkeypatch.setattr(socket_wire, "_BUSY_S", 0.0)
    async with serving() as served, gate(served.port) as front:
        front.way = BUSY
        async with Client(front.url, timeouts=TIMEOUTS) as client:
            await client.subscribe("/a")
            assert client.transport == "long-polling"
            front.way = OPEN
            served.halley.publish("/a", 1)
            assert await read(client, 1) == [1]
            await until_connected(served, client, "websocket")


async def test_a_cut_websocket_comes_back_with_its_session_and_what_came_meanwhile():
    """Twenty cuts in three hundred events: each event once and in order, in one session, without a post."""
    links = []
    async with serving() as served, gate(served.port) as front:
        async with Client(front.url, timeouts=TIMEOUTS, on_link=lambda *link: links.append(link[0])) as client:
            await client.subscribe("/a")
            session = client.client_id
            reading = asyncio.create_task(read(client, 300))
            for number in range(300):
                if number % 15 == 0:
                    front.cut()
                    connects = served.house.engine.sessions.connects
                    await served.until(lambda connects=connects: served.house.engine.sessions.connects > connects)
                served.halley.publish("/a", number)
                await asyncio.sleep(0)
            assert await reading == [*range(300)]
            assert client.client_id == session
        assert ConnectionEvent.RENEWED not in links
        assert {head.split()[0] for head in front.heads} == {b"GET"}


async def test_a_server_that_acknowledges_nothing_is_polled():
    """Events that it pushes could be lost with a WebSocket, and nothing would bound them while nobody reads."""

    class NoAck:
        def incoming(self, session, message):
            message.pop("ext", None)
            return message

    async with serving(register=lambda halley: halley.add_extension(NoAck())) as served:
        async with Client(served.url, timeouts=TIMEOUTS) as client:
            await client.subscribe("/a")
            await client.publish("/a", 1)
            assert await read(client, 1) == [1]
            assert client.transport == "long-polling"
        with pytest.raises(Refused, match="does not acknowledge events"):
            async with Client(served.url, transport="websocket", timeouts=TIMEOUTS):
                pass


async def test_what_is_too_long_for_some_servers_frames_is_posted():
    """60,000 bytes or more go by POST, and their order among the others is kept."""
    values = ["ü" * 29_990, "x", "y" * 60_000, "z"]
    async with serving() as served, gate(served.port) as front:
        async with Client(front.url, timeouts=TIMEOUTS) as client:
            await client.subscribe("/a")
            for value in values:
                await client.publish("/a", value)
            assert await read(client, 4) == values
            assert client.transport == "websocket"
        assert sum(head.startswith(b"POST") for head in front.heads) in (1, 2)  # connections, which are kept


@pytest.mark.parametrize("kind", [Client, WampClient])
async def test_no_client_follows_a_redirect(kind):
    """A token is for the server that it was given for."""
    asked = []

    async def redirect(reader, writer):
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        port = server.sockets[0].getsockname()[1]
        writer.write(b"HTTP/1.1 308 Moved\r\nLocation: http://127.0.0.1:%d/else\r\nContent-Length: 0\r\n\r\n" % port)
        writer.close()

    server = await asyncio.start_server(redirect, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(Exception, match="308"):
            async with kind(url, token="abc"):
                pass
    assert b" /else " not in b"".join(asked)
