"""WebSockets on Halley's own host: the handshake, frames both ways, silence, flow control, and every kind of end."""

from __future__ import annotations

import asyncio
import json
from time import monotonic

import pytest
import websockets
from support import authority
from support.frames import (
    ACCEPT,
    BINARY,
    CLOSE,
    CONT,
    PING,
    PONG,
    TEXT,
    Frame,
    last_frame,
    next_frame,
    opening,
    sent,
    shake,
    text,
)
from support.switchboard import BREAK, BYE, FLOOD, FLOOD_BYTES, FLOOD_FRAMES, REASON, SILENT, speaking
from support.switchboard import CLOSE as TOLD_TO_CLOSE
from support.wire import post, request

pytestmark = pytest.mark.usefixtures("face")


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def tls(request):
    """Runs the test without TLS and with it."""
    return request.param


# The opening


async def test_the_first_common_subprotocol_of_the_peer_is_echoed(tls):
    """W58: the client's order counts, and unknown subprotocols are ignored; no extension is ever accepted."""
    async with speaking(tls=tls) as served:
        wire = await served.wire()
        offer = "wamp.2.ubjson, wamp.2.msgpack.batched, wamp.2.json"
        asked = opening(protocol=offer, sec_websocket_extensions="permessage-deflate; client_max_window_bits")
        answer = await wire.request(asked)
        assert answer.status == 101
        assert answer.headers["sec-websocket-protocol"] == "wamp.2.msgpack.batched"
        assert answer.headers["sec-websocket-accept"] == ACCEPT
        assert "sec-websocket-extensions" not in answer.headers


@pytest.mark.parametrize("path", ["/wamp", "/wamp/", "/ws", "/ws/", "/ws?token=1"])
async def test_a_foreign_client_speaks_on_each_path(tls, path):
    """W58: the client of the websockets library, which offers compression, with and without TLS."""
    async with speaking(tls=tls) as served:
        url = f"{'wss' if tls else 'ws'}://localhost:{served.port}{path}"
        options = {"subprotocols": ["wamp.2.json"], "ssl": authority.context() if tls else None}
        async with websockets.connect(url, **options) as client:
            for message in ("[1]", json.dumps(["é" * 100]), json.dumps(["x" * 70_000])):
                await client.send(message)
                assert await client.recv() == message
        await served.until(lambda: served.board.last.lost_times == 1)


@pytest.mark.parametrize(
    ("asked", "status", "named"),
    [
        (opening(protocol="wamp.2.ubjson"), 400, "wamp.2.json.batched"),
        (opening(protocol=""), 400, "wamp.2.cbor"),
        (opening(origin="http://evil.example"), 403, "origin not allowed"),
        (opening(origin="null"), 403, "origin not allowed"),
        (opening(host="evil.example"), 400, "this Host is not served here"),
        (opening(sec_websocket_version="8"), 426, "version 13"),
        (opening(sec_websocket_version=""), 426, "version 13"),
        (opening(sec_websocket_key="short"), 400, "Sec-WebSocket-Key"),
        (opening(sec_websocket_key=""), 400, "Sec-WebSocket-Key"),
        (opening(sec_websocket_key="\xff" * 24), 400, "Sec-WebSocket-Key"),
        (opening(method="POST"), 405, "only GET"),
        (opening(content_length="5") + b"hello", 400, "without a body"),
    ],
)
async def test_s25_s26_an_opening_that_is_refused_is_answered_and_opens_nothing(asked, status, named):
    """S25, S26, RFC 6455 4.2.2: a status and a fixed sentence; there is no engine, and the connection is closed."""
    async with speaking(limits={"linger_s": 0.2}) as served:
        wire = await served.wire()
        answer = await wire.request(asked)
        assert answer.status == status
        assert named in answer.text
        if status == 426:
            assert answer.headers["sec-websocket-version"] == "13"
        assert await wire.is_closed()
        assert served.board.engines == []


async def test_s25_the_servers_own_pages_and_scripts_may(tls):
    """S25: origins that the guard allows can connect, and so can clients that send none."""
    async with speaking(tls=tls) as served:
        for origin in (f"{served.url}", "http://localhost:1234", ""):
            await shake(await served.wire(), origin=origin if not tls else served.url)
        assert len(served.board.engines) == 3


async def test_elsewhere_an_upgrade_is_what_it_was():
    """Paths of pages ignore it; paths below /wamp do not exist."""
    async with speaking() as served:
        for path, status in (("/", 200), ("/wampum", 404)):
            assert (await (await served.wire()).request(opening(path))).status == status
        assert (await (await served.wire()).request(opening("/wamp/deeper"))).status in (400, 405)
        assert (await (await served.wire()).request(request("GET", "/wamp"))).status == 426
        assert served.board.engines == []


async def test_frames_in_the_piece_of_the_head_are_not_lost(tls):
    """A peer sends frames before the 101, more than one piece of the parser; all of them are answered."""
    async with speaking(tls=tls) as served:
        wire = await served.wire()
        messages = [json.dumps(["x" * 1_000, number]).encode() for number in range(50)]
        await shake(wire, *map(text, messages))
        for message in messages:
            assert await next_frame(wire) == Frame(TEXT, message)


