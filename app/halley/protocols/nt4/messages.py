"""Text messages: JSON arrays of `{"method", "params"}` objects (NA14 to NA20, NA29 to NA46).

A client's messages become the classes below. A wrong element is ignored alone; where the array itself is wrong, all of
it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import isfinite
from typing import Any, NamedTuple, TypeVar

import orjson
from msgpack import Packer

from halley.protocols.json_text import NestedTooDeeply, NotJson, has_out_of_range, has_too_many, loads

MESSAGE_BYTES = 1_380
"""About the payload of one network packet: small pieces are put together into messages of that size (NA9)."""

LEAST_ID, LARGEST_ID = -(2**31) + 1, 2**31 - 2
"""The bounds of the ids that clients choose for publishers and subscriptions."""

_KNOWN_OPTIONS = ("periodic", "all", "topicsonly", "prefix")
"""The names of the first fields of `SubscribeOptions` on the wire, in the same order."""

_PACKER = Packer()

_T = TypeVar("_T")


class SubscribeOptions(NamedTuple):
    """The options of a subscription; `others` are the unknown ones, which meta topics show (NA20).

    They are kept as names and values in MessagePack, one behind the other: as objects they would take many times the
    memory, and time whenever they are shown.
    """

    periodic_s: float = 0.1
    is_all: bool = False
    is_topics_only: bool = False
    is_prefix: bool = False
    others: bytes = b""
    others_count: int = 0

    def to_msgpack(self) -> bytes:
        """Return a MessagePack map for meta topics: what differs from the default, and the unknown options (NA59)."""
        known = dict(zip(_KNOWN_OPTIONS, self, strict=False))
        usual = dict(zip(_KNOWN_OPTIONS, SubscribeOptions(), strict=False))
        unusual = {name: value for name, value in known.items() if value != usual[name]}
        header: bytes = _PACKER.pack_map_header(len(unusual) + self.others_count)
        return header + _members(unusual) + self.others


class Publish(NamedTuple):
    """A request to publish a topic; the values follow with `pubuid`."""

    name: str
    pubuid: int
    type: str
    properties: dict[str, Any]


class Unpublish(NamedTuple):
    """A request to end the publisher with `pubuid`."""

    pubuid: int


class SetProperties(NamedTuple):
    """A request to change a topic's properties; the value None deletes a property."""

    name: str
    update: dict[str, Any]


class Subscribe(NamedTuple):
    """A request to subscribe to topics by names or prefixes; it replaces a subscription with the same `subuid`."""

    topics: tuple[str, ...]
    subuid: int
    options: SubscribeOptions


class Unsubscribe(NamedTuple):
    """A request to end the subscription with `subuid`."""

    subuid: int


class Ignored(NamedTuple):
    """An element that is not a valid message; `reason` is a label for counters."""

    reason: str


Message = Publish | Unpublish | SetProperties | Subscribe | Unsubscribe | Ignored


class _Wrong(Exception):
    """A member that is missing or of the wrong type; the text is the reason for `Ignored`."""


def read(text: bytes, max_nodes: int, max_levels: int) -> Iterator[Message]:
    """Yield the messages of a text frame, one for each element, each made when it is asked for.

    A frame with more than `max_nodes` values or `max_levels` levels is ignored as a whole.
    """
    elements, may_be_out_of_range = _parse(text, max_nodes, max_levels)
    if isinstance(elements, Ignored):
        yield elements
        return
    for element in elements:
        if may_be_out_of_range and has_out_of_range(element):
            yield Ignored("number_out_of_range")
        else:
            yield _message(element)


def _parse(text: bytes, max_nodes: int, max_levels: int) -> tuple[list[Any] | Ignored, bool]:
    """The elements of a text frame, or why it is ignored, and whether a number may be out of range."""
    if text.count(b"[") + text.count(b"{") + text.count(b",") > 2 * max_nodes:  # checked before the costly parsing
        return Ignored("too_many_values"), False
    try:
        elements, may_be_out_of_range = loads(text)
        if has_too_many(text, elements, max_levels, max_nodes):
            return Ignored("too_many_values"), False
    except NotJson:
        return Ignored("not_json"), False
    except NestedTooDeeply:
        return Ignored("nested_too_deeply"), False
    if not isinstance(elements, list):
        return Ignored("not_an_array"), False
    return elements, may_be_out_of_range


