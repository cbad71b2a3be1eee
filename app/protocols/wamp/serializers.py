r"""The three serializers: a message from bytes to plain values and back, and payloads between them and the broker.

A payload rests in the broker as JSON text (`payloads.py`); so what a binary serializer brings is made plain first:
bytes become WAMP's text for them (`"\u0000"` and base64, Basic Profile 3.2), integral floats where ids are due stay
floats here (`messages.py` takes them). What no other protocol could carry, such as NaN, integers beyond 64 bits, tags,
keys that are no text, is refused with the message that has it.
"""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from typing import TYPE_CHECKING, Any, Protocol

import cbor2
import msgspec
import orjson

from app.protocols.json_text import NestedTooDeeply, NotJson, count_nodes, loads

if TYPE_CHECKING:
    from collections.abc import Callable

_BYTES_MARK = "\0"


class Undecodable(ValueError):
    """Bytes that are no message of that serializer, or one that is larger than anyone needs."""


class Unportable(ValueError):
    """A value that not every protocol and serializer can carry."""


class Bounds(Protocol):
    """What a message may become; a part of `settings.Limits`."""

    nesting: int
    nodes: int


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

    def __init__(self, name: str, decode: Callable[[bytes], Any], encode: Callable[[object], bytes]) -> None:
        self.name = name
        self._decode = decode
        self.pack = encode

    def unpack(self, data: bytes, bounds: Bounds) -> Any:
        """See `Serializer`."""
        try:
            value = self._decode(data)
        except Exception as error:  # noqa: BLE001 - whatever a foreign decoder finds in what peers send
            raise Undecodable(type(error).__name__) from None
        _measure(value, bounds)
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


_EVERYTHING_ELSE = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_SUBCLASS
"""Goes to `_plain`, which knows none of it: dates and the like that CBOR's tags stand for."""

_UNDEFINED = 0
"""The type of msgpack's extension by which JavaScript's encoders write `undefined`."""


def is_absent(value: object) -> bool:
    """Whether a value says that there is none: null, and how binary serializers write JavaScript's undefined."""
    return value is None or value is cbor2.undefined or (isinstance(value, msgspec.msgpack.Ext) and value.code == 0)


def _plain(value: object) -> str | None:
    if isinstance(value, bytes):
        return _BYTES_MARK + b64encode(value).decode()
    if is_absent(value):
        return None
    raise TypeError(type(value).__name__)


def _with_bytes(value: object) -> object:
    """The same with bytes where a text stands for them."""
    if isinstance(value, str):
        if value[:1] != _BYTES_MARK:
            return value
        try:
            return b64decode(value[1:], validate=True)
        except (NotBase64, ValueError):  # some text of somebody's that happens to begin so
            return value
    if isinstance(value, list):
        return [_with_bytes(each) for each in value]
    if isinstance(value, dict):
        return {key: _with_bytes(each) for key, each in value.items()}
    return value


def _measure(value: object, bounds: Bounds) -> None:
    """That there are not too many values nor levels, however often one of them is referred to. Raises `Undecodable`."""
    nodes = 1
    level = [value]
    for _ in range(bounds.nesting + 1):
        deeper: list[object] = []
        for each in level:
            if isinstance(each, dict):
                deeper.extend(each.values())
            elif isinstance(each, list | tuple):
                deeper.extend(each)
            if nodes + len(deeper) > bounds.nodes:
                raise Undecodable("too many values")
        if not deeper:
            return
        nodes += len(deeper)
        level = [each for each in deeper if isinstance(each, dict | list | tuple)]
    raise Undecodable("nested too deeply")


def _has_infinite(value: object) -> bool:
    """Whether some number is infinite or none at all."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_infinite, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_infinite, value))


JSON = Json()
MSGPACK = _Binary("msgpack", msgspec.msgpack.Decoder().decode, msgspec.msgpack.Encoder().encode)
CBOR = _Binary("cbor", cbor2.loads, cbor2.dumps)
SERIALIZERS: dict[str, Serializer] = {each.name: each for each in (JSON, MSGPACK, CBOR)}