async def test_a_connection_that_served_requests_becomes_a_websocket(tls):
    """RFC 9110, 7.8: an upgrade can follow other requests on the same connection."""
    async with speaking(tls=tls, limits={"keep_alive_s": 1}, wamp={"ping_s": 1_000}) as served:
        wire = await served.wire()
        assert (await wire.request(request("GET", "/"))).status == 200
        assert (await wire.request(post(b"[]"))).status == 400
        await shake(wire)
        served.watch.sweep(monotonic() + 100)  # no deadline of HTTP is left
        await wire.send(text(b"[1]"))
        assert await next_frame(wire) == Frame(TEXT, b"[1]")
        assert served.watch.connections == 1


async def test_the_engine_knows_who_is_there():
    """S44: address and scheme are read from a listed proxy; the engine can read the header fields."""
    async with speaking(proxies=("127.0.0.1",), open=True, hosts=("127.0.0.1",)) as served:
        told = {"x_forwarded_for": "203.0.113.9", "x_forwarded_proto": "https", "cookie": "a=b"}
        await shake(await served.wire(), **told)
        context = served.board.last.context
        assert (context.address, context.scheme, context.headers["cookie"]) == ("203.0.113.9", "https", "a=b")
        assert (context.path, context.port) == ("/wamp", 0)


async def test_the_engine_knows_the_port_of_a_peer_that_comes_by_itself():
    """The port distinguishes two connections of one machine."""
    async with speaking() as served:
        wire = await served.wire()
        await shake(wire)
        assert served.board.last.context.port == wire.writer.get_extra_info("sockname")[1]


# Messages


@pytest.mark.parametrize(("protocol", "opcode"), [("wamp.2.json", TEXT), ("wamp.2.msgpack", BINARY)])
@pytest.mark.parametrize("nbytes", [0, 1, 125, 126, 65_535, 65_536, 262_144])
async def test_messages_of_every_size_come_and_go(protocol, opcode, nbytes):
    """RFC 6455, 5.2: all three forms of a length, up to the largest message that is accepted."""
    async with speaking() as served:
        wire = await served.wire()
        await shake(wire, protocol=protocol)
        await wire.send(sent(opcode, b"x" * nbytes))
        assert await next_frame(wire) == Frame(opcode, b"x" * nbytes)


async def test_a_message_may_come_in_fragments_with_pings_between(tls):
    """W58: one WAMP message is one WebSocket message; fragments can split a character, and can be empty."""
    async with speaking(tls=tls) as served:
        wire = await served.wire()
        await shake(wire)
        parts = ["é".encode()[:1], b"", "é".encode()[1:], b"!"]
        opcodes = [TEXT, CONT, CONT, CONT]
        for part, opcode in zip(parts, opcodes, strict=True):
            await wire.send(sent(opcode, part, flags=0x80 if part == b"!" else 0) + sent(PING, b"?"))
        assert [await next_frame(wire) for _ in range(5)].count(Frame(PONG, b"?")) == 4
        assert served.board.last.received == ["é!".encode()]


async def test_pings_within_a_message_do_not_count_towards_its_size(tls):
    """RFC 6455, 5.4: a control frame between fragments is not a part of the message, which may have `message_bytes`."""
    async with speaking(tls=tls) as served:
        wire = await served.wire()
        await shake(wire)
        await wire.send(sent(TEXT, b"x" * 262_091, flags=0) + sent(PING, b"?" * 120) + sent(CONT, b"x" * 53))
        assert await next_frame(wire) == Frame(PONG, b"?" * 120)
        assert await next_frame(wire) == Frame(TEXT, b"x" * 262_144)


async def test_a_byte_at_a_time_is_as_good():
    """TCP does not preserve the boundaries of writes."""
    async with speaking() as served:
        wire = await served.wire()
        await shake(wire)
        for byte in text(b'["slow"]'):
            await wire.send(bytes((byte,)))
            await asyncio.sleep(0)
        assert await next_frame(wire) == Frame(TEXT, b'["slow"]')


# Flow control


async def test_s32_a_peer_that_does_not_read_pauses_the_engine_and_is_cut(tls):
    """S32: events wait in the outbox meanwhile; a peer that reads nothing for write_s is cut."""
    async with speaking(tls=tls, limits={"write_s": 0.3}) as served:
        wire = await served.wire(receive_buffer_bytes=4_096)
        await shake(wire)
        await wire.send(text(FLOOD))
        await served.until(lambda: served.board.last.flow == ["paused"])
        assert served.board.last.link.backlog_bytes > 0
        await served.until(lambda: served.board.last.lost_times == 1)
        assert served.watch.cut == 1
        assert served.house.broker.hits["write_s"] == 1


