"""Frames that break RFC 6455, over the WebSockets of every protocol: the same code for each, whatever is spoken inside.

A new protocol needs a line in `DOORS`.
"""

from __future__ import annotations

import asyncio
import struct
from typing import NamedTuple

import pytest
import pytest_asyncio
from support import nt4
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
    sent,
    shake,
    text,
)
from support.server import brisk, serving
from support.wire import DEADLINE_S

pytestmark = pytest.mark.asyncio(loop_scope="module")

MESSAGE_BYTES = 4_096
FRAGMENTS, EMPTY_FRAMES_PER_S = 64, 32
RSV2, RSV3 = 0x20, 0x10


class Door(NamedTuple):
    """Where a protocol's WebSockets are opened, and the settings' table that has its `message_bytes`."""

    path: str
    subprotocol: str
    table: str


DOORS = {
    "wamp": Door("/wamp", "wamp.2.json", "wamp"),
    "nt4": Door("/nt/robot", nt4.V41, "nt4"),
    "bayeux": Door("/bayeux", "", "bayeux"),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served():
    """Serve all protocols, with small limits that are the same for each."""
    changed = {door.table: {"message_bytes": MESSAGE_BYTES, "kill_s": 0.05} for door in DOORS.values()}
    changed["nt4"] |= {"enabled": True, "port": 0, "pong_s": 60}
    limits = {"fragments": FRAGMENTS, "empty_frames_per_s": EMPTY_FRAMES_PER_S}
    async with serving(brisk(limits=limits, **changed)) as served:
        yield served


@pytest.fixture(params=DOORS)
def door(request):
    """Run the test for each protocol."""
    return DOORS[request.param]


async def opened(served, door):
    """Return a connection that has become a WebSocket."""
    wire = await served.wire()
    await shake(wire, path=door.path, protocol=door.subprotocol)
    return wire


async def is_heard(wire):
    """Return when the server has answered a ping; it may send others of its own."""
    await wire.send(sent(PING, b"there?"))
    while await next_frame(wire) != Frame(PONG, b"there?"):
        pass


def close(code, reason=b""):
    return sent(CLOSE, struct.pack(">H", code) + reason)


def fragments(*pieces, opcode=TEXT):
    """Return a message in fragments."""
    first, *middle = (sent(CONT if index else opcode, piece, flags=0) for index, piece in enumerate(pieces[:-1]))
    return b"".join((first, *middle, sent(CONT, pieces[-1])))


WRONG = {
    **{
        f"{name}-{kind}": (sent(opcode, b"x", flags=FIN | bit), 1002)
        for name, bit in (("rsv1", RSV1), ("rsv2", RSV2), ("rsv3", RSV3), ("all-three", 0x70))
        for kind, opcode in (("text", TEXT), ("binary", BINARY), ("ping", PING), ("pong", PONG), ("close", CLOSE))
    },
    "rsv1-within-a-message": (sent(TEXT, b"[", flags=0) + sent(CONT, b"]", flags=FIN | RSV1), 1002),
    "rsv1-in-a-first-fragment": (sent(TEXT, b"[", flags=RSV1) + sent(CONT, b"]"), 1002),
    **{f"opcode-{opcode}": (sent(opcode), 1002) for opcode in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15)},
    **{
        f"{what}-{kind}": (sent(opcode, data, flags=flags, length=length), 1002)
        for kind, opcode in (("ping", PING), ("pong", PONG), ("close", CLOSE))
        for what, data, flags, length in (
            ("long", b"x" * 126, FIN, None),
            ("long-by-its-word", b"", FIN, 2**40),
            ("fragmented", b"", 0, None),
        )
    },
    "unmasked-text": (sent(TEXT, b"[1]", masked=False), 1002),
    "unmasked-ping": (sent(PING, masked=False), 1002),
    "unmasked-close": (sent(CLOSE, struct.pack(">H", 1000), masked=False), 1002),
    "nothing-to-continue": (sent(CONT, b"x"), 1002),
    "nothing-to-continue-yet": (sent(CONT, b"x", flags=0), 1002),
    "nothing-to-continue-any-more": (fragments(b"[", b"1]") + sent(CONT, b"x"), 1002),
    "a-text-within-a-message": (sent(TEXT, b"[", flags=0) + text(b"[1]"), 1002),
    "a-binary-within-a-message": (sent(TEXT, b"[", flags=0) + sent(BINARY, b"x", flags=0), 1002),
    "close-of-one-byte": (sent(CLOSE, b"\x03"), 1002),
    **{
        f"close-with-{code}": (close(code), 1002)
        for code in (0, 1, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535)
    },
    "close-in-bad-utf8": (close(1000, b"\xff"), 1007),
    "close-in-half-a-character": (close(1000, b"\xe2\x82"), 1007),
    "bad-utf8": (text(b'["\xff"]'), 1007),
    "overlong-utf8": (text(b'["\xc0\xaf"]'), 1007),
    "a-surrogate": (text(b'["\xed\xa0\x80"]'), 1007),
    "beyond-unicode": (text(b'["\xf4\x90\x80\x80"]'), 1007),
    "half-a-character": (text(b'["\xe2\x82'), 1007),
    "bad-utf8-in-fragments": (fragments(b'["\xe2', b"\x82", b'\x28"]'), 1007),
    "half-a-character-in-fragments": (fragments(b'["\xe2', b"\x82", b""), 1007),
    "too-long": (sent(TEXT, b" " * (MESSAGE_BYTES + 1)), 1009),
    "too-long-binary": (sent(BINARY, b" " * (MESSAGE_BYTES + 1)), 1009),
    "too-long-in-fragments": (fragments(b" " * MESSAGE_BYTES, b" "), 1009),
    "too-long-by-its-word": (sent(TEXT, length=MESSAGE_BYTES + 1), 1009),
    "too-long-by-its-second-word": (sent(TEXT, b" ", flags=0) + sent(CONT, length=MESSAGE_BYTES), 1009),
    "4-gigabytes-by-its-word": (sent(BINARY, length=2**32), 1009),
    "negative-by-its-word": (sent(TEXT, length=2**63), 1009),
    "all-ones-by-its-word": (sent(TEXT, length=2**64 - 1), 1009),
    "endless-fragments": (sent(TEXT, b" ", flags=0) + sent(CONT, b" ", flags=0) * FRAGMENTS, 1009),
    "endless-empty-fragments": (sent(TEXT, b" ", flags=0) + sent(CONT, flags=0) * (EMPTY_FRAMES_PER_S + 1), 1008),
}


