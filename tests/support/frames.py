"""WebSocket by hand: writes frames as a client does, valid or not, and reads a server's frames one by one."""

from __future__ import annotations

import asyncio
import struct
import zlib
from typing import Any, NamedTuple

from support.wire import DEADLINE_S, Wire, request

CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
FIN, RSV1 = 0x80, 0x40
KEY, ACCEPT = "dGhlIHNhbXBsZSBub25jZQ==", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
"""The example in RFC 6455."""


class Frame(NamedTuple):
    """A frame that a server has written."""

    opcode: int
    data: bytes
    is_deflated: bool = False

    @property
    def code(self) -> int:
        """The status code of a close frame."""
        return int.from_bytes(self.data[:2], "big")

    @property
    def reason(self) -> str:
        """The reason in a close frame."""
        return self.data[2:].decode()


def sent(opcode: int, data: bytes = b"", *, flags: int = FIN, masked: bool = True, length: int | None = None) -> bytes:
    """Return a frame as a client sends it. `length` replaces the payload's real length in the header."""
    nbytes = len(data) if length is None else length
    mask_bit = 0x80 if masked else 0
    if nbytes < 126:
        head = bytes((flags | opcode, mask_bit | nbytes))
    elif nbytes < 65_536:
        head = struct.pack(">BBH", flags | opcode, mask_bit | 126, nbytes)
    else:
        head = struct.pack(">BBQ", flags | opcode, mask_bit | 127, nbytes)
    if not masked:
        return head + data
    mask = b"\x0f\xf0\x55\xaa"
    keys = (mask * (len(data) // 4 + 1))[: len(data)]
    masked_data = int.from_bytes(data, "big") ^ int.from_bytes(keys, "big")  # faster than byte by byte
    return head + mask + masked_data.to_bytes(len(data), "big")


def text(data: bytes) -> bytes:
    """Return a whole text message as a client sends it."""
    return sent(TEXT, data)


def opening(path: str = "/wamp", protocol: str = "wamp.2.json", method: str = "GET", **headers: str) -> bytes:
    """Return a request for a WebSocket."""
    usual = {
        "upgrade": "websocket",
        "connection": "Upgrade",
        "sec_websocket_key": KEY,
        "sec_websocket_version": "13",
        "sec_websocket_protocol": protocol,
    }
    return request(method, path, b"", **(usual | headers))


def deflated(data: bytes, *, is_ended: bool = False) -> bytes:
    """Return what is sent of compressed data (RFC 7692, 7.2.1); with `is_ended` its last block says that it is."""
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    if is_ended:
        return compressor.compress(data) + compressor.flush() + b"\x00"
    return (compressor.compress(data) + compressor.flush(zlib.Z_SYNC_FLUSH)).removesuffix(b"\x00\x00\xff\xff")


async def shake(wire: Wire, *more: bytes, **options: Any) -> None:
    """Open a WebSocket on a connection; `more` is sent in the same piece as the request."""
    answer = await wire.request(b"".join((opening(**options), *more)))
    assert (answer.status, answer.headers["sec-websocket-accept"]) == (101, ACCEPT)


async def next_frame(wire: Wire, *, may_be_deflated: bool = False) -> Frame:
    """Return the next frame that the server writes. Raises `asyncio.IncompleteReadError` if there is none.

    The data of one that is compressed are as they were sent.
    """
    async with asyncio.timeout(DEADLINE_S):
        first, nbytes = await wire.reader.readexactly(2)
        assert first & 0x70 == 0 or (may_be_deflated and first & 0x70 == RSV1), "a reserved bit"
        assert first & FIN, "a fragment"
        assert nbytes < 128, "masked"
        if nbytes == 126:
            nbytes = int.from_bytes(await wire.reader.readexactly(2), "big")
        elif nbytes == 127:
            nbytes = int.from_bytes(await wire.reader.readexactly(8), "big")
        return Frame(first & 0x0F, await wire.reader.readexactly(nbytes), bool(first & RSV1))


async def last_frame(wire: Wire) -> Frame:
    """Return the close frame, and skip all frames before it."""
    while (frame := await next_frame(wire)).opcode != CLOSE:
        pass
    return frame
