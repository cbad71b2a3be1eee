"""WebSockets under a foreign ASGI server: the same checks and engines as on Halley's own host."""

from __future__ import annotations

import asyncio

import pytest
import websockets
from support.frames import last_frame, next_frame, opening, sent, shake, text
from support.switchboard import BYE, FLOOD, FLOOD_BYTES, FLOOD_FRAMES, REASON, speaking_plainly
from support.switchboard import CLOSE as TOLD_TO_CLOSE
from support.wire import Wire


def client(served, path="/wamp", protocol="wamp.2.json", **options):
    """Connect with the websockets library's client."""
    return websockets.connect(f"ws://127.0.0.1:{served.port}{path}", subprotocols=[protocol], **options)


async def test_both_kinds_of_messages_come_and_go():
    """W58: text messages for JSON, binary ones for the others, without Halley's own frame headers."""
    async with speaking_plainly() as served:
        async with client(served) as peer:
            await peer.send('["é"]')
            assert await peer.recv() == '["é"]'
        async with client(served, "/ws/", "wamp.2.msgpack.batched") as peer:
            assert peer.subprotocol == "wamp.2.msgpack.batched"
            await peer.send(b"\x91\x01")
            assert await peer.recv() == b"\0\0\0\x02\x91\x01"
        await served.until(lambda: [engine.lost_times for engine in served.board.engines] == [1, 1])
        assert {engine.link.kind for engine in served.board.engines} == {"asgi"}


@pytest.mark.parametrize(
    ("asked", "status", "named"),
    [
        (opening(protocol="wamp.2.ubjson"), 400, "wamp.2.json.batched"),
        (opening(protocol=""), 400, "wamp.2.cbor"),
        (opening(origin="http://evil.example"), 403, "origin not allowed"),
        (opening(host="evil.example"), 400, "this Host is not served here"),
        (opening("/elsewhere"), 403, ""),
        (opening("/wamp/deeper"), 403, "this path does not accept WebSockets"),
    ],
)
async def test_s25_s26_the_same_openings_are_refused(asked, status, named):
    """S25, S26: with the same texts as on Halley's own host."""
    async with speaking_plainly() as served:
        wire = await Wire.open(served.port)
        answer = await wire.request(asked)
        assert answer.status == status
        assert named in answer.text
        assert served.board.engines == []
        await wire.close()


async def test_the_engine_knows_scheme_address_and_path():
    """The scheme is `http`, never `ws`, as origins are compared with it; the path is as it was sent."""
    async with (
        speaking_plainly() as served,
        client(served, "/w%61mp?a=1", additional_headers={"x-token": "1"}) as peer,
    ):
        await peer.send("[1]")
        await peer.recv()
        context = served.board.last.context
        assert (context.scheme, context.address, context.headers["x-token"]) == ("http", "127.0.0.1", "1")
        assert (context.path, context.port) == ("/w%61mp", peer.local_address[1])


async def test_the_engines_close_comes_behind_its_frames():
    """W8: the engine's frames arrive before the close frame, whose reason is cut to fit."""
    async with speaking_plainly() as served, client(served) as peer:
        await peer.send(TOLD_TO_CLOSE.decode())
        assert await peer.recv() == BYE.decode()
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await peer.recv()
        assert closed.value.rcvd.code == 1008
        assert REASON.startswith(closed.value.rcvd.reason)


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (sent(2, b"[1]"), 1002),
        (text(b"x" * 262_145), 1009),
        (text(b'"\xff"'), 1007),
        (sent(1, b"[1]", masked=False), 1002),
    ],
    ids=["binary-with-json", "too-long", "bad-utf8", "unmasked"],
)
async def test_s27_what_breaks_the_protocol_is_told_its_code(wrong, code):
    """S27: the foreign server or Halley closes with that code."""
    async with speaking_plainly() as served:
        wire = await Wire.open(served.port)
        await shake(wire)
        await wire.send(wrong)
        assert (await last_frame(wire)).code == code
        await wire.close()
        await served.until(lambda: served.board.last.lost_times == 1)
        assert served.board.last.received == []


async def test_s32_a_peer_that_does_not_read_pauses_the_engine():
    """S32: the engine knows the backlog; nothing is lost, and the engine resumes when it is sent."""
    async with speaking_plainly() as served:
        wire = await Wire.open(served.port, receive_buffer_bytes=4_096)
        await shake(wire)
        await wire.send(text(FLOOD))
        await served.until(lambda: served.board.last.flow == ["paused"])
        assert served.board.last.link.backlog_bytes > 0
        for _ in range(FLOOD_FRAMES):
            assert len((await next_frame(wire)).data) == FLOOD_BYTES + 2
        await served.until(lambda: served.board.last.flow == ["paused", "resumed"])
        assert served.board.last.link.backlog_bytes == 0
        await wire.close()


async def test_s32_a_peer_that_never_reads_is_cut():
    """S32: after write_s, as on Halley's own host."""
    async with speaking_plainly(limits={"write_s": 0.3}) as served:
        wire = await Wire.open(served.port, receive_buffer_bytes=4_096)
        await shake(wire)
        await wire.send(text(FLOOD))
        await served.until(lambda: served.board.last.lost_times == 1)
        await wire.close()


async def test_a_peer_that_vanishes_is_lost():
    """The engine is notified after a reset, even if frames are being sent."""
    async with speaking_plainly() as served:
        wire = await Wire.open(served.port)
        await shake(wire)
        await wire.send(text(FLOOD))
        wire.reset()
        await served.until(lambda: bool(served.board.engines) and served.board.last.lost_times == 1)
        await asyncio.sleep(0)
