"""Harmful WebSocket input: each ends its connection with the right code, costs no memory, and affects no other peer."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path

import pytest
from support.frames import (
    BINARY,
    CLOSE,
    CONT,
    FIN,
    PING,
    PONG,
    RSV1,
    TEXT,
    Frame,
    last_frame,
    next_frame,
    opening,
    sent,
    shake,
    text,
)
from support.switchboard import speaking
from support.wire import DEADLINE_S, request

from halley.host import websocket

MESSAGE_BYTES = 262_144


def rss_bytes():
    """Return the resident memory of this process, in which the server runs."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def tls(request):
    """Run the test without and with TLS."""
    return request.param


async def drip(wire, piece, times):
    """Send a piece many times, until the server closes; bytes that it no longer reads do not matter."""
    with suppress(ConnectionError):
        for _ in range(times):
            await wire.send(piece)


WRONG = {
    "rsv1": (sent(TEXT, b"[1]", flags=FIN | RSV1), 1002),
    "rsv2": (sent(TEXT, b"[1]", flags=FIN | 0x20), 1002),
    "rsv3-on-a-ping": (sent(PING, b"", flags=FIN | 0x10), 1002),
    "bad-utf8": (text(b'["\xff"]'), 1007),
    "surrogate": (text(b'["\xed\xa0\x80"]'), 1007),
    "bad-utf8-in-fragments": (sent(TEXT, b"\xc3", flags=0) + sent(CONT, b"\x28"), 1007),
    "character-never-ended": (sent(TEXT, b"\xc3", flags=0) + sent(CONT), 1007),
    "unmasked": (sent(TEXT, b"[1]", masked=False), 1002),
    "unknown-opcode": (sent(3, b"[1]"), 1002),
    "unknown-control": (sent(11, b""), 1002),
    "long-ping": (sent(PING, b"x" * 126), 1002),
    "fragmented-ping": (sent(PING, b"", flags=0), 1002),
    "nothing-to-continue": (sent(CONT, b"[1]"), 1002),
    "a-message-within-a-message": (sent(TEXT, b"[", flags=0) + text(b"[1]"), 1002),
    "close-of-one-byte": (sent(CLOSE, b"x"), 1002),
    "close-with-a-code-of-nobody": (sent(CLOSE, struct.pack(">H", 1005)), 1002),
    "close-in-bad-utf8": (sent(CLOSE, b"\x03\xe8\xff"), 1007),
    "binary-with-json": (sent(BINARY, b"[1]"), 1002),
    "too-long": (sent(TEXT, b"x" * (MESSAGE_BYTES + 1)), 1009),
    "too-long-by-its-word": (sent(TEXT, b"", length=MESSAGE_BYTES + 1), 1009),
    "4-gigabytes-by-its-word": (sent(BINARY, b"", length=2**32), 1009),
    "negative-by-its-word": (sent(TEXT, b"", length=2**63), 1009),
    "too-long-in-two": (sent(TEXT, b"x" * MESSAGE_BYTES, flags=0) + sent(CONT, b"x"), 1009),
}


@pytest.mark.parametrize(("wrong", "code"), WRONG.values(), ids=WRONG)
async def test_s27_what_breaks_the_protocol_is_told_its_code(tls, wrong, code):
    """S27, RFC 6455 7.4.1: messages before the violation are answered, messages after it are not."""
    async with speaking(tls=tls) as served:
        wire = await served.wire()
        await shake(wire)
        await wire.send(text(b"[0]") + wrong + text(b"[2]"))
        if code != 1002 or wrong != WRONG["binary-with-json"][0]:
            assert b"[2]" not in served.board.last.received
        assert (await last_frame(wire)).code == code
        assert await wire.is_closed()
        assert served.board.last.received[0] == b"[0]"
        assert wrong == WRONG["binary-with-json"][0] or len(served.board.last.received) == 1


async def test_s27_a_text_message_with_a_binary_serializer_is_a_violation(tls):
    """W50: the engine sends ABORT, and the transport closes with 1002."""
    async with speaking(tls=tls) as served:
        wire = await served.wire()
        await shake(wire, protocol="wamp.2.cbor")
        await wire.send(text(b"[1]"))
        assert (await next_frame(wire)) == Frame(BINARY, b'"aborted"')
        farewell = await next_frame(wire)
        assert (farewell.code, farewell.reason) == (1002, "a text message with wamp.2.cbor")