async def test_a_peer_that_reads_again_gets_all_and_the_engine_goes_on(tls):
    """No frame is lost in a pause."""
    async with speaking(tls=tls) as served:
        wire = await served.wire(receive_buffer_bytes=4_096)
        await shake(wire)
        await wire.send(text(FLOOD))
        await served.until(lambda: served.board.last.flow == ["paused"])
        for _ in range(FLOOD_FRAMES):
            assert len((await next_frame(wire)).data) == FLOOD_BYTES + 2
        await served.until(lambda: served.board.last.flow[-1] == "resumed")


# Silence


async def test_a_silent_peer_is_asked_and_one_that_answers_stays():
    """Pings are sent after a silence; a peer that sends pongs stays connected."""
    async with speaking(wamp={"ping_s": 0.1, "pong_s": 0.3}) as served:
        wire = await served.wire()
        await shake(wire)
        for _ in range(5):
            assert await next_frame(wire) == Frame(PING, b"")
            await wire.send(sent(PONG))
        assert served.board.last.lost_times == 0


async def test_a_peer_that_does_not_answer_is_closed_with_1011():
    """1011 after pong_s without any message; any message, not only a pong, counts as a reply."""
    async with speaking(wamp={"ping_s": 0.1, "pong_s": 0.2, "kill_s": 0.1}) as served:
        wire = await served.wire()
        await shake(wire)
        assert (await next_frame(wire)).opcode == PING
        await wire.send(text(SILENT))
        assert (await next_frame(wire)).opcode == PING
        assert (await next_frame(wire)).code == 1011
        assert await wire.is_closed()
        assert served.house.broker.hits["pong_s"] == 1


# Ends


async def test_a_peers_close_is_echoed_and_the_connection_ends(tls):
    """RFC 6455, 5.5.1: the same code is echoed, then the server closes; earlier messages are processed."""
    async with speaking(tls=tls) as served:
        wire = await served.wire()
        await shake(wire)
        await wire.send(text(b"[1]") + sent(CLOSE, b"\x03\xe8bye") + text(b"[2]"))
        assert (await last_frame(wire)).code == 1000
        assert await wire.is_closed()
        assert served.board.last.received == [b"[1]"]
        assert served.board.last.lost_times == 1


async def test_an_empty_close_is_echoed_empty():
    """RFC 6455, 7.1.5: the code is optional."""
    async with speaking() as served:
        wire = await served.wire()
        await shake(wire)
        await wire.send(sent(CLOSE))
        assert await next_frame(wire) == Frame(CLOSE, b"")
        assert await wire.is_closed()


async def test_the_engines_close_comes_behind_its_frames_and_the_echo_is_waited_for(tls):
    """W8: ABORT or GOODBYE arrives before the close frame, whose reason is cut to fit, between characters."""
    async with speaking(tls=tls, wamp={"kill_s": 60}) as served:
        wire = await served.wire()
        await shake(wire)
        await wire.send(text(TOLD_TO_CLOSE))
        assert await next_frame(wire) == Frame(TEXT, BYE)
        farewell = await next_frame(wire)
        assert farewell.code == 1008
        assert REASON.startswith(farewell.reason)
        assert len(farewell.data) in (124, 125)
        await wire.send(text(b"[2]") + sent(PING) + sent(CLOSE, farewell.data))
        assert await wire.is_closed()
        assert not served.house.broker.hits["kill_s"]
        assert served.board.last.received == [TOLD_TO_CLOSE], "read on after its own close"


async def test_who_does_not_answer_the_engines_close_is_cut_after_a_while(tls):
    """The connection is aborted after kill_s."""
    async with speaking(tls=tls, wamp={"kill_s": 0.1}) as served:
        wire = await served.wire()
        await shake(wire)
        await wire.send(text(TOLD_TO_CLOSE))
        assert (await last_frame(wire)).code == 1008
        assert await wire.is_closed()
        assert served.house.broker.hits["kill_s"] == 1


async def test_a_peer_that_vanishes_is_lost_once(tls):
    """After a reset as after an end of the stream; `speaking` checks that the engine is notified exactly once."""
    async with speaking(tls=tls) as served:
        for leave in ("reset", "half_close"):
            wire = await served.wire()
            await shake(wire)
            getattr(wire, leave)()
            await served.until(lambda: served.board.last.lost_times == 1)
        await served.until(lambda: served.watch.connections == 0)


async def test_a_fault_of_ours_ends_one_connection_with_1011():
    """The peer receives no details, the log has all; no other connection is affected."""
    async with speaking() as served:
        wire, other = await served.wire(), await served.wire()
        await shake(other)
        await shake(wire)
        await wire.send(text(BREAK))
        assert (await next_frame(wire)).code == 1011
        await other.send(text(b"[1]"))
        assert await next_frame(other) == Frame(TEXT, b"[1]")
        assert len(served.faults("websocket")) == 1


async def test_the_server_leaves_and_the_sockets_end_in_time(tls):
    """Peers without a session get 1001; one that does not echo it does not delay the end of the server."""
    async with speaking(tls=tls, wamp={"kill_s": 0.1}) as served:
        wire = await served.wire()
        await shake(wire)
        served.server.begin_shutdown()
        assert (await next_frame(wire)).code == 1001
        assert await wire.is_closed()
