"""WebSocket frames as they are on the wire (RFC 6455, 5.2): a client's are read, the server's are made.

A frame is read in one go, once all of it has been received: that costs a third of what a parser does that can stop at
every byte, and each message is a frame. The library `websockets` unmasks, in C, and knows what a close frame may have.
"""

from __future__ import annotations

import struct
from typing import Final

from websockets.exceptions import PayloadTooBig, ProtocolError
from websockets.frames import Close

from halley.protocols.contract import PROTOCOL_ERROR
from halley.transports.websocket import reason_bytes

try:
    from websockets.speedups import apply_mask
except ImportError:  # where it was installed without a compiler
    from websockets.utils import apply_mask

CONTINUATION: Final = 0
TEXT: Final = 1
BINARY: Final = 2
CLOSE: Final = 8
PING: Final = 9
PONG: Final = 10
"""The opcodes; those from `CLOSE` on are of control frames, which are whole."""

_CONTROL_BYTES: Final = 125
"""The most data in a control frame (RFC 6455, 5.5)."""

INVALID_DATA: Final = 1007
TOO_BIG: Final = 1009
"""Status codes of close frames, besides those of the contract."""

DEFLATED: Final = 0x40
"""The reserved bit of a message that is compressed (RFC 7692, 6), in its first frame."""

_FINAL: Final = 0x80
_RESERVED: Final = 0x70
_OPCODE: Final = 0x0F
_MASKED: Final = 0x80
_LENGTH: Final = 0x7F
_WHOLE_TEXT: Final = 0x81
_WHOLE_BINARY: Final = 0x82
_LEAST_BYTES: Final = 6
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

    With `takes_deflated` messages may be compressed: `is_deflated` is set when the first frame of such a message is
    read, and reset by what inflates it.
    """

    __slots__ = (
        "_at",
        "_data",
        "_max_bytes",
        "_message_bytes",
        "_needed_bytes",
        "_rest",
        "_takes_deflated",
        "is_deflated",
        "is_over",
    )

    def __init__(self, max_bytes: int, *, takes_deflated: bool = False) -> None:
        self.is_over = False
        self.is_deflated = False
        self._takes_deflated = takes_deflated
        self._max_bytes = max_bytes
        self._data = b""  # read from `_at` on
        self._at = 0
        self._rest = bytearray()  # received behind it, and read once it has `_needed_bytes`
        self._needed_bytes = 2
        self._message_bytes: int | None = None  # of the message in fragments, as far as read; None outside of one

    def feed(self, data: bytes) -> None:
        """Append bytes as they were received; `read` returns the frames that they complete."""
        if self.is_over:
            return
        if self._rest or self._at < len(self._data):
            self._rest += data
        else:  # as nearly always, and they are not copied
            self._data, self._at = data, 0

    def read(self) -> Frame | None:
        """Return the next frame; None until all of it has been received. Raises `BadFrame`."""
        if self._at == len(self._data):
            if len(self._rest) < self._needed_bytes:
                self._data, self._at = b"", 0
                return None
            self._data, self._at, self._rest, self._needed_bytes = bytes(self._rest), 0, bytearray(), 2
        data, at = self._data, self._at
        if len(data) < at + 2:
            return self._wait(2)
        first, second = data[at], data[at + 1]
        opcode, length = first & _OPCODE, second & _LENGTH
        if opcode > PONG or BINARY < opcode < CLOSE:
            raise self._bad("invalid opcode")
        if not second & _MASKED:
            raise self._bad("incorrect masking")
        begin = at + _LEAST_BYTES
        if length > 125:
            begin += 2 if length == 126 else 8
            if len(data) < begin - 4:
                return self._wait(begin - 4 - at)
            length = int.from_bytes(data[at + 2 : begin - 4], "big")
            if opcode >= CLOSE and length > _CONTROL_BYTES:
                raise self._bad("control frame too long")
        if opcode < CLOSE and length > self._max_bytes - (self._message_bytes or 0):
            raise self._too_big(length)
        end = begin + length
        if len(data) < end:
            return self._wait(end - at)
        message: bytes = apply_mask(data[begin:end], data[begin - 4 : begin])
        self._at = end
        if self._message_bytes is not None or first not in (_WHOLE_TEXT, _WHOLE_BINARY):
            self._check(first, opcode, message)
        return opcode, first >= _FINAL, message

    def end(self) -> None:
        """Read nothing more, and forget what was received."""
        self.is_over = True
        self._data, self._at, self._rest = b"", 0, bytearray()

    def _wait(self, needed_bytes: int) -> Frame | None:
        """Keep the beginning of a frame until that many of its bytes are there; they may be, in what was fed since."""
        self._rest = bytearray(self._data[self._at :]) + self._rest
        self._needed_bytes = needed_bytes
        self._data, self._at = b"", 0
        return self.read()

    def _check(self, first: int, opcode: int, data: bytes) -> None:
        """Check a frame that is not a whole message; `first` is its first byte."""
        if reserved := first & _RESERVED:
            begins_message = opcode in (TEXT, BINARY)
            if reserved != DEFLATED or not (self._takes_deflated and begins_message):
                raise self._bad("reserved bits must be 0")
            self.is_deflated = True
        if opcode >= CLOSE:
            self._check_control(opcode, data, is_final=first >= _FINAL)
        else:
            self._count_fragment(opcode, len(data), is_final=first >= _FINAL)

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
            self.end()

    def _check_close(self, data: bytes) -> None:
        try:
            Close.parse(data)
        except ProtocolError as error:
            raise self._bad(str(error)) from None
        except UnicodeDecodeError as error:
            raise self._bad(f"{error.reason} at position {error.start}", INVALID_DATA) from None

    def _too_big(self, length: int) -> BadFrame:
        error = PayloadTooBig(length, self._max_bytes - (self._message_bytes or 0))
        error.set_current_size(self._message_bytes)
        return self._bad(str(error), TOO_BIG)

    def _bad(self, reason: str, code: int = PROTOCOL_ERROR) -> BadFrame:
        self.end()
        return BadFrame(code, reason)


_HEADERS: Final = tuple(
    tuple(bytes((_FINAL | opcode, nbytes)) for nbytes in range(126)) for opcode in range(PONG + 1)
)  # fmt: skip
_MEDIUM: Final = struct.Struct(">BBH")
_LARGE: Final = struct.Struct(">BBQ")
_CODE: Final = struct.Struct(">H")


def frame(opcode: int, message: bytes) -> bytes:
    """Return a message as one frame, unmasked and whole."""
    nbytes = len(message)
    if nbytes < 126:
        return _HEADERS[opcode][nbytes] + message
    if nbytes < 65_536:
        return _MEDIUM.pack(_FINAL | opcode, 126, nbytes) + message
    return _LARGE.pack(_FINAL | opcode, 127, nbytes) + message


def close_frame(code: int, reason: str) -> bytes:
    """Return a close frame; a reason that is too long is cut at its end."""
    return frame(CLOSE, _CODE.pack(code) + reason_bytes(reason))
