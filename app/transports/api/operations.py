"""Health and metrics, on a listener of their own.

`/health/live` fails slowly: only when the event loop or the sweeper has stopped, where a restart helps.
`/health/ready` fails immediately: as soon as new clients should connect to another server.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

_NO_STORE = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def operations_app(
    *, is_live: Callable[[], bool], is_ready: Callable[[], bool], metrics: Callable[[], bytes]
) -> Starlette:
    """The ASGI application of the operations listener; `metrics` returns them in Prometheus's text format."""

    async def live(_: Request) -> Response:
        return _state("live", is_true=is_live())

    async def ready(_: Request) -> Response:
        return _state("ready", is_true=is_ready())

    async def show_metrics(_: Request) -> Response:
        return Response(metrics(), media_type=METRICS_TYPE, headers=_NO_STORE)

    return Starlette(
        routes=[Route("/health/live", live), Route("/health/ready", ready), Route("/metrics", show_metrics)]
    )


def _state(name: str, *, is_true: bool) -> Response:
    text = f"{name}\n" if is_true else f"not {name}\n"
    return PlainTextResponse(text, status_code=200 if is_true else 503, headers=_NO_STORE)
