"""WebSocket frames as a server writes them: unmasked, whole, without extensions (RFC 6455, 5.2)."""

from __future__ import annotations

import struct
from functools import partial

from app.transports.upgrade import reason_bytes

TEXT, BINARY, CLOSE, PING = 1, 2, 8, 9
_FINAL = 0x80
_HEADERS = tuple(
    tuple(bytes((_FINAL | opcode, nbytes)) for nbytes in range(126)) for opcode in range(PING + 1)
)  # fmt: skip
_MEDIUM = struct.Struct(">BBH")
_LARGE = struct.Struct(">BBQ")
_CODE = struct.Struct(">H")


def frame(opcode: int, message: bytes) -> bytes:
    """Return a message as one frame."""
    nbytes = len(message)
    if nbytes < 126:
        return _HEADERS[opcode][nbytes] + message
    if nbytes < 65_536:
        return _MEDIUM.pack(_FINAL | opcode, 126, nbytes) + message
    return _LARGE.pack(_FINAL | opcode, 127, nbytes) + message


text_frame = partial(frame, TEXT)
binary_frame = partial(frame, BINARY)


def close_frame(code: int, reason: str) -> bytes:
    """Return a close frame; a reason that is too long is cut at its end."""
    return frame(CLOSE, _CODE.pack(code) + reason_bytes(reason))