@pytest.mark.slow
@pytest.mark.parametrize("fragment_bytes", [0, 1, 3])
async def test_s27_100_000_fragments_are_refused_and_leave_no_memory(tls, fragment_bytes):
    """S27: a message of more than 4,096 fragments ends with 1009; RSS grows by less than 1 MB."""
    async with speaking(tls=tls) as served:
        fragments = sent(CONT, b"x" * fragment_bytes, flags=0) * 1_000

        async def attack():
            wire = await served.wire()
            await shake(wire)
            await wire.send(sent(TEXT, b"", flags=0))
            await drip(wire, fragments, 100)
            with suppress(asyncio.IncompleteReadError, ConnectionError):  # it continued to send, and was reset
                assert (await last_frame(wire)).code == (1009 if fragment_bytes else 1008)
            await wire.close()
            served.forget(wire)
            await served.until(lambda: served.watch.connections == 0)

        for _ in range(4):  # until the allocators, also of the peer's TLS, have reached their size
            await attack()
        before = rss_bytes()
        for _ in range(4):
            await attack()
        grown = rss_bytes() - before
        assert tls or grown < 1_048_576, grown  # the peer's TLS buffers are in this process too
        assert served.house.broker.hits["fragments" if fragment_bytes else "empty_frames_per_s"] == 8
        assert all(engine.received == [] for engine in served.board.engines)


async def test_s27_a_long_message_is_not_kept_beyond_the_limit():
    """S27: the bytes of a message that claims 64 MB are discarded as they arrive."""
    async with speaking(wamp={"kill_s": 1}) as served:
        wire = await served.wire()
        await shake(wire)
        before = rss_bytes()
        await drip(wire, sent(TEXT, b"", length=2**26) + b"x" * 65_536, 1)
        await drip(wire, b"x" * 65_536, 200)
        assert rss_bytes() - before < 2_097_152
        await served.until(lambda: served.board.last.lost_times == 1)


async def test_s32_10_000_pings_are_a_flood(tls):
    """S32: beyond the rate, pings end the peer with 1008; about a second's number of them is allowed at a time."""
    async with speaking(tls=tls) as served:
        wire = await served.wire()
        await shake(wire)
        await wire.send(sent(PING, b"x") * 20)
        for _ in range(20):
            assert await next_frame(wire) == Frame(PONG, b"x")
        before = rss_bytes()
        await drip(wire, sent(PING, b"x") * 10_000, 1)
        assert (await last_frame(wire)).code == 1008
        assert rss_bytes() - before < 4_194_304
        assert served.house.broker.hits["pings_per_s"] == 1


async def test_s32_pongs_that_nobody_asked_for_count_too():
    """S32: RFC 6455 5.5.3 allows unsolicited pongs, as heartbeats, but they count like pings."""
    async with speaking() as served:
        wire = await served.wire()
        await shake(wire)
        await wire.send(sent(PONG) * 15 + text(b"[1]"))
        assert await next_frame(wire) == Frame(TEXT, b"[1]")
        await wire.send(sent(PONG) * 15)
        assert (await last_frame(wire)).code == 1008


async def test_s27_a_message_in_as_many_fragments_as_allowed_is_a_message(tls):
    """S27: 4,096 fragments are one message; with one more the peer is closed, and the engine hears nothing of it."""
    async with speaking(tls=tls) as served:
        wire = await served.wire()
        await shake(wire)
        first, last = sent(TEXT, b"[", flags=0), sent(CONT, b"]")
        await wire.send(first + sent(CONT, b" ", flags=0) * 4_094 + last)
        assert await next_frame(wire) == Frame(TEXT, b"[" + b" " * 4_094 + b"]")
        await wire.send(first + sent(CONT, b" ", flags=0) * 4_095 + last)
        assert (await last_frame(wire)).reason == "too many fragments"
        assert served.house.broker.hits["fragments"] == 1
        assert len(served.board.last.received) == 1


EMPTY = {
    "continuations": (sent(TEXT, b"[", flags=0), sent(CONT, flags=0)),
    "texts": (b"", text(b"")),
    "binaries": (b"", sent(BINARY)),
}


@pytest.mark.parametrize(("first", "empty"), EMPTY.values(), ids=EMPTY)
async def test_s32_frames_without_data_have_a_rate(tls, first, empty, monkeypatch):
    """S32: frames that cost work and bring nothing end their peer with 1008, whatever they are."""
    # If a slice ended before, the first empty message would be refused by the engine, since it is not JSON.
    monkeypatch.setattr(websocket, "SLICE_S", DEADLINE_S)
    async with speaking(tls=tls, limits={"empty_frames_per_s": 50}) as served:
        wire = await served.wire()
        await shake(wire)
        await drip(wire, first + empty * 10_000, 1)
        farewell = await last_frame(wire)
        assert (farewell.code, farewell.reason) == (1008, "too many empty frames")
        assert served.house.broker.hits["empty_frames_per_s"] == 1


async def test_s32_messages_that_end_with_an_empty_frame_are_messages():
    """S32: some libraries end each message with an empty frame; a client that does is served."""
    async with speaking() as served:
        wire = await served.wire()
        await shake(wire)
        for _ in range(3):
            await wire.send((sent(TEXT, b"[1]", flags=0) + sent(CONT)) * 200)
            for _ in range(200):
                assert await next_frame(wire) == Frame(TEXT, b"[1]")


