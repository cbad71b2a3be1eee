r"""The three serializers: a message from bytes to plain values and back, and payloads between them and the broker.

A payload rests in the broker as JSON text (`payloads.py`); so what a binary serializer brings is made plain first:
bytes become WAMP's text for them (`"\u0000"` and base64, Basic Profile 3.2), integral floats where ids are due stay
floats here (`messages.py` takes them). What no other protocol could carry, such as NaN, integers beyond 64 bits, tags,
keys that are no text, is refused with the message that has it.

No tag of CBOR is followed: what they make of a few bytes (regular expressions, mails, values that contain themselves)
costs more than it is worth. And keys may be lists in both binary serializers, whose hashes anyone can make all alike:
18,000 such keys, a quarter of a megabyte, take the event loop for seconds. So where there may be many, keys must be
texts at once.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

import cbor2
import msgspec
import orjson

from app.protocols.bytes_text import NotBytes, from_text, is_for_bytes, to_text
from app.protocols.json_text import NestedTooDeeply, NotJson, count_nodes, count_values, loads

if TYPE_CHECKING:
    from collections.abc import Callable


class Undecodable(ValueError):
    """Bytes that are no message of that serializer, or one that is larger than anyone needs."""


class Unportable(ValueError):
    """A value that not every protocol and serializer can carry."""


class Bounds(Protocol):
    """What a message may become; a part of `settings.Limits`."""

    @property
    def nesting(self) -> int:
        """The levels of lists and dictionaries."""

    @property
    def nodes(self) -> int:
        """The values in all."""


class Serializer(Protocol):
    """One of them. `name` is the last part of its subprotocol's name."""

    name: str
    is_binary: bool

    def unpack(self, data: bytes, bounds: Bounds) -> Any:
        """The value that `data` stands for. Raises `Undecodable`."""

    def pack(self, value: object) -> bytes:
        """The opposite, for values of our own."""

    def to_json(self, value: object) -> bytes:
        """JSON text for a part of what was unpacked. Raises `Unportable`."""

    def from_json(self, text: bytes) -> Any:
        """What to `pack` for JSON text: bytes are bytes again where the serializer has them."""


class Json:
    """`wamp.2.json`."""

    name = "json"
    is_binary = False

    def unpack(self, data: bytes, bounds: Bounds) -> Any:
        """See `Serializer`. A number that is out of range is left for `to_json` to find."""
        try:
            value, _ = loads(data)
            if count_nodes(data, value, bounds.nesting, bounds.nodes) > bounds.nodes:
                raise Undecodable("too many values")
        except (NotJson, NestedTooDeeply) as error:
            raise Undecodable(type(error).__name__) from None
        return value

    def pack(self, value: object) -> bytes:
        """See `Serializer`."""
        return orjson.dumps(value)

    def to_json(self, value: object) -> bytes:
        """See `Serializer`."""
        try:
            return orjson.dumps(value)
        except TypeError:  # an `OutOfRange`
            raise Unportable from None

    def from_json(self, text: bytes) -> Any:
        """See `Serializer`."""
        return orjson.loads(text)


class _Binary:
    """What the two binary serializers have in common."""

    is_binary = True

    def __init__(
        self, name: str, decode: Callable[[bytes, Bounds, bool], Any], encode: Callable[[object], bytes]
    ) -> None:
        """`decode` is told whether there may be many containers."""
        self.name = name
        self._decode = decode
        self.pack = encode

    def unpack(self, data: bytes, bounds: Bounds) -> Any:
        """See `Serializer`. Small messages are not counted: no value takes less than a byte."""
        containers = len(data) - len(data.translate(None, _CONTAINERS))  # at most so many
        is_small = containers <= bounds.nesting and len(data) <= bounds.nodes
        try:
            value = self._decode(data, bounds, containers > _FEW)
            if not is_small and count_values(value, bounds.nesting) > bounds.nodes:
                raise Undecodable("too many values")
        except Exception as error:  # noqa: BLE001 - whatever a foreign decoder finds in what peers send
            raise Undecodable(type(error).__name__) from None
        return value

    def to_json(self, value: object) -> bytes:
        """See `Serializer`."""
        try:
            if _has_infinite(value):
                raise Unportable
            return orjson.dumps(value, default=_plain, option=_EVERYTHING_ELSE)
        except TypeError:  # a key that is no text, an integer beyond 64 bits, what `_plain` does not know
            raise Unportable from None

    def from_json(self, text: bytes) -> Any:
        """See `Serializer`."""
        value = orjson.loads(text)
        return _with_bytes(value) if b"\\u0000" in text else value


_FEW = 500
"""Keys of one hash that a decoder takes in a few milliseconds."""

_CONTAINERS = bytes(range(0x80, 0xE0))
"""All bytes that a list or a dictionary begins with in either serializer; no ASCII text has one."""

_CBOR_TAGS = (0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43_000, 55_799)
"""Which `cbor2` would follow."""

_TAGGED: Any = object()
"""Stands for what has a tag. Nothing can write it."""

_unpack_any = msgspec.msgpack.Decoder().decode
_split_list = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_split_dict = msgspec.msgpack.Decoder(dict[str, msgspec.Raw]).decode


def _unpack_msgpack(data: bytes, bounds: Bounds, has_many: bool) -> Any:  # noqa: FBT001 - as `_Binary` calls it
    if has_many:
        _walk_msgpack(data, bounds)
    return _unpack_any(data)


def _walk_msgpack(data: bytes, bounds: Bounds) -> None:
    """That all keys are texts, without making a single other one. Raises `Undecodable`, or what `msgspec` does."""
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


def _unpack_cbor(data: bytes, _: Bounds, has_many: bool) -> Any:  # noqa: FBT001 - likewise
    # within a list without a length, since cbor2 does not say what it leaves unread behind a value
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
"""Goes to `_plain`, which knows none of it: the dates that msgpack has."""

_UNDEFINED = 0
"""The type of msgpack's extension by which JavaScript's encoders write `undefined`."""


def is_absent(value: object) -> bool:
    """Whether a value says that there is none: null, and how binary serializers write JavaScript's undefined."""
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
    """The same with bytes where a text stands for them."""
    if isinstance(value, str):
        if not is_for_bytes(value):
            return value
        try:
            return from_text(value)
        except NotBytes:  # some text of somebody's that happens to begin so
            return value
    if isinstance(value, list):
        return [_with_bytes(each) for each in value]
    if isinstance(value, dict):
        return {key: _with_bytes(each) for key, each in value.items()}
    return value


def _has_infinite(value: object) -> bool:
    """Whether some number is infinite or none at all."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_infinite, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_infinite, value))


JSON = Json()
MSGPACK = _Binary("msgpack", _unpack_msgpack, msgspec.msgpack.Encoder().encode)
CBOR = _Binary("cbor", _unpack_cbor, cbor2.dumps)
SERIALIZERS: dict[str, Serializer] = {each.name: each for each in (JSON, MSGPACK, CBOR)}
