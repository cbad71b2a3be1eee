"""Compressed WebSocket messages (RFC 7692): agreed on only where the settings say so, once for all, and bounded."""

from __future__ import annotations

import json
import random
import tracemalloc
import zlib
from contextlib import AsyncExitStack

import pytest
import websockets
from host.test_memory import COUNT, SMALL_BYTES, Kept
from hypothesis import given
from hypothesis import strategies as st
from support import authority, nt4, wamp
from support.frames import (
    BINARY,
    CONT,
    FIN,
    PING,
    RSV1,
    TEXT,
    Frame,
    deflated,
    last_frame,
    next_frame,
    opening,
    sent,
    shake,
    text,
)
from support.server import brisk, serving
from support.switchboard import speaking
from support.wamp import EVENT

from halley.host import deflate
from halley.host.frames import BadFrame

OFFER = "permessage-deflate; client_max_window_bits"
AGREED = "permessage-deflate; server_no_context_takeover; client_no_context_takeover"
MESSAGE_BYTES = 4_096
LONG = json.dumps([{"x": number, "name": "a robot"} for number in range(50)]).encode()
NOISE = b'"%b"' % random.Random(1).randbytes(1_000).hex().encode()


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def tls(request):
    """Runs the test without TLS and with it."""
    return request.param


def compressed(data, opcode=TEXT, flags=FIN):
    """Return a frame whose data are said to be compressed, as a client sends it."""
    return sent(opcode, data, flags=flags | RSV1)


async def agree(wire, *more):
    """Open a WebSocket whose messages may be compressed."""
    await shake(wire, *more, sec_websocket_extensions=OFFER)


def inflated(data):
    """Return a message of the server."""
    return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data + b"\x00\x00\xff\xff")


# What is agreed on


@pytest.mark.parametrize(
    ("offer", "agreed"),
    [
        (OFFER, AGREED),
        ("permessage-deflate", AGREED),
        ("x-webkit-deflate-frame, permessage-deflate", AGREED),
        ("permessage-deflate; client_max_window_bits=10", f"{AGREED}; client_max_window_bits=10"),
        ("permessage-deflate; server_max_window_bits=15", f"{AGREED}; server_max_window_bits=15"),
        ("permessage-deflate; server_max_window_bits=10, permessage-deflate", AGREED),
        ("permessage-deflate; server_max_window_bits=10", None),
        ("permessage-deflate; server_max_window_bits=8", None),
        ("permessage-deflate; server_max_window_bits=16", None),
        ("permessage-deflate; server_max_window_bits", None),
        ("permessage-deflate; client_no_context_takeover=1", None),
        ("permessage-deflate; client_no_context_takeover; client_no_context_takeover", None),
        ("permessage-deflate; level=9", None),
        ("permessage-bzip2", None),
        (" ", None),
    ],
)
async def test_an_offer_is_accepted_without_windows_or_declined(offer, agreed):
    """RFC 7692, 7.1: no window is kept in either direction; an offer that cannot be kept to is declined."""
    async with speaking(permessage_deflate=True) as served:
        answer = await (await served.wire()).request(opening(sec_websocket_extensions=offer))
        assert answer.status == 101
        assert answer.headers.get("sec-websocket-extensions") == agreed


@pytest.mark.parametrize("offer", ["permessage-deflate;", "permessage-deflate; =1", "\xff", 'a; b="'])
async def test_a_malformed_offer_opens_nothing(offer):
    """RFC 6455, 9.1: the client is told so, and there is no engine."""
    async with speaking(permessage_deflate=True, limits={"linger_s": 0.2}) as served:
        answer = await (await served.wire()).request(opening(sec_websocket_extensions=offer))
        assert (answer.status, answer.text) == (400, "bad Sec-WebSocket-Extensions")
        assert served.board.engines == []


async def test_without_the_setting_nothing_is_agreed_and_nothing_inflated():
    """The reserved bit is a violation then, whatever was offered."""
    async with speaking() as served:
        wire = await served.wire()
        answer = await wire.request(opening(sec_websocket_extensions=OFFER))
        assert "sec-websocket-extensions" not in answer.headers
        await wire.send(compressed(deflated(b"[1]")))
        assert (await last_frame(wire)).code == 1002
        assert served.board.last.received == []


# Messages


async def test_a_foreign_client_sends_and_receives_compressed_messages(tls):
    """The client of the websockets library, with messages whole and in fragments, compressed and not."""
    async with speaking(tls=tls, permessage_deflate=True) as served:
        url = f"{'wss' if tls else 'ws'}://localhost:{served.port}/wamp"
        options = {"subprotocols": ["wamp.2.json"], "ssl": authority.context() if tls else None}
        async with websockets.connect(url, **options) as client:
            assert [each.name for each in client.protocol.extensions] == ["permessage-deflate"]
            for message in ("[1]", json.dumps(["é" * 1_000]), json.dumps(["x" * 70_000]), LONG.decode()):
                await client.send(message)
                assert await client.recv() == message
                await client.send([message[:2], "", message[2:]])
                assert await client.recv() == message


