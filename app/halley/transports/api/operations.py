"""The listener for operations, and pages that are made when they are asked for.

`/health/live` fails slowly: only when the event loop or the sweeper has stopped, where a restart helps. `/health/ready`
fails immediately: as soon as new clients should connect to another server. All who can reach the listener may ask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import orjson

from halley.transports.exchange import Endpoint, Exchange, HeadOf, Note
from halley.transports.head import CONTENT_LENGTH, UNCACHED, Header, Headers
from halley.transports.routes import Route, Routes

Page = Callable[[], tuple[int, bytes, bytes]]
"""Makes a page: its status, content type and body."""

PLAIN: Final = b"text/plain; charset=utf-8"
METRICS_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"
_ALLOW: Final = Headers((b"allow", b"GET, HEAD"))
_NONE: Final = Headers()


class PageEndpoint(Endpoint):
    """Shows a page to all who ask."""

    takes_body = False

    def __init__(self, page: Page, *headers: Header) -> None:
        self._page = page
        self._headers = Headers(*headers)

    def serve(self, exchange: Exchange, prepared: Any, body: bytes, head: HeadOf) -> None:  # noqa: ARG002
        """Respond with the page."""
        if head().method in ("GET", "HEAD"):
            _show(exchange, self._headers, *self._page())
        else:
            _show(exchange, _ALLOW, 405, PLAIN, b"Method Not Allowed")


def page_at(path: str, page: Page, *headers: Header) -> Route:
    """Return the route of a page."""
    return Route(path, PageEndpoint(page, *headers), None, has_below=False)


class _NotFound(Endpoint):
    takes_body = False

    def serve(self, exchange: Exchange, prepared: Any, body: bytes, head: HeadOf) -> None:  # noqa: ARG002
        _show(exchange, _NONE, 404, PLAIN, b"Not Found")


NOT_FOUND: Final = Route("", _NotFound(), None)


def _show(exchange: Exchange, headers: Headers, status: int, content_type: bytes, body: bytes) -> None:
    exchange.respond(status, headers, body, (CONTENT_LENGTH, (b"content-type", content_type)))


def operations_routes(
    note: Note,
    *,
    is_live: Callable[[], bool],
    is_ready: Callable[[], bool],
    refusal: Callable[[], str],
    metrics: Callable[[], bytes],
    cluster: Callable[[], object] | None = None,
) -> Routes:
    """The routes of the operations listener.

    `refusal` returns why durable publishes are refused, "" while they are taken; `metrics` the metrics in Prometheus's
    text format; `cluster` the figures of the cluster, for a node of one.
    """

    def ready() -> tuple[int, bytes, bytes]:
        reason = refusal()
        return _state("ready", is_true=is_ready(), more=f"history_unavailable: {reason}\n" if reason else "")

    routes = [
        page_at("/health/live", lambda: _state("live", is_true=is_live()), *UNCACHED),
        page_at("/health/ready", ready, *UNCACHED),
        page_at("/metrics", lambda: (200, METRICS_TYPE, metrics()), *UNCACHED),
    ]
    if cluster is not None:
        routes.append(page_at("/cluster", lambda: (200, b"application/json", orjson.dumps(cluster())), *UNCACHED))
    return Routes(routes, NOT_FOUND, note)


def _state(name: str, *, is_true: bool, more: str = "") -> tuple[int, bytes, bytes]:
    text = (f"{name}\n" if is_true else f"not {name}\n") + more
    return 200 if is_true else 503, PLAIN, text.encode()
