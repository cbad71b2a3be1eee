r"""Messages as bytes: the three serializers, and the formats of transport messages.

The broker keeps payloads as JSON text (`events.py`), so values from a binary serializer are converted: bytes become
WAMP's string for them (`"\u0000"` and base64, Basic Profile 3.2). Integral floats in the place of ids stay floats here;
`messages.py` accepts them. A message with a value that other protocols cannot carry (NaN, integers beyond 64 bits,
tags, keys that are not strings) is refused.

No CBOR tag is decoded: the objects that a few tagged bytes become (regular expressions, mails, values that contain
themselves) cost more than they are worth. In both binary serializers keys may be lists, and an attacker can make the
hashes of lists equal: 18,000 such keys, a quarter of a megabyte, block the event loop for seconds. So messages that may
have many keys are decoded in a way that accepts only strings as keys.

One WAMP message is one transport message. With a batched subprotocol such as `wamp.2.json.batched` a transport message
may have several, each followed by a separator (JSON) or preceded by its length in 32 bits (Basic Profile). The
specification's separator is 0x1e; the first implementations wrote 0x18, since Python reads their "\30" as octal. Both
are accepted, and a peer gets back the one that it used.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any, Protocol

import cbor2
import msgspec
import orjson

from halley.protocols.bytes_text import NotBytes, from_text, is_for_bytes, to_text
from halley.protocols.contract import Link
from halley.protocols.json_text import NestedTooDeeply, NotJson, count_values, has_too_many, loads
from halley.protocols.wamp.errors import Undecodable, Unportable


class DecodingLimits(Protocol):
    """The limits on a decoded message; a part of `settings.Limits`."""

    @property
    def nesting(self) -> int:
        """The most levels of lists and dictionaries."""

    @property
    def nodes(self) -> int:
        """The most values in one message, its lists and dictionaries included."""


class Serializer(Protocol):
    """A serializer; `name` is its part of the subprotocol's name, such as `json` in `wamp.2.json`."""

    name: str
    is_binary: bool

    def unpack(self, data: bytes, bounds: DecodingLimits) -> Any:
        """Decode a message to plain values. Raises `Undecodable`, also for a message beyond the bounds."""

    def pack(self, value: object) -> bytes:
        """Encode a message of the router."""

    def to_json(self, value: object) -> bytes:
        """Return JSON text for a part of an unpacked message. Raises `Unportable`."""

    def from_json(self, text: bytes) -> Any:
        """Return the value to `pack` for JSON text; a binary serializer turns WAMP's strings for bytes into bytes."""


class Json:
    """The JSON serializer, for `wamp.2.json`."""

    name = "json"
    is_binary = False

    def unpack(self, data: bytes, bounds: DecodingLimits) -> Any:
        """Decode a JSON message (`Serializer.unpack`); numbers out of range are refused later, by `to_json`."""
        try:
            value, _ = loads(data)
            if has_too_many(data, value, bounds.nesting, bounds.nodes):
                raise Undecodable("too many values")
        except (NotJson, NestedTooDeeply) as error:
            raise Undecodable(type(error).__name__) from None
        return value

    def pack(self, value: object) -> bytes:
        """Encode a message as JSON (`Serializer.pack`)."""
        return orjson.dumps(value)

    def to_json(self, value: object) -> bytes:
        """Return JSON text for an unpacked value (`Serializer.to_json`). Raises `Unportable`."""
        try:
            return orjson.dumps(value)
        except TypeError:  # an `OutOfRange`
            raise Unportable from None

    def from_json(self, text: bytes) -> Any:
        """Return the value of JSON text (`Serializer.from_json`)."""
        return orjson.loads(text)


class _Binary:
    """A binary serializer: MessagePack or CBOR."""

    is_binary = True

    def __init__(
        self, name: str, decode: Callable[[bytes, DecodingLimits, bool], Any], encode: Callable[[object], bytes]
    ) -> None:
        """Create a serializer; the third argument of `decode` says whether there may be many containers."""
        self.name = name
        self._decode = decode
        self.pack = encode

    def unpack(self, data: bytes, bounds: DecodingLimits) -> Any:
        """Decode a binary message (`Serializer.unpack`).

        The values in small messages are not counted: each takes at least one byte.
        """
        containers = len(data) - len(data.translate(None, _CONTAINERS))  # an upper bound
        is_small = containers <= bounds.nesting and len(data) <= bounds.nodes
        try:
            value = self._decode(data, bounds, containers > _FEW)
            if not is_small and count_values(value, bounds.nesting) > bounds.nodes:
                raise Undecodable("too many values")
        except Exception as error:  # noqa: BLE001 - a third-party decoder may raise anything on a peer's bytes
            raise Undecodable(type(error).__name__) from None
        return value

    def to_json(self, value: object) -> bytes:
        """Return JSON text for an unpacked value (`Serializer.to_json`). Raises `Unportable`."""
        try:
            if _has_infinite(value):
                raise Unportable
            return orjson.dumps(value, default=_plain, option=_EVERYTHING_ELSE)
        except TypeError:  # a key that is not a string, an integer beyond 64 bits, a type that `_plain` refuses
            raise Unportable from None

    def from_json(self, text: bytes) -> Any:
        """Return the value of JSON text, with bytes (`Serializer.from_json`)."""
        value = orjson.loads(text)
        return _with_bytes(value) if b"\\u0000" in text else value


_FEW = 500
"""The number of keys with equal hashes that a decoder handles in a few milliseconds."""

_CONTAINERS = bytes(range(0x80, 0xE0))
"""All bytes that a list or a dictionary begins with in either serializer; ASCII text has none of them."""