async def test_messages_come_compressed_or_not_as_the_client_likes():
    """Each message says for itself whether it is, also where pings come between its fragments."""
    data = deflated(LONG)
    async with speaking(permessage_deflate=True) as served:
        wire = await served.wire()
        await agree(wire)
        await wire.send(compressed(data[:9], flags=0) + sent(PING, b"?") + sent(CONT, data[9:]) + text(b"[1]"))
        await wire.send(sent(TEXT, b"[", flags=0) + sent(CONT, b"2]") + compressed(deflated(b"[3]", is_ended=True)))
        await served.until(lambda: len(served.board.last.received) == 4)
        assert served.board.last.received == [LONG, b"[1]", b"[2]", b"[3]"]


@pytest.mark.parametrize(
    ("message", "is_compressed"),
    [
        (LONG, True),
        (b'["%b"]' % (b"x" * 252), True),
        (b'["%b"]' % (b"x" * 251), False),
        (json.dumps([{"clientId": "a1b2", "data": "x" * 1_000}]).encode(), False),
        (NOISE, True),
    ],
    ids=["long", "as-long-as-needed", "short", "with-a-secret", "hexadecimal"],
)
async def test_what_is_worth_it_and_has_no_secret_is_compressed(message, is_compressed):
    """From 256 bytes on, unless there is a client id in it, at whose value text of others could help to guess."""
    async with speaking(permessage_deflate=True) as served:
        wire = await served.wire()
        await agree(wire, text(message))
        frame = await next_frame(wire, may_be_deflated=True)
        assert frame.is_deflated is is_compressed
        assert (inflated(frame.data) if is_compressed else frame.data) == message
        assert len(frame.data) < len(message) or not is_compressed


async def test_what_does_not_become_smaller_is_sent_as_it_is():
    """Bytes that look random grow when they are compressed."""
    message = random.Random(2).randbytes(1_000)
    async with speaking(permessage_deflate=True) as served:
        wire = await served.wire()
        await shake(wire, sent(BINARY, message), protocol="wamp.2.msgpack", sec_websocket_extensions=OFFER)
        assert await next_frame(wire, may_be_deflated=True) == Frame(BINARY, message)


# What is wrong

BOMB = deflated(bytes(20_000_000))
"""20 MB in 19 KB."""
CUT = deflated(LONG)[:-3]

WRONG = {
    "garbage": (compressed(b"\xff" * 20), 1007),
    "nothing": (compressed(b""), 1007),
    "cut-off": (compressed(CUT), 1007),
    "cut-off-in-fragments": (compressed(CUT[:5], flags=0) + sent(CONT, CUT[5:]), 1007),
    "more-behind-its-end": (compressed(deflated(b"[1]", is_ended=True) + deflated(b"[2]")), 1007),
    "not-compressed-at-all": (compressed(b"[1]"), 1007),
    "bad-utf8": (compressed(deflated(b'["\xff"]')), 1007),
    "a-byte-too-much": (compressed(deflated(b" " * (MESSAGE_BYTES + 1))), 1009),
    "a-bomb": (compressed(BOMB[:MESSAGE_BYTES]), 1009),
    "a-bomb-in-fragments": (compressed(BOMB[:2_000], flags=0) + sent(CONT, BOMB[2_000:4_000]), 1009),
    "too-long-as-it-is": (compressed(b"", flags=FIN)[:1] + sent(TEXT, b"", length=MESSAGE_BYTES + 1)[1:], 1009),
    "rsv1-on-a-ping": (compressed(b"", PING), 1002),
    "rsv1-on-a-continuation": (compressed(b"x", flags=0) + compressed(b"y", CONT), 1002),
    "rsv2": (sent(TEXT, b"[1]", flags=FIN | 0x20), 1002),
    "rsv1-and-rsv2": (sent(TEXT, b"[1]", flags=FIN | RSV1 | 0x20), 1002),
    "rsv1-on-an-unknown-opcode": (compressed(b"x", 3), 1002),
}


@pytest.mark.parametrize(("wrong", "code"), WRONG.values(), ids=WRONG)
async def test_what_is_no_compressed_message_is_told_its_code(wrong, code):
    """RFC 7692, 7.2.2: what came before is answered, and of a bomb no more is inflated than a message may have."""
    async with speaking(permessage_deflate=True, wamp={"message_bytes": MESSAGE_BYTES}) as served:
        wire = await served.wire()
        await agree(wire, text(b"[0]"))
        assert await next_frame(wire) == Frame(TEXT, b"[0]")
        tracemalloc.start()
        await wire.send(wrong + text(b"[2]"))
        assert (await last_frame(wire)).code == code
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
        tracemalloc.stop()
        assert await wire.is_closed()
        assert served.board.last.received == [b"[0]"]
        assert served.house.broker.hits["message_bytes"] == (code == 1009)


