"""Compressed WebSocket messages (RFC 7692, `permessage-deflate`): how they are agreed on, made and read.

No window is kept between messages (7.1.1, `no_context_takeover`), in either direction. So an idle connection has no
memory for it, a message that has been compressed once is right for all peers, and what one message contains cannot be
guessed from the size of another.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

from websockets.exceptions import InvalidHeader, NegotiationError
from websockets.extensions.permessage_deflate import ServerPerMessageDeflateFactory
from websockets.headers import build_extension, parse_extension

from halley.host.frames import DEFLATED, INVALID_DATA, TOO_BIG, BadFrame, frame
from halley.transports.guard import Rejection
from halley.transports.head import Header

LEAST_BYTES: Final = 256
"""Smaller messages are sent as they are: compressed, they would save less than the time of it is worth."""

_LEVEL: Final = 1
"""Of zlib; 6 takes three times as long for a twelfth less."""

_SECRET: Final = b'"clientId"'
"""Who can guess at a secret in a message that also has text of others sees by its size whether it was right (BREACH).
Bayeux' secrets are client ids; in the other protocols no message has both."""

_FLUSHED: Final = b"\x00\x00\xff\xff"
"""The end of compressed data, which is not sent (7.2.1)."""

_END: Final = b"\x01\x00\x00\xff\xff"
"""A last and empty block of deflate data: if the data before it was cut off, it is not read as that."""

_factory = ServerPerMessageDeflateFactory(server_no_context_takeover=True, client_no_context_takeover=True)


def agree(headers: Sequence[Header]) -> str:
    """Return the extension to accept, with its parameters, of those that a client offers; empty if there is none.

    An offer that limits the server's window is declined, since a frame is for all peers. Raises `Rejection` (400) for
    offers that are malformed (RFC 6455, 9.1).
    """
    offers = b", ".join(value for name, value in headers if name == b"sec-websocket-extensions").decode("latin-1")
    try:
        found = parse_extension(offers) if offers.strip() else []
    except InvalidHeader:
        raise Rejection(400, "bad Sec-WebSocket-Extensions") from None
    for name, offered in found:
        if name == _factory.name:
            try:
                parameters, extension = _factory.process_request_params(offered, [])
            except NegotiationError:  # a parameter is unknown, bad or there twice; the next offer may be another
                continue
            if extension.local_max_window_bits == zlib.MAX_WBITS:
                return build_extension([(name, parameters)])
    return ""


def frame_of(opcode: int, message: bytes) -> bytes:
    """Return a message as one frame: compressed if it is large enough, has no secret, and becomes smaller by it."""
    if len(message) >= LEAST_BYTES and _SECRET not in message:
        compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        deflated = (compressor.compress(message) + compressor.flush(zlib.Z_SYNC_FLUSH))[: -len(_FLUSHED)]
        if len(deflated) < len(message):
            whole = frame(opcode, deflated)
            return bytes((whole[0] | DEFLATED,)) + whole[1:]
    return frame(opcode, message)


def inflate(data: bytes, max_bytes: int) -> bytes:
    """Return the message in compressed data, of which only `max_bytes` and one more are inflated. Raises `BadFrame`."""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        message = inflater.decompress(data, max_bytes + 1)
        if len(message) > max_bytes:
            raise BadFrame(TOO_BIG, f"over size limit (> {max_bytes} bytes when inflated)")
        more = inflater.decompress(_FLUSHED + _END)
    except zlib.error:
        raise BadFrame(INVALID_DATA, "not deflate data") from None
    # What is cut off in a block can go on with these bytes, as if they were of the message. A peer may end its data
    # with a last block of its own, and an empty one behind that (7.2.3.4).
    if more or not inflater.eof or inflater.unused_data not in (b"", b"\x00" + _FLUSHED + _END):
        raise BadFrame(INVALID_DATA, "deflate data cut off")
    return message