_CBOR_TAGS = (0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43_000, 55_799)
"""The tags that `cbor2` would decode."""

_TAGGED: Any = object()
"""The placeholder for a tagged value, which no serializer can write."""

_unpack_any = msgspec.msgpack.Decoder().decode
_split_list = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_split_dict = msgspec.msgpack.Decoder(dict[str, msgspec.Raw]).decode


def _unpack_msgpack(data: bytes, bounds: DecodingLimits, has_many: bool) -> Any:  # noqa: FBT001 - as `_Binary` calls it
    if has_many:
        _walk_msgpack(data, bounds)
    return _unpack_any(data)


def _walk_msgpack(data: bytes, bounds: DecodingLimits) -> None:
    """Check that all keys are strings, without decoding any other key.

    Raises `Undecodable`, `NestedTooDeeply`, or an error of `msgspec`.
    """
    level: list[Any] = [data]
    nodes = 0
    for _ in range(bounds.nesting + 1):
        deeper: list[Any] = []
        for each in level:
            first = memoryview(each)[0]
            if 0x80 <= first <= 0x8F or first in (0xDE, 0xDF):
                deeper.extend(_split_dict(each).values())
            elif 0x90 <= first <= 0x9F or first in (0xDC, 0xDD):
                deeper.extend(_split_list(each))
        nodes += len(deeper)
        if nodes > bounds.nodes:
            raise Undecodable("too many values")
        level = deeper
        if not level:
            return
    raise NestedTooDeeply


def _unpack_cbor(data: bytes, _: DecodingLimits, has_many: bool) -> Any:  # noqa: FBT001 - as `_Binary` calls it
    # Wrapped in a list of indefinite length, since cbor2 does not report unread bytes after a value.
    values = cbor2.loads(
        b"\x9f" + data + b"\xff", semantic_decoders=_CBOR_DECODERS, tag_hook=_tagged, strict_hashable_types=has_many
    )
    if len(values) != 1:
        raise Undecodable("not one value")
    return values[0]


def _tagged(_: object, is_key: bool) -> Any:  # noqa: FBT001 - as cbor2 calls it
    if is_key:
        raise Undecodable("a tag in a key")
    return _TAGGED


_CBOR_DECODERS = dict.fromkeys(_CBOR_TAGS, _tagged)

_EVERYTHING_ELSE = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_SUBCLASS
"""Options by which all other types go to `_plain`, which refuses them: the timestamps of MessagePack, for example."""

_UNDEFINED = 0
"""The type of the MessagePack extension by which JavaScript encoders write `undefined`."""


def is_absent(value: object) -> bool:
    """Return whether a value counts as absent: null, or JavaScript's `undefined` in a binary serializer."""
    return (
        value is None
        or value is cbor2.undefined
        or (isinstance(value, msgspec.msgpack.Ext) and value.code == _UNDEFINED)
    )


def _plain(value: object) -> str | None:
    if isinstance(value, bytes):
        return to_text(value)
    if is_absent(value):
        return None
    raise TypeError(type(value).__name__)


def _with_bytes(value: object) -> object:
    """Return the value with bytes in place of WAMP's strings for bytes."""
    if isinstance(value, str):
        if not is_for_bytes(value):
            return value
        try:
            return from_text(value)
        except NotBytes:  # an ordinary string that happens to begin like one for bytes
            return value
    if isinstance(value, list):
        return [_with_bytes(each) for each in value]
    if isinstance(value, dict):
        return {key: _with_bytes(each) for key, each in value.items()}
    return value


def _has_infinite(value: object) -> bool:
    """Return whether the value contains an infinity or a NaN."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_infinite, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_infinite, value))


JSON = Json()
MSGPACK = _Binary("msgpack", _unpack_msgpack, msgspec.msgpack.Encoder().encode)
CBOR = _Binary("cbor", _unpack_cbor, cbor2.dumps)
SERIALIZERS: dict[str, Serializer] = {each.name: each for each in (JSON, MSGPACK, CBOR)}

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

    __slots__ = ("_frame", "_is_separator_known", "is_batched", "key", "kind", "separator", "serializer", "subprotocol")

    def __init__(self, subprotocol: str, frame: Callable[[bytes], bytes], kind: str = "websocket") -> None:
        """Create the format of a subprotocol; `kind` is the name of the framing that `frame` does."""
        self.subprotocol = subprotocol
        self.serializer = serializer_of(subprotocol)
        self.is_batched = is_batched(subprotocol)
        self.separator = SEPARATOR
        self._is_separator_known = False
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
        packed = self.serializer.pack(message)
        return self.frame(packed) if self.is_batched else self._frame(packed)

    def split(self, data: bytes, max_messages: int) -> list[bytes]:
        """Return the serialized messages of one transport message.

        Raises `Undecodable`, also for more than `max_messages`. The first batch of a peer decides which separator it is
        answered with.
        """
        if not self.is_batched:
            return [data]
        return _by_length(data, max_messages) if self.serializer.is_binary else self._by_separator(data, max_messages)

    def _by_separator(self, data: bytes, max_messages: int) -> list[bytes]:
        used = data[-1:]
        if used not in (SEPARATOR, OLD_SEPARATOR):
            raise Undecodable("a batch of JSON must end with a separator")
        if data.count(used) > max_messages:
            raise Undecodable("too many messages")
        messages = data[:-1].split(used)
        if not all(messages):
            raise Undecodable("an empty message")
        if not self._is_separator_known:
            self._is_separator_known = True
            self.answer_with(used)
        return messages


def _by_length(data: bytes, max_messages: int) -> list[bytes]:
    messages: list[bytes] = []
    at = 0
    while at < len(data):
        if len(messages) == max_messages:
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