async def test_a_message_that_is_as_large_as_it_may_be_is_a_message():
    """The bound is of what is inflated, to the byte."""
    async with speaking(permessage_deflate=True, wamp={"message_bytes": MESSAGE_BYTES}) as served:
        wire = await served.wire()
        message = b"[%b]" % (b" " * (MESSAGE_BYTES - 2))
        await agree(wire, compressed(deflated(message)))
        await served.until(lambda: served.board.last.received == [message])


EMPTY = b"\x00"
"""An empty message (RFC 7692, 7.2.3.6), with which one begins that cannot be made smaller."""


@given(st.binary(max_size=600) | st.text(max_size=300).map(str.encode), st.data())
def test_data_are_inflated_whole_or_not_at_all(message, data):
    """Whatever is cut off is noticed: no message is taken for complete of which there is only a part."""
    whole = deflated(message, is_ended=data.draw(st.booleans()))
    assert deflate.inflate(whole, 4_000) == message
    part = whole[: data.draw(st.integers(0, len(whole) - 1))]
    if part == EMPTY:
        assert deflate.inflate(part, 4_000) == b""
    else:
        with pytest.raises(BadFrame):
            deflate.inflate(part, 4_000)


def test_what_a_sender_leaves_out_is_not_read_as_part_of_a_message():
    """A block that is cut off near its end could go on with it, as if that were the rest of the block (7.2.1)."""
    chance = random.Random(3)
    for _ in range(50):
        message = bytes(chance.choice(b"\x90\x91\x92" if chance.random() < 0.7 else range(256)) for _ in range(1_000))
        for whole in (deflated(message), deflated(message, is_ended=True)):
            for cut in (1, 2, 3):
                with pytest.raises(BadFrame):
                    deflate.inflate(whole[:-cut], 4_000)


# Many receivers


@pytest.fixture
def compressions(monkeypatch):
    """The messages that were large enough to be compressed, each time that one is."""
    found = []

    def noted(opcode, message, make=deflate.frame_of):
        if len(message) >= deflate.LEAST_BYTES:
            found.append(message)
        return make(opcode, message)

    monkeypatch.setattr(deflate, "frame_of", noted)
    return found


async def test_an_event_is_compressed_once_for_all_that_take_it_so(compressions):
    """WAMP: the frame is the same for each of them; a subscriber that offers no compression has the event too."""
    async with serving(brisk(permessage_deflate=True)) as served, AsyncExitStack() as stack:
        peers = []
        for compression in ("deflate", "deflate", "deflate", None):
            peer = await stack.enter_async_context(await wamp.connect(served.url, compression=compression))
            await peer.join()
            await peer.subscribe("com.example.wide")
            peers.append(peer)
        publisher = await stack.enter_async_context(await wamp.join(served.url))
        compressions.clear()
        await publisher.publish("com.example.wide", [["a robot"] * 100])
        for peer in peers:
            event = await peer.receive()
            assert (event[0], event[4]) == (EVENT, [["a robot"] * 100])
        assert len(compressions) == 1
        shown = await peers[0].call("wamp.session.get", peers[0].session)
        assert shown[3][0]["transport"] == {"type": "websocket", "protocol": "wamp.2.json"}


async def test_a_value_is_compressed_once_for_all_that_take_it_so(compressions):
    """NetworkTables: the same, with its binary frames."""
    settings = brisk(permessage_deflate=True, nt4={"enabled": True, "port": 0, "pong_s": 60})
    async with serving(settings) as served, AsyncExitStack() as stack:
        url = f"http://127.0.0.1:{served.nt4_port}"
        peers = []
        for compression in ("deflate", "deflate", None):
            peer = await stack.enter_async_context(await nt4.connect(url, compression=compression))
            await peer.subscribe("/wide")
            peers.append(peer)
        robot = await stack.enter_async_context(await nt4.connect(url, "robot"))
        await robot.publish("/wide", 1, "string")
        for peer in peers:
            await peer.text("announce")
        compressions.clear()
        await robot.put(1, 1, "a robot" * 100, nt4.STRING)
        for peer in peers:
            assert (await peer.value("/wide")).value == "a robot" * 100
        assert len(compressions) == 1


async def test_no_window_is_kept_between_messages():
    """An idle connection takes as little as one without compression, however much was compressed on it."""
    async with speaking(permessage_deflate=True) as served:

        async def used():
            wire = await served.wire()
            await agree(wire, compressed(deflated(LONG)))
            assert (await next_frame(wire, may_be_deflated=True)).is_deflated
            served.board.last.received.clear()

        await used()
        with Kept() as kept:
            for _ in range(COUNT):
                await used()
            assert kept.nbytes < SMALL_BYTES