async def test_s32_who_sends_on_after_the_end_is_cut(tls):
    """S32: a peer that goes on sending after a close frame is not listened to for long."""
    async with speaking(tls=tls, wamp={"kill_s": 60}) as served:
        wire = await served.wire()
        await shake(wire)
        await wire.send(text(b"\xff"))
        assert (await last_frame(wire)).code == 1007
        await drip(wire, text(b"[1]") * 10_000, 100)
        await served.until(lambda: served.watch.connections == 0)
        assert served.watch.cut == 1
        assert served.board.last.received == []


async def test_s29_cut_off_frames_and_noise_leave_nothing(tls):
    """S29: frames that end early, random bytes and a length of 4 GB, sent many times, do not increase RSS."""
    async with speaking(tls=tls) as served:
        noise = [text(b"[1]")[:-1], sent(TEXT, b"", length=2**32), bytes(range(256)) * 4, b"\x81\xfe", b"\x81"]

        async def attack():
            for data in noise:
                wire = await served.wire()
                await shake(wire)
                await wire.send(data)
                wire.reset()
                served.forget(wire)  # because its TLS has large buffers

        for _ in range(40):  # until the allocators have reached their size
            await attack()
        await served.until(lambda: served.watch.connections == 0)
        before = rss_bytes()
        for _ in range(40):
            await attack()
        await served.until(lambda: served.watch.connections == 0)
        grown = rss_bytes() - before
        assert tls or grown < 2_097_152, grown  # the peer's TLS buffers are in this process too
        assert all(engine.received == [] for engine in served.board.engines)


async def test_s3_half_an_opening_is_slowloris(tls):
    """S3: an incomplete opening is cut at the deadline of heads, and no WebSocket begins."""
    async with speaking(tls=tls, limits={"head_s": 0.2}) as served:
        wire = await served.wire()
        await wire.send(opening()[:-2])
        assert await wire.rest() == b""
        assert served.watch.cut == 1
        assert served.board.engines == []


async def test_s3_an_opening_byte_by_byte_is_an_opening():
    """S3: a peer that is slow but sends its opening in time is served."""
    async with speaking() as served:
        wire = await served.wire()
        for byte in opening() + text(b"[1]"):
            await wire.send(bytes((byte,)))
        async with asyncio.timeout(DEADLINE_S):
            assert b" 101 " in await wire.reader.readuntil(b"\r\n\r\n")
        assert await next_frame(wire) == Frame(TEXT, b"[1]")


async def test_s5_a_head_that_is_too_large_opens_nothing():
    """S5: the limits on heads are checked before a WebSocket begins."""
    async with speaking(limits={"linger_s": 0.2}) as served:
        for more in ({"x_much": "x" * 17_000}, {f"x_{number}": "1" for number in range(100)}):
            wire = await served.wire()
            assert (await wire.request(opening(**more))).status == 431
        assert served.board.engines == []


async def test_an_opening_behind_another_request_waits_for_its_response():
    """RFC 9112, 9.3.2: an opening that is sent before an earlier request was answered opens behind the response."""
    async with speaking() as served:
        wire = await served.wire()
        await wire.send(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" + opening())
        assert (await wire.read()).status == 200
        assert (await wire.read()).status == 101
        assert len(served.board.engines) == 1


async def test_an_opening_behind_an_answer_that_is_not_read_opens_after_it():
    """While a response is being written, an opening waits, since the rest of that response must be sent first."""
    async with speaking() as served:
        wire = await served.wire(receive_buffer_bytes=4_096)
        await served.until(lambda: served.watch.connections == 1)
        (connection,) = served.server.server_state.connections
        connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        largest = max(served.house.pages._files.items(), key=lambda file: len(file[1].content))[0]
        wire.writer.transport.pause_reading()
        asked = 0
        while not len(served.watch.writes):
            asked += 1
            await wire.send(request("GET", largest))
            await asyncio.sleep(0.02)
        await wire.send(opening())
        wire.writer.transport.resume_reading()
        for _ in range(asked):
            assert (await wire.read()).status == 200
        assert (await wire.read()).status == 101
        assert len(served.board.engines) == 1


async def test_the_flood_of_one_leaves_the_others_alone():
    """S32: a flood ends the peer that sends it, and another peer is served meanwhile."""
    async with speaking() as served:
        good, bad = await served.wire(), await served.wire()
        await shake(good)
        await shake(bad)
        await drip(bad, sent(PING, b"x") * 10_000, 1)
        await good.send(text(b"[1]"))
        assert await next_frame(good) == Frame(TEXT, b"[1]")
