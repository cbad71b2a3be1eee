r"""The nine ways in which messages are written: three serializers, each plain or batched with one of two separators.

One WAMP message is one transport message; of a batched subprotocol a transport message may have several, each followed
by a separator (JSON) or preceded by its length in 32 bits (Basic Profile; `wamp.2.json.batched` and its like). The
specification's separator is 0x1e; the first implementations wrote 0x18, since Python reads their "\30" as octal. Both
are understood, and who used one gets it back.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from app.protocols.wamp.serializers import SERIALIZERS, Serializer, Undecodable

if TYPE_CHECKING:
    from collections.abc import Callable

    from app.protocols.links import Link

SUBPROTOCOLS = tuple(f"wamp.2.{name}{batched}" for name in SERIALIZERS for batched in ("", ".batched"))
"""All that are spoken."""

SEPARATOR, OLD_SEPARATOR = b"\x1e", b"\x18"
_LENGTH = struct.Struct(">I")


def serializer_of(subprotocol: str) -> Serializer:
    """Which one it names."""
    return SERIALIZERS[subprotocol.split(".")[2]]


def is_batched(subprotocol: str) -> bool:
    """Whether a transport message may have several of its messages."""
    return subprotocol.endswith(".batched")


class Format:
    """How one link's messages look on its wire.

    `frame` puts around a message (or a batch of one) what the transport needs: a WebSocket header, or nothing. Links
    with the same `key` have the same bytes for the same message, so `key` also names what `frame` does.
    """

    __slots__ = ("_frame", "_has_heard", "is_batched", "key", "kind", "separator", "serializer", "subprotocol")

    def __init__(self, subprotocol: str, frame: Callable[[bytes], bytes], kind: str = "websocket") -> None:
        """`kind` names `frame`."""
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
        """How a link's messages look."""
        return cls(link.subprotocol, link.binary if serializer_of(link.subprotocol).is_binary else link.text, link.kind)

    def answer_with(self, separator: bytes) -> None:
        """Write with the separator that the peer has used."""
        self.separator = separator
        self.key = f"{self.kind} {self.subprotocol} {separator.hex()}"

    def frame(self, message: bytes) -> bytes:
        """A serialized message as it is written."""
        if not self.is_batched:
            return self._frame(message)
        if self.serializer.is_binary:
            return self._frame(_LENGTH.pack(len(message)) + message)
        return self._frame(message + self.separator)

    def write(self, message: list[Any]) -> bytes:
        """A message as it is written."""
        return self.frame(self.serializer.pack(message))

    def split(self, data: bytes, most: int) -> list[bytes]:
        """The serialized messages of one transport message. Raises `Undecodable`, also where there are over `most`.

        The first batch of a peer tells which separator it uses.
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
            raise Undecodable("a length that is not there")
        messages.append(data[at : at + count])
        at += count
    if not messages:
        raise Undecodable("an empty batch")
    return messages