def _message(element: object) -> Message:
    try:
        if not isinstance(element, dict):
            raise _Wrong("not_an_object")
        read_params = _METHODS.get(_member(element, "method", str))
        if read_params is None:
            raise _Wrong("unknown_method")
        return read_params(_member(element, "params", dict))
    except _Wrong as wrong:
        return Ignored(str(wrong))


def _member(members: dict[str, Any], name: str, kind: type[_T]) -> _T:
    value = members.get(name)
    if not isinstance(value, kind):
        raise _Wrong(f"bad_{name}")
    return value


def _ident(members: dict[str, Any], name: str) -> int:
    value = members.get(name)
    if type(value) is not int or not LEAST_ID <= value <= LARGEST_ID:
        raise _Wrong(f"bad_{name}")
    return value


def _object(members: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a member that must be an object and may be absent, but not null."""
    return _member(members, name, dict) if name in members else {}


def _publish(params: dict[str, Any]) -> Message:
    return Publish(
        _member(params, "name", str),
        _ident(params, "pubuid"),
        _member(params, "type", str),
        _object(params, "properties"),
    )


def _set_properties(params: dict[str, Any]) -> Message:
    return SetProperties(_member(params, "name", str), _member(params, "update", dict))


def _subscribe(params: dict[str, Any]) -> Message:
    topics = _member(params, "topics", list)
    if not all(isinstance(topic, str) for topic in topics):
        raise _Wrong("bad_topics")
    return Subscribe(tuple(topics), _ident(params, "subuid"), _options(_object(params, "options")))


def _options(found: dict[str, Any]) -> SubscribeOptions:
    periodic_s = found.get("periodic", SubscribeOptions().periodic_s)
    flags = {name: found.get(name, False) for name in ("all", "topicsonly", "prefix")}
    if type(periodic_s) not in (int, float) or not isfinite(periodic_s) or periodic_s < 0:
        raise _Wrong("bad_options")
    if not all(isinstance(flag, bool) for flag in flags.values()):
        raise _Wrong("bad_options")
    others = {name: value for name, value in found.items() if name not in _KNOWN_OPTIONS}
    known = (float(periodic_s), flags["all"], flags["topicsonly"], flags["prefix"])
    return SubscribeOptions(*known, _members(others), len(others))


def _members(members: dict[str, Any]) -> bytes:
    return b"".join(_PACKER.pack(part) for member in members.items() for part in member)


_METHODS: dict[str, Callable[[dict[str, Any]], Message]] = {
    "publish": _publish,
    "unpublish": lambda params: Unpublish(_ident(params, "pubuid")),
    "setproperties": _set_properties,
    "subscribe": _subscribe,
    "unsubscribe": lambda params: Unsubscribe(_ident(params, "subuid")),
}
"""The methods of clients; those of servers, such as `announce`, count as unknown."""


def announce(name: str, topic_id: int, type_name: str, properties: dict[str, Any], pubuid: int | None) -> bytes:
    """Return the message that announces a topic; the message for a publisher has its `pubuid`."""
    params = {"id": topic_id, "name": name, "type": type_name, "properties": properties}
    return _encoded("announce", params if pubuid is None else params | {"pubuid": pubuid})


def unannounce(name: str, topic_id: int) -> bytes:
    """Return the message that a topic was deleted."""
    return _encoded("unannounce", {"id": topic_id, "name": name})


def properties(name: str, update: dict[str, Any], *, ack: bool) -> bytes:
    """Return the message that a topic's properties have changed.

    `ack` is true for the client that changed them; it is always sent, since strict clients require it (NA46).
    """
    return _encoded("properties", {"name": name, "update": update, "ack": ack})


def _encoded(method: str, params: dict[str, Any]) -> bytes:
    return orjson.dumps({"method": method, "params": params})


def packed(messages: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the payloads of text frames of about `MESSAGE_BYTES`, each an array of messages, in order."""
    for group in together(messages, len(b",")):
        yield b"[%b]" % b",".join(group)


def together(pieces: Iterable[bytes], between_bytes: int) -> Iterator[list[bytes]]:
    """Yield groups of pieces, in order, each of at most `MESSAGE_BYTES`; a larger piece is a group by itself.

    `between_bytes` is added for each piece, for its separator.
    """
    group: list[bytes] = []
    size = 0
    for piece in pieces:
        size += len(piece) + between_bytes
        if size > MESSAGE_BYTES and group:
            yield group
            group, size = [], len(piece) + between_bytes
        group.append(piece)
    if group:
        yield group
