r"""The formats of WAMP messages on the wire: three serializers, each plain or batched, with two separators for JSON.

One WAMP message is one transport message. With a batched subprotocol such as `wamp.2.json.batched` a transport message
may have several, each followed by a separator (JSON) or preceded by its length in 32 bits (Basic Profile). The
specification's separator is 0x1e; the first implementations wrote 0x18, since Python reads their "\30" as octal. Both
are accepted, and a peer gets back the one that it used.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from app.protocols.contract import Link
from app.protocols.wamp.serializers import SERIALIZERS, Serializer, Undecodable

SUBPROTOCOLS = tuple(f"wamp.2.{name}{batched}" for name in SERIALIZERS for batched in ("", ".batched"))
"""The WebSocket subprotocols that the router speaks."""

SEPARATOR, OLD_SEPARATOR = b"\x1e", b"\x18"
_LENGTH = struct.Struct(">I")


def serializer_of(subprotocol: str) -> Serializer:
    """Return the serializer that a subprotocol names."""
    return SERIALIZERS[subprotocol.split(".")[2]]


def is_batched(subprotocol: str) -> bool:
    """Return whether a transport message may have several messages with this subprotocol."""
    return subprotocol.endswith(".batched")


class Format:
    """The format of one link's messages on the wire.

    The argument `frame` adds the transport's framing to a message or a batch of one: a WebSocket header, or nothing.
    Links with the same `key` have the same bytes for the same message, so `key` also names that framing.
    """

    __slots__ = ("_frame", "_has_heard", "is_batched", "key", "kind", "separator", "serializer", "subprotocol")

    def __init__(self, subprotocol: str, frame: Callable[[bytes], bytes], kind: str = "websocket") -> None:
        """Create the format of a subprotocol; `kind` is the name of the framing that `frame` does."""
        self.subprotocol = subprotocol
        self.serializer = serializer_of(subprotocol)
        self.is_batched = is_batched(subprotocol)
        self.separator = SEPARATOR
        self._has_heard = False
        self._frame = frame
        self.kind = kind
        self.key = f"{kind} {subprotocol}"

    @classmethod
    def of(cls, link: Link) -> Format:
        """Return the format of a link's messages."""
        return cls(link.subprotocol, link.binary if serializer_of(link.subprotocol).is_binary else link.text, link.kind)

    def answer_with(self, separator: bytes) -> None:
        """Use the separator that the peer has used for everything that is written from now on."""
        self.separator = separator
        self.key = f"{self.kind} {self.subprotocol} {separator.hex()}"

    def frame(self, message: bytes) -> bytes:
        """Return the bytes to write for a serialized message."""
        if not self.is_batched:
            return self._frame(message)
        if self.serializer.is_binary:
            return self._frame(_LENGTH.pack(len(message)) + message)
        return self._frame(message + self.separator)

    def write(self, message: list[Any]) -> bytes:
        """Serialize a message and return the bytes to write."""
        return self.frame(self.serializer.pack(message))

    def split(self, data: bytes, most: int) -> list[bytes]:
        """Return the serialized messages of one transport message.

        Raises `Undecodable`, also for more than `most` messages. The first batch of a peer decides which separator it
        is answered with.
        """
        if not self.is_batched:
            return [data]
        return _by_length(data, most) if self.serializer.is_binary else self._by_separator(data, most)

    def _by_separator(self, data: bytes, most: int) -> list[bytes]:
        used = data[-1:]
        if used not in (SEPARATOR, OLD_SEPARATOR):
            raise Undecodable("a batch of JSON must end with a separator")
        if data.count(used) > most:
            raise Undecodable("too many messages")
        messages = data[:-1].split(used)
        if not all(messages):
            raise Undecodable("an empty message")
        if not self._has_heard:
            self._has_heard = True
            self.answer_with(used)
        return messages


def _by_length(data: bytes, most: int) -> list[bytes]:
    messages: list[bytes] = []
    at = 0
    while at < len(data):
        if len(messages) == most:
            raise Undecodable("too many messages")
        if len(data) - at < _LENGTH.size:
            raise Undecodable("a truncated length")
        (count,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if not 0 < count <= len(data) - at:
            raise Undecodable("a length of 0 or beyond the end")
        messages.append(data[at : at + count])
        at += count
    if not messages:
        raise Undecodable("an empty batch")
    return messages
