"""Text messages: JSON arrays of `{"method", "params"}` (nt4.md A14 to A20, A29 to A46).

What a client sends is read into the classes below; of what is wrong only the element, or the whole array, is ignored.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import orjson

from app.protocols.json_text import NestedTooDeeply, NotJson, count_nodes, has_out_of_range, loads
from app.protocols.nt4.packets import together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

LEAST_ID, LARGEST_ID = -(2**31) + 1, 2**31 - 2
"""Of a publisher or subscription, as clients choose it."""

_KNOWN_OPTIONS = ("periodic", "all", "topicsonly", "prefix")
"""As `Options` has them, in that order."""

_T = TypeVar("_T")


class Options(NamedTuple):
    """What a subscription asks for; `others` are those that nobody knows, which meta topics show (A20)."""

    periodic_s: float = 0.1
    is_all: bool = False
    is_topics_only: bool = False
    is_prefix: bool = False
    others: dict[str, Any] = {}  # noqa: RUF012 - never written to

    def shown(self) -> dict[str, Any]:
        """As meta topics show them: those that differ from the default, and the unknown ones (A59)."""
        known = dict(zip(_KNOWN_OPTIONS, self, strict=False))
        usual = dict(zip(_KNOWN_OPTIONS, Options(), strict=False))
        return {name: value for name, value in known.items() if value != usual[name]} | self.others


class Publish(NamedTuple):
    """Begin to publish; values follow with `pubuid`."""

    name: str
    pubuid: int
    type: str
    properties: dict[str, Any]


class Unpublish(NamedTuple):
    """End it."""

    pubuid: int


class SetProperties(NamedTuple):
    """Change a topic's properties; None deletes one."""

    name: str
    update: dict[str, Any]


class Subscribe(NamedTuple):
    """Hear topics by names or prefixes; replaces what had that `subuid`."""

    topics: tuple[str, ...]
    subuid: int
    options: Options


class Unsubscribe(NamedTuple):
    """End it."""

    subuid: int


class Ignored(NamedTuple):
    """Something that is no message; `reason` is one word or two for counters."""

    reason: str


Message = Publish | Unpublish | SetProperties | Subscribe | Unsubscribe | Ignored


class _Wrong(Exception):
    """A member that is not there, or is none of its kind; its text is the reason."""


def read(text: bytes, most_nodes: int, most_levels: int) -> Iterator[Message]:
    """The messages of a text frame, one for each element, made when it is due."""
    if text.count(b"[") + text.count(b"{") + text.count(b",") > 2 * most_nodes:  # else it would be parsed first
        yield Ignored("too_many_values")
        return
    try:
        elements, may_be_out_of_range = loads(text)
        if count_nodes(text, elements, most_levels, most_nodes) > most_nodes:
            yield Ignored("too_many_values")
            return
    except NotJson:
        yield Ignored("not_json")
        return
    except NestedTooDeeply:
        yield Ignored("nested_too_deeply")
        return
    if not isinstance(elements, list):
        yield Ignored("not_an_array")
        return
    for element in elements:
        if may_be_out_of_range and has_out_of_range(element):
            yield Ignored("number_out_of_range")
        else:
            yield _message(element)


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
    """One that may be absent, but not null."""
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


def _options(found: dict[str, Any]) -> Options:
    periodic_s = found.get("periodic", Options().periodic_s)
    flags = {name: found.get(name, False) for name in ("all", "topicsonly", "prefix")}
    if type(periodic_s) not in (int, float) or not isfinite(periodic_s) or periodic_s < 0:
        raise _Wrong("bad_options")
    if not all(isinstance(flag, bool) for flag in flags.values()):
        raise _Wrong("bad_options")
    others = {name: value for name, value in found.items() if name not in _KNOWN_OPTIONS}
    return Options(float(periodic_s), flags["all"], flags["topicsonly"], flags["prefix"], others)


_METHODS: dict[str, Callable[[dict[str, Any]], Message]] = {
    "publish": _publish,
    "unpublish": lambda params: Unpublish(_ident(params, "pubuid")),
    "setproperties": _set_properties,
    "subscribe": _subscribe,
    "unsubscribe": lambda params: Unsubscribe(_ident(params, "subuid")),
}
"""What clients say; what only servers do, `announce` and so on, is as unknown as anything."""


def announce(name: str, topic_id: int, type_name: str, properties: dict[str, Any], pubuid: int | None) -> bytes:
    """A topic is there; to a publisher with its `pubuid`."""
    params = {"id": topic_id, "name": name, "type": type_name, "properties": properties}
    return _said("announce", params if pubuid is None else params | {"pubuid": pubuid})


def unannounce(name: str, topic_id: int) -> bytes:
    """It is no more."""
    return _said("unannounce", {"id": topic_id, "name": name})


def properties(name: str, update: dict[str, Any], *, ack: bool) -> bytes:
    """Its properties have changed. `ack` is always there, which the strict clients need (A46)."""
    return _said("properties", {"name": name, "update": update, "ack": ack})


def _said(method: str, params: dict[str, Any]) -> bytes:
    return orjson.dumps({"method": method, "params": params})


def packed(messages: Iterable[bytes]) -> Iterator[bytes]:
    """Messages as text frames of about `packets.MESSAGE_BYTES`, in order; each frame is an array."""
    return (b"[%b]" % b",".join(group) for group in together(messages, len(b",")))