@pytest.mark.parametrize(("wrong", "code"), WRONG.values(), ids=WRONG)
async def test_s27_a_frame_that_breaks_the_protocol_is_told_its_code(door, wrong, code, served):
    """RFC 6455, 7.4.1: it is answered by one close frame, behind all that was said before; others go on."""
    other, wire = await opened(served, door), await opened(served, door)
    await is_heard(wire)
    await wire.send(wrong + sent(PING, b"too late"))
    farewell = await last_frame(wire)
    assert farewell.code == code
    assert farewell.reason
    assert await wire.is_closed()
    await is_heard(other)
    await other.close()


@pytest.mark.parametrize("code", [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 4999])
async def test_a_close_that_is_allowed_is_echoed(door, code, served):
    """RFC 6455, 5.5.1 and 7.4: with its reason, and the server closes the connection."""
    wire = await opened(served, door)
    await wire.send(close(code, "gute Nacht, é".encode()))
    farewell = await last_frame(wire)
    assert (farewell.code, farewell.reason) == (code, "gute Nacht, é")
    assert await wire.is_closed()


async def test_a_close_within_a_message_is_echoed_too(door, served):
    """RFC 6455, 5.4 and 5.5: who gives up in the middle of a message may close there, and the rest never comes."""
    wire = await opened(served, door)
    await wire.send(sent(TEXT, b"[", flags=0) + close(4321, b"enough"))
    farewell = await last_frame(wire)
    assert (farewell.code, farewell.reason) == (4321, "enough")
    assert await wire.is_closed()


async def test_what_is_as_long_as_allowed_is_read(door, served):
    """Control frames of 125 bytes, also within a message, and characters that are cut in two by fragments."""
    wire = await opened(served, door)
    await wire.send(sent(TEXT, b'["\xe2', flags=0) + sent(PING, b"x" * 125) + sent(CONT, b"\x82", flags=0))
    while await next_frame(wire) != Frame(PONG, b"x" * 125):
        pass
    await is_heard(wire)


@pytest.mark.parametrize(
    "begun",
    [b"\x81", sent(TEXT, b"[1]")[:-1], sent(TEXT, b"", length=MESSAGE_BYTES), sent(PING, b"ping")[:5]],
    ids=["one-byte", "without-its-last", "without-data", "half-a-ping"],
)
async def test_a_frame_that_is_never_ended_is_none(door, begun, served):
    """A peer that leaves in the middle of it is gone, without an answer to it."""
    await served.hang_up()  # what other tests have left open
    await served.until(lambda: not any(each.connections for each in served.watches))
    wire = await opened(served, door)
    await is_heard(wire)
    await wire.send(begun)
    wire.writer.write_eof()
    async with asyncio.timeout(DEADLINE_S):
        rest = await wire.reader.read()
    assert not rest.replace(b"\x89\x00", b"")  # but for pings of the server's own
    await served.until(lambda: not any(each.connections for each in served.watches))
