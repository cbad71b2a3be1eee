"""The parameters of `GET /history/CHANNEL?...`, and the query of the log that they make.

Names and meanings of the filters are those of WAMP's event history: bounds follow the order of the log regardless of
the order of reading; all bounds apply together, then `reverse`, then `limit`. A wrong parameter is answered with one
fixed sentence; nothing that was sent is repeated.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

from app.broker.errors import InvalidName
from app.broker.log import USUAL_LIMIT, Query
from app.broker.policy import Identity
from app.broker.publications import LAST_PUBLICATION
from app.broker.timestamps import BOUNDS, Span, to_ns
from app.broker.topics import Pattern, narrowed
from app.protocols.bayeux.names import Bounds, to_pattern, to_topic
from app.transports.guard import Rejection

_LAST_OFFSET = 2**63 - 1
_WHOLE = re.compile(r"[0-9]{1,19}", re.ASCII)
_CURSOR = re.compile(r"(after|before)-([0-9]{1,19})", re.ASCII)
_MOST_PARAMETERS = 32
_PLAIN_IN_PATHS = "/*!~()$@"

_TIME = "an RFC 3339 time with its offset, such as 2026-07-01T12:00:00Z or 2026-07-01T14:00:00.5+02:00"
_PUBLICATION = f"the publication of an event, a whole number from 1 to {LAST_PUBLICATION}"
NONE_KNOWN = "unknown parameter; this path takes none"
EXPECTED = {
    "reverse": "true (newest first) or false",
    "limit": "a whole number of at least 1",
    **{f"{bound}_time": _TIME for bound in BOUNDS},
    "topic": "a channel without a wildcard",
    **{f"{bound}_publication": _PUBLICATION for bound in BOUNDS},
    "after_position": "a position, a whole number of at least 0",
    "before_position": "a position, a whole number of at least 1",
    "cursor": "a cursor from a next or previous link",
}
"""What each parameter expects: the second half of the response to a bad one."""

UNKNOWN = f"unknown parameter; expected one of {', '.join(name for name in EXPECTED if name != 'cursor')}"
TWICE = "duplicate parameter"
UNREADABLE = "the query is not UTF-8"
NO_CHANNEL = "expected /history/CHANNEL, where the channel may end in /* or /**"


class Cursor(NamedTuple):
    """Where a page begins: after `position`, or before it."""

    is_before: bool
    position: int


@dataclass(frozen=True, slots=True)
class Reading:
    """One parsed request.

    `after` and `before` bound the positions of all its pages together; `cursor` is where this page begins within them.
    """

    pattern: Pattern
    topic: str | None
    limit: int
    is_reverse: bool
    after: int
    before: int | None
    cursor: Cursor | None
    filters: dict[str, Any]  # as fields of `Query`

    @property
    def wanted(self) -> Pattern | None:
        """The pattern to look for in the log; None if nothing can match, as `topic` is outside `pattern`."""
        return self.pattern if self.topic is None else narrowed(self.pattern, self.topic)

    @property
    def is_backward(self) -> bool:
        """Whether the log is read from its newest events back; the order in the response can differ."""
        return self.is_reverse if self.cursor is None else self.cursor.is_before

    def query(self, wanted: Pattern, start: int, head: int, visitor: Identity, max_bytes: int) -> Query:
        """The query for one page of a log that has the offsets from `start` to `head`, as `visitor` may see it."""
        first, last = self.bounds(start, head)
        if self.cursor is not None:
            if self.cursor.is_before:
                last = min(last, self.cursor.position - 1)
            else:
                first = max(first, self.cursor.position + 1)
        return Query(
            ((wanted, 0),),
            last,
            first,
            visitor.authid,
            visitor.role,
            limit=self.limit,
            max_bytes=max_bytes,
            is_reverse=self.is_backward,
            **self.filters,
        )

    def bounds(self, start: int, head: int) -> tuple[int, int]:
        """The first and the last offset of all pages together."""
        return max(start, self.after + 1), head if self.before is None else min(head, self.before - 1)


def read(channel: str, query_string: bytes, bounds: Bounds, most: int) -> Reading:
    """Parse a request for `/history` + `channel`; `most` is the largest number of events on a page.

    Raises `Rejection`.
    """
    if len(channel) < 2:
        raise Rejection(400, NO_CHANNEL)
    try:
        pattern = to_pattern(channel, bounds)
    except InvalidName:
        raise Rejection(400, "channel: expected a Bayeux channel, or one that ends in /* or /**") from None
    given = parameters(query_string, EXPECTED, UNKNOWN)
    span = Span()
    filters: dict[str, Any] = {}
    for bound in BOUNDS:
        if (text := given.get(f"{bound}_time")) is not None:
            span.narrow(bound, _as(f"{bound}_time", to_ns, text.replace(" ", "+")))  # a plus that was not escaped
        name = f"{bound}_publication"
        if name in given:
            filters[name] = whole(given, name, 1, LAST_PUBLICATION)
    filters |= {"from_time_us": span.from_us, "until_time_us": span.until_us}
    cursor = _CURSOR.fullmatch(given["cursor"]) if "cursor" in given else None
    if "cursor" in given and cursor is None:
        raise bad("cursor")
    return Reading(
        pattern,
        _as("topic", to_topic, given["topic"], bounds) if "topic" in given else None,
        min(whole(given, "limit", 1) if "limit" in given else USUAL_LIMIT, most),
        _flag(given, "reverse"),
        whole(given, "after_position", 0) if "after_position" in given else 0,
        whole(given, "before_position", 1) if "before_position" in given else None,
        None if cursor is None else Cursor(cursor[1] == "before", min(int(cursor[2]), _LAST_OFFSET)),
        filters,
    )


def link(base: str, channel: str, query_string: bytes, cursor: str) -> str:
    """The URL of another page of the same request, which begins at `cursor`."""
    pairs = parse_qsl(query_string.decode(), keep_blank_values=True)
    pairs = [(name, value) for name, value in pairs if name != "cursor"]
    return f"{base}/history{quote(channel, safe=_PLAIN_IN_PATHS)}?{urlencode([*pairs, ('cursor', cursor)])}"


def parameters(query_string: bytes, known: dict[str, str], unknown: str) -> dict[str, str]:
    """The parameters of a query by name. Raises `Rejection` with the text `unknown` for one that is not in `known`.

    Raises `Rejection` also for a duplicate and for a query that is not UTF-8.
    """
    try:
        pairs = parse_qsl(
            query_string.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MOST_PARAMETERS
        )
    except UnicodeError:
        raise Rejection(400, UNREADABLE) from None
    except ValueError:
        raise Rejection(400, TWICE) from None  # there are fewer known parameters than were sent
    given = dict(pairs)
    if not given.keys() <= known.keys():
        raise Rejection(400, unknown)
    if len(given) != len(pairs):
        raise Rejection(400, TWICE)
    return given


def whole(given: dict[str, str], name: str, low: int, high: int = _LAST_OFFSET, expected: str = "") -> int:
    """The value of the parameter `name`, a whole number from `low` to `high`. Raises `Rejection`."""
    text = given[name]
    if not _WHOLE.fullmatch(text) or not low <= int(text) <= high:
        raise bad(name, expected)
    return int(text)


def bad(name: str, expected: str = "") -> Rejection:
    """Make the rejection of a bad parameter: its name and what was expected."""
    return Rejection(400, f"{name}: expected {expected or EXPECTED[name]}")


def _flag(given: dict[str, str], name: str) -> bool:
    text = given.get(name, "false")
    if text not in ("true", "false"):
        raise bad(name)
    return text == "true"


def _as(name: str, make: Callable[..., Any], *arguments: object) -> Any:
    try:
        return make(*arguments)
    except (ValueError, InvalidName):
        raise bad(name) from None
