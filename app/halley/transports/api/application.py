"""The HTTP APIs as one Starlette router: the history, the log, the caller's rights, and the pages at all other paths.

The listener for operations has an application of its own. `/health/live` fails slowly: only when the event loop or the
sweeper has stopped, where a restart helps. `/health/ready` fails immediately: as soon as new clients should connect to
another server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import get_args

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Match, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from halley.broker.policy import Identities, Rights
from halley.protocols.bayeux.hooks import Hooks
from halley.settings import Settings, Verb
from halley.transports.api.history import PATH as HISTORY
from halley.transports.api.history import HistoryApi
from halley.transports.api.log import CONSUMERS, LogApi
from halley.transports.api.log import PATH as LOG
from halley.transports.api.requests import ApiRequest, Archive, ArchiveRequest, Callers
from halley.transports.head import route_path
from halley.transports.middleware import GuardMiddleware, RequestContext

RIGHTS = "/rights"
_READ = ("GET", "HEAD")
_NO_STORE = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ApiRoute(BaseRoute):
    """The route of an API: one path, or with a slash at its end all paths below it; compared exactly, as it was sent.

    The middleware decides about methods, and responds to OPTIONS, for CORS.
    """

    def __init__(
        self,
        path: str,
        methods: tuple[str, ...],
        serve: Callable[[RequestContext], Awaitable[None]],
        middleware: GuardMiddleware,
    ) -> None:
        self._path = path
        self._methods = methods
        self._serve = serve
        self._middleware = middleware

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether a request is for this route (Starlette)."""
        path = route_path(scope)
        is_match = path.startswith(self._path) if self._path.endswith("/") else path == self._path
        return (Match.FULL if is_match else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request for this route (Starlette)."""
        await self._middleware.dispatch(self._methods, self._serve, scope, receive, send)


class Apis:
    """The ASGI application of all API paths and of `pages`.

    `archive` returns the log, or raises `NoHistory` where it is off.
    """

    def __init__(
        self,
        settings: Settings,
        middleware: GuardMiddleware,
        rights: Rights,
        identities: Identities,
        hooks: Hooks,
        *,
        archive: Callable[[], Archive],
        pages: ASGIApp,
    ) -> None:
        self.archive = archive
        callers = Callers(rights, identities)

        def route(
            path: str, methods: tuple[str, ...], respond: Callable[[ArchiveRequest], Awaitable[None]]
        ) -> ApiRoute:
            async def serve(context: RequestContext) -> None:
                await respond(ArchiveRequest(context, callers, self.archive))

            return ApiRoute(path, methods, serve, middleware)

        async def serve_rights(context: RequestContext) -> None:
            await _tell_rights(ApiRequest(context, callers), node)

        node = settings.cluster.node if settings.cluster.urls else None
        history, log = HistoryApi(settings, hooks), LogApi(settings)
        self.router = Router(
            [
                ApiRoute(RIGHTS, _READ, serve_rights, middleware),
                route(HISTORY, _READ, history.serve),
                route(f"{HISTORY}/", _READ, history.serve),
                route(LOG, _READ, log.rows),
                route(f"{LOG}/head", _READ, log.head),
                route(f"{LOG}/purge", ("POST",), log.purge),
                route(f"{CONSUMERS}/", ("POST", "DELETE"), log.consumer),
            ],
            redirect_slashes=False,
            default=pages,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Route a request by its path to an API, or else to `pages` (ASGI)."""
        await self.router(scope, receive, send)


async def _tell_rights(request: ApiRequest, node: str | None) -> None:
    """Respond with the caller's identity, for each verb whether it has any such right, and the node of a cluster.

    It is for pages that hide what their reader may not do. Whether a verb is allowed on one channel is decided at the
    request itself, together with a program's own policies, which this response does not consider.
    """
    request.check_no_parameters()
    may = {verb: request.may_any(verb) for verb in get_args(Verb)}
    told = {"authid": request.caller.authid, "role": request.caller.role, "may": may}
    if node is not None:
        told["node"] = node
    await request.context.answer(b"application/json", orjson.dumps(told))


def operations_app(
    *,
    is_live: Callable[[], bool],
    is_ready: Callable[[], bool],
    metrics: Callable[[], bytes],
    cluster: Callable[[], object] | None = None,
) -> Starlette:
    """The ASGI application of the operations listener.

    `metrics` returns them in Prometheus's text format; `cluster` the figures of the cluster, for a node of one.
    """

    async def live(_: Request) -> Response:
        return _state("live", is_true=is_live())

    async def ready(_: Request) -> Response:
        return _state("ready", is_true=is_ready())

    async def show_metrics(_: Request) -> Response:
        return Response(metrics(), media_type=METRICS_TYPE, headers=_NO_STORE)

    async def show_cluster(_: Request) -> Response:
        assert cluster is not None
        return Response(orjson.dumps(cluster()), media_type="application/json", headers=_NO_STORE)

    routes = [Route("/health/live", live), Route("/health/ready", ready), Route("/metrics", show_metrics)]
    if cluster is not None:
        routes.append(Route("/cluster", show_cluster))
    return Starlette(routes=routes)


def _state(name: str, *, is_true: bool) -> Response:
    text = f"{name}\n" if is_true else f"not {name}\n"
    return PlainTextResponse(text, status_code=200 if is_true else 503, headers=_NO_STORE)
