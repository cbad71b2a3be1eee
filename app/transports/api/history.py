"""`GET /history/CHANNEL`: the events of a channel or pattern, page by page, for callers that may subscribe to it.

This module writes the responses; `history_query.py` reads the parameters.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from app.broker.events import Event
from app.broker.log import Page, UnknownPublication
from app.broker.policy import Identity
from app.broker.timestamps import to_text
from app.broker.values import shown
from app.protocols.bayeux.hooks import Hooks
from app.protocols.bayeux.names import Bounds, to_channel
from app.settings import Settings
from app.transports.api.archive import Archive
from app.transports.api.history_query import Reading, link, read
from app.transports.api.history_rights import may_read
from app.transports.api.rights import Visitors
from app.transports.door import RETRY_AFTER, Door, Header, Visit
from app.transports.guard import Rejection
from app.transports.paths import route_path

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


PATH = "/history"
UNKNOWN_PUBLICATION = "the publication is unknown or no longer in the history"
BUSY = "reading the history took too long; try again later"
_JSON, _LINES = b"application/json", b"application/x-ndjson"
_QUALITY = re.compile(r";\s*q=([0-9.]{1,5})")


class Links(NamedTuple):
    """The URLs of the next and the previous page; None where there is none."""

    next: str | None
    previous: str | None


class HistoryApi:
    """The ASGI application of `/history`; `archive` returns the log, or raises `Rejection` where the history is off."""

    def __init__(
        self,
        settings: Settings,
        door: Door,
        visitors: Visitors,
        archive: Callable[[], Archive],
        hooks: Hooks,
    ) -> None:
        self._door = door
        self._visitors = visitors
        self._archive = archive
        self._hooks = hooks
        self._policy_s = settings.bayeux.policy_s
        self._options = settings.history
        self._bounds = Bounds(settings.limits.topic_chars, settings.limits.topic_segments)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._door.let_in(("GET", "HEAD"), self._serve, scope, receive, send)

    async def _serve(self, visit: Visit) -> None:
        archive = self._archive()
        visitor = self._visitors.identify(visit.head)
        channel = route_path(visit.scope).removeprefix(PATH)
        reading = read(channel, visit.head.query_string, self._bounds, self._options.page_events)
        self._visitors.demand("subscribe", reading.pattern, visitor)
        await may_read(self._hooks, reading.pattern, visit.head, self._policy_s)
        page, links = await self._page(archive, reading, visitor, visit, channel)
        if _wants_lines(visit.head.fields.get(b"accept", b"").decode("latin-1")):
            await visit.answer(
                _LINES, b"".join(b"%b\n" % render(event) for event in page.events), *_headers(page, links)
            )
        else:
            await visit.answer(_JSON, _body(page, links), (b"vary", b"Accept"))

    async def _page(
        self, archive: Archive, reading: Reading, visitor: Identity, visit: Visit, channel: str
    ) -> tuple[Page, Links]:
        """Read one page in the requested order, and make the links to its neighbours. Raises `Rejection`."""
        try:
            await archive.settle()
            start, head = archive.start, archive.head
            wanted = reading.wanted
            if wanted is None:
                return Page([], head, is_end=True, gaps=[]), Links(None, None)
            query = reading.query(wanted, start, head, visitor, self._options.page_bytes)
            if query.first > query.last:
                page = Page([], query.last, is_end=True, gaps=[])
            else:
                page = await archive.read(query)
        except UnknownPublication:
            raise Rejection(404, UNKNOWN_PUBLICATION) from None
        except TimeoutError:
            raise Rejection(503, BUSY, headers=(RETRY_AFTER,)) from None
        first, last = reading.bounds(start, head)
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
        query_string = visit.head.query_string
        return page, Links(*(cursor and link(visit.base, channel, query_string, cursor) for cursor in cursors))


def render(event: Event) -> bytes:
    """An event as a JSON object with its channel, data, position, time, publication and protocol."""
    return b'{"channel":"%b","data":%b,"position":%d,"time":"%b","publication":%d,"protocol":"%b"%b}' % (
        to_channel(event.topic).encode(),  # nothing in it needs escaping
        event.payload,
        event.position,
        to_text(event.time_us).encode(),
        event.publication,
        event.protocol.encode(),
        b',"nt4":%b' % shown(event) if event.nt4_type is not None else b"",
    )


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
    """Whether an Accept header names JSON lines, with a quality that is not below that of JSON."""
    liked = {}
    for entry in accept.lower().split(","):
        name, _, _ = entry.partition(";")
        quality = _QUALITY.search(entry)
        try:
            liked[name.strip()] = 1.0 if quality is None else float(quality[1])
        except ValueError:
            liked[name.strip()] = 0.0
    lines = liked.get(_LINES.decode(), 0.0)
    return lines > 0 and lines >= liked.get(_JSON.decode(), 0.0)
