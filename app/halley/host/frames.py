"""WebSocket frames as they are on the wire (RFC 6455, 5.2): a client's are read, the server's are made.

A frame is read in one go, once all of it has been received: that costs a third of what a parser does that can stop at
every byte, and each message is a frame. The library `websockets` unmasks, in C, and knows what a close frame may have.
"""

from __future__ import annotations

import struct
from functools import partial

from websockets.exceptions import PayloadTooBig, ProtocolError
from websockets.frames import Close

from halley.protocols.contract import PROTOCOL_ERROR
from halley.transports.websocket import reason_bytes

try:
    from websockets.speedups import apply_mask
except ImportError:  # where it was installed without a compiler
    from websockets.utils import apply_mask

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
"""The opcodes; those from `CLOSE` on are of control frames, which are whole."""

_CONTROL_BYTES = 125
"""The most data in a control frame (RFC 6455, 5.5)."""

INVALID_DATA, TOO_BIG = 1007, 1009
"""Status codes of close frames, besides those of the contract."""

_OPCODES = frozenset({CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG})
_FINAL, _RESERVED, _OPCODE = 0x80, 0x70, 0x0F
_MASKED, _LENGTH = 0x80, 0x7F
_LEAST_BYTES = 6
"""The size of a masked frame without data."""

Frame = tuple[int, bool, bytes]
"""A frame: its opcode, whether it is the last of its message, and its data."""


class BadFrame(Exception):
    """A client violates the framing; `code` and `reason` are for the close frame that ends the connection."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class FrameReader:
    """Reads the frames of one client, of which a message may have `max_bytes` bytes in all its frames.

    Control frames may come between those of a message (RFC 6455, 5.4), and do not count towards its bytes.
    After a close frame or a `BadFrame`, nothing more is to be read: `is_over`.
    """

    __slots__ = ("_buffer", "_max_bytes", "_message_bytes", "_needed_bytes", "is_over")

    def __init__(self, max_bytes: int) -> None:
        self.is_over = False
        self._max_bytes = max_bytes
        self._buffer = bytearray()  # received and not yet read
        self._needed_bytes = 2  # to read on
        self._message_bytes: int | None = None  # of the message in fragments, as far as read; None outside of one

    def feed(self, data: bytes) -> None:
        """Append bytes as they were received; `read` returns the frames that they complete."""
        self._buffer += data

    def read(self) -> Frame | None:
        """Return the next frame; None until all of it has been received. Raises `BadFrame`."""
        buffer = self._buffer
        if len(buffer) < self._needed_bytes or self.is_over:
            return None
        first, length = buffer[0], buffer[1] & _LENGTH
        opcode = first & _OPCODE
        if opcode not in _OPCODES:
            raise self._bad("invalid opcode")
        if not buffer[1] & _MASKED:
            raise self._bad("incorrect masking")
        begin = _LEAST_BYTES
        if length > 125:
            begin += 2 if length == 126 else 8
            if len(buffer) < begin - 4:
                self._needed_bytes = begin - 4
                return None
            length = int.from_bytes(buffer[2 : begin - 4], "big")
            if opcode >= CLOSE and length > _CONTROL_BYTES:
                raise self._bad("control frame too long")
        if length > self._max_bytes - (self._message_bytes or 0) and opcode < CLOSE:
            raise self._too_big(length)
        end = begin + length
        if len(buffer) < end:
            self._needed_bytes = end
            return None
        data = apply_mask(buffer[begin:end], buffer[begin - 4 : begin])
        del buffer[:end]
        self._needed_bytes = 2
        is_final = first >= _FINAL
        if first & _RESERVED:
            raise self._bad("reserved bits must be 0")
        if opcode >= CLOSE:
            self._check_control(opcode, data, is_final=is_final)
        elif opcode == CONTINUATION or self._message_bytes is not None or not is_final:
            self._count_fragment(opcode, length, is_final=is_final)
        return opcode, is_final, data

    def _count_fragment(self, opcode: int, length: int, *, is_final: bool) -> None:
        """Check that a fragment continues a message, or begins one where none is under way."""
        so_far = self._message_bytes
        if opcode != CONTINUATION and so_far is not None:
            raise self._bad("expected a continuation frame")
        if opcode == CONTINUATION and so_far is None:
            raise self._bad("unexpected continuation frame")
        self._message_bytes = None if is_final else (so_far or 0) + length

    def _check_control(self, opcode: int, data: bytes, *, is_final: bool) -> None:
        if not is_final:
            raise self._bad("fragmented control frame")
        if opcode == CLOSE:
            self._check_close(data)
            self.is_over = True

    def _check_close(self, data: bytes) -> None:
        try:
            Close.parse(data)
        except ProtocolError as error:
            raise self._bad(str(error)) from None
        except UnicodeDecodeError as error:
            raise self._bad(f"{error.reason} at position {error.start}", INVALID_DATA) from None
        if self._message_bytes is not None:
            raise self._bad("incomplete fragmented message")

    def _too_big(self, length: int) -> BadFrame:
        error = PayloadTooBig(length, self._max_bytes - (self._message_bytes or 0))
        error.set_current_size(self._message_bytes)
        return self._bad(str(error), TOO_BIG)

    def _bad(self, reason: str, code: int = PROTOCOL_ERROR) -> BadFrame:
        self.is_over = True
        self._buffer.clear()
        return BadFrame(code, reason)


_HEADERS = tuple(
    tuple(bytes((_FINAL | opcode, nbytes)) for nbytes in range(126)) for opcode in range(PONG + 1)
)  # fmt: skip
_MEDIUM = struct.Struct(">BBH")
_LARGE = struct.Struct(">BBQ")
_CODE = struct.Struct(">H")


def frame(opcode: int, message: bytes) -> bytes:
    """Return a message as one frame, unmasked and whole."""
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
