"""`GET /history/CHANNEL?...`: the events of a channel or pattern, page by page, for callers that may subscribe to it.

Names and meanings of the filters are those of WAMP's event history: bounds follow the order of the log regardless of
the order of reading; all bounds apply together, then `reverse`, then `limit`.

A program's own policy and authorizers are asked as for a subscription without a session; the message's identity is that
of the request. A policy that reads the session raises then, which denies the request.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from halley.broker.errors import InvalidName
from halley.broker.events import BOUNDS, LAST_PUBLICATION, Span, to_ns
from halley.broker.names import Pattern, narrowed
from halley.broker.policy import Proof
from halley.broker.ports import USUAL_LIMIT, Page, Query, UnknownPublication
from halley.protocols.bayeux.hooks import Hooks
from halley.protocols.bayeux.names import NameLimits, to_pattern, to_topic
from halley.protocols.events.messages import render
from halley.settings import Settings
from halley.transports.api.archive import unread
from halley.transports.api.identity import reader_of
from halley.transports.api.parameters import LAST_OFFSET, bad_parameter, int_param, parameters
from halley.transports.api.responses import ApiRequest
from halley.transports.exchange import while_connected
from halley.transports.guard import Rejection
from halley.transports.head import Header, weights

UNKNOWN_PUBLICATION = "the publication is unknown or no longer in the history"
DENIED = "the server's policy does not allow reading this history"
_JSON, _LINES = b"application/json", b"application/x-ndjson"
_CURSOR = re.compile(r"(after|before)-([0-9]{1,19})", re.ASCII)
_PLAIN_IN_PATHS = "/*!~()$@"

_TIME = "an RFC 3339 time with its offset, such as 2026-07-01T12:00:00Z or 2026-07-01T14:00:00.5+02:00"
_PUBLICATION = f"the publication of an event, a whole number from 1 to {LAST_PUBLICATION}"
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

KNOWN = f"expected one of {', '.join(name for name in EXPECTED if name != 'cursor')}"
NO_CHANNEL = "expected /history/CHANNEL, where the channel may end in /* or /**"


class Links(NamedTuple):
    """The URLs of the next and the previous page; None where there is none."""

    next: str | None
    previous: str | None


class PageCursor(NamedTuple):
    """Where a page begins: after `position`, or before it."""

    is_before: bool
    position: int


@dataclass(frozen=True, slots=True)
class HistoryRequest:
    """One parsed request; `given` are its parameters as they were sent.

    `after` and `before` bound the positions of all its pages together; `cursor` is where this page begins within them.
    """

    pattern: Pattern
    topic: str | None
    limit: int
    is_reverse: bool
    after: int
    before: int | None
    cursor: PageCursor | None
    filters: dict[str, Any]  # as fields of `Query`
    given: Mapping[str, str]

    @property
    def wanted(self) -> Pattern | None:
        """The pattern to look for in the log; None if nothing can match, as `topic` is outside `pattern`."""
        return self.pattern if self.topic is None else narrowed(self.pattern, self.topic)

    @property
    def is_backward(self) -> bool:
        """Whether the log is read from its newest events back; the order in the response can differ."""
        return self.is_reverse if self.cursor is None else self.cursor.is_before

    def query(self, wanted: Pattern, start: int, head: int, caller: Proof, max_bytes: int) -> Query:
        """The query for one page of a log that has the offsets from `start` to `head`, as `caller` may see it."""
        first, last = self.range(start, head)
        if self.cursor is not None:
            if self.cursor.is_before:
                last = min(last, self.cursor.position - 1)
            else:
                first = max(first, self.cursor.position + 1)
        return Query(
            ((wanted, 0),),
            last,
            first,
            caller.authid,
            caller.role,
            limit=self.limit,
            max_bytes=max_bytes,
            is_reverse=self.is_backward,
            **self.filters,
        )

    def range(self, start: int, head: int) -> tuple[int, int]:
        """The first and the last offset of all pages together."""
        return max(start, self.after + 1), head if self.before is None else min(head, self.before - 1)


def read(channel: str, query_string: bytes, bounds: NameLimits, most: int) -> HistoryRequest:
    """Parse a request for `/history` + `channel`, for `most` events on a page at most. Raises `Rejection`."""
    if len(channel) < 2:
        raise Rejection(400, NO_CHANNEL)
    try:
        pattern = to_pattern(channel, bounds)
    except InvalidName:
        raise Rejection(400, "channel: expected a Bayeux channel, or one that ends in /* or /**") from None
    given = parameters(query_string, EXPECTED, KNOWN)
    span = Span()
    filters: dict[str, Any] = {}
    for bound in BOUNDS:
        if (text := given.get(f"{bound}_time")) is not None:
            span.narrow(bound, time_ns(f"{bound}_time", text))
        name = f"{bound}_publication"
        if name in given:
            filters[name] = int_param(given, name, EXPECTED[name], 1, LAST_PUBLICATION)
    filters |= {"from_time_us": span.from_us, "until_time_us": span.until_us}
    cursor = _CURSOR.fullmatch(given["cursor"]) if "cursor" in given else None
    if "cursor" in given and cursor is None:
        raise _bad("cursor")
    return HistoryRequest(
        pattern,
        _as("topic", to_topic, given["topic"], bounds) if "topic" in given else None,
        min(int_param(given, "limit", EXPECTED["limit"], 1) if "limit" in given else USUAL_LIMIT, most),
        _flag(given, "reverse"),
        int_param(given, "after_position", EXPECTED["after_position"], 0) if "after_position" in given else 0,
        int_param(given, "before_position", EXPECTED["before_position"], 1) if "before_position" in given else None,
        None if cursor is None else PageCursor(cursor[1] == "before", min(int(cursor[2]), LAST_OFFSET)),
        filters,
        given,
    )


def link(base: str, channel: str, given: Mapping[str, str], cursor: str) -> str:
    """The URL of another page of the same request, which begins at `cursor`."""
    pairs = [(name, value) for name, value in given.items() if name != "cursor"]
    return f"{base}/history{quote(channel, safe=_PLAIN_IN_PATHS)}?{urlencode([*pairs, ('cursor', cursor)])}"


class HistoryApi:
    """Responds to requests for `/history`."""

    def __init__(self, settings: Settings, hooks: Hooks, account_of: Callable[[str], str | None]) -> None:
        """`account_of` returns the account of an address, or None (`transports/addresses.py`)."""
        self._hooks = hooks
        self._account_of = account_of
        self._policy_s = settings.bayeux.policy_s
        self._options = settings.history
        self._bounds = NameLimits(settings.limits.topic_chars, settings.limits.topic_segments)

    async def page(self, request: ApiRequest) -> None:
        """Respond with a page of events, as JSON or as JSON lines; HEAD reads nothing.

        Raises `Rejection`, `Disconnected`.
        """
        channel = request.below
        reading = read(channel, request.head.query_string, self._bounds, self._options.page_events)
        await request.caller.authorize((reading.pattern,), self._hooks, request.head, self._policy_s, DENIED)
        has_lines = _wants_lines(request.head.headers.get("accept", ""))
        if request.head.method == "HEAD":
            await request.respond(_LINES if has_lines else _JSON, None, (b"vary", b"Accept"))
            return
        page, links = await while_connected(request.exchange, self._read(reading, request, channel))
        if has_lines:
            body = b"".join(b"%b\n" % render(event) for event in page.events)
            await request.respond(_LINES, body, *_headers(page, links))
        else:
            await request.respond(_JSON, _body(page, links), (b"vary", b"Accept"))

    async def _read(self, reading: HistoryRequest, request: ApiRequest, channel: str) -> tuple[Page, Links]:
        """Read one page in the requested order, and make the links to its neighbours. Raises `Rejection`."""
        archive, proof = request.archive, request.caller.proof
        try:
            await archive.flush()
            start, head = archive.start, archive.head
            wanted = reading.wanted
            if wanted is None:
                return Page([], head, is_end=True, gaps=[]), Links(None, None)
            query = reading.query(wanted, start, head, proof, self._options.page_bytes)
            if query.first > query.last:
                page = Page([], query.last, is_end=True, gaps=[])
            else:
                page = await archive.read(query, reader_of(request.exchange, proof.authid, self._account_of))
        except UnknownPublication:
            raise Rejection(404, UNKNOWN_PUBLICATION) from None
        except OSError as error:
            raise unread(error) from None
        first, last = reading.range(start, head)
        older = newer = None
        if reading.is_backward:
            older = None if page.is_end else f"before-{page.reached}"
            newer = f"after-{query.last}" if query.last < last else None
        else:
            newer = None if page.is_end else f"after-{page.reached}"
            older = f"before-{query.first}" if query.first > first else None
        if reading.is_backward is not reading.is_reverse:
            page.events.reverse()
        cursors = (older, newer) if reading.is_reverse else (newer, older)
        base, given = request.base_url, reading.given
        return page, Links(*(cursor and link(base, channel, given, cursor) for cursor in cursors))


def _body(page: Page, links: Links) -> bytes:
    next_page, previous = (b"null" if url is None else b'"%b"' % url.encode() for url in links)
    gaps = b',"gaps":[%b]' % b",".join(b"[%d,%d]" % gap for gap in page.gaps) if page.gaps else b""
    events = b",".join(map(render, page.events))
    return b'{"events":[%b],"next":%b,"previous":%b%b}' % (events, next_page, previous, gaps)


def _headers(page: Page, links: Links) -> list[Header]:
    """The links and gaps of a page as headers, for JSON lines, which have room for events only."""
    headers: list[Header] = [(b"vary", b"Accept")]
    related = [f'<{url}>; rel="{name}"' for name, url in zip(Links._fields, links, strict=True) if url is not None]
    if related:
        headers.append((b"link", ", ".join(related).encode()))
    if page.gaps:
        headers.append((b"halley-gaps", b", ".join(b"%d-%d" % gap for gap in page.gaps)))
    return headers


def _wants_lines(accept: str) -> bool:
    """Whether an Accept header names JSON lines, with a weight that is not below that of JSON."""
    wanted = weights(accept)
    lines = wanted.get(_LINES.decode(), 0.0)
    return lines > 0 and lines >= wanted.get(_JSON.decode(), 0.0)


def _flag(given: dict[str, str], name: str) -> bool:
    text = given.get(name, "false")
    if text not in ("true", "false"):
        raise _bad(name)
    return text == "true"


def time_ns(name: str, text: str) -> int:
    """Nanoseconds since 1970 of the parameter `name`. Raises `Rejection`."""
    moment: int = _as(name, to_ns, text.replace(" ", "+"))  # a plus that was not escaped
    return moment


def _as(name: str, make: Callable[..., Any], *arguments: object) -> Any:
    try:
        return make(*arguments)
    except (ValueError, InvalidName):
        raise _bad(name) from None


def _bad(name: str) -> Rejection:
    return bad_parameter(name, EXPECTED[name])
