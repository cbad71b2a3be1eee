"""The HTTP APIs as one Starlette router: the history, the log, the caller's rights, and the pages at all other paths.

The listener for operations has an application of its own. `/health/live` fails slowly: only when the event loop or the
sweeper has stopped, where a restart helps. `/health/ready` fails immediately: as soon as new clients should connect to
another server.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, get_args

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, Router, request_response
from starlette.types import ASGIApp, Receive, Scope, Send

from halley.broker.policy import Identities, Rights
from halley.broker.rates import Rates
from halley.protocols.bayeux.hooks import Hooks
from halley.settings import Settings, Verb
from halley.transports.addresses import accounts
from halley.transports.api.archive import Archive, ArchiveMiddleware
from halley.transports.api.history import HistoryApi
from halley.transports.api.identity import IdentityMiddleware, caller_of
from halley.transports.api.log import LogApi
from halley.transports.api.parameters import check_no_parameters
from halley.transports.api.responses import Content
from halley.transports.compression import CompressionMiddleware
from halley.transports.guard import Guard
from halley.transports.middleware import GuardMiddleware, Note

Handler = Callable[[Request], Awaitable[Response]]

_READ = ("GET", "HEAD")
_NO_STORE = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Apis:
    """The ASGI application of all API paths and of `pages`.

    `archive` returns the log, or raises `NoHistory` where it is off.
    """

    def __init__(  # noqa: PLR0913 - what a server has
        self,
        settings: Settings,
        guard: Guard,
        note: Note,
        rights: Rights,
        identities: Identities,
        hooks: Hooks,
        rates: Rates,
        *,
        archive: Callable[[], Archive],
        pages: ASGIApp,
    ) -> None:
        self.archive = archive
        self._identities = identities
        self._node = settings.cluster.node if settings.cluster.urls else None

        def route(
            path: str,
            methods: tuple[str, ...],
            handler: Handler,
            *,
            reads_archive: bool = True,
            compresses: bool = False,
        ) -> Route:
            app: ASGIApp = request_response(handler)
            if compresses:
                app = CompressionMiddleware(app)
            app = IdentityMiddleware(app, rights, identities, rates)  # outside, as compressing may wait for a thread
            if reads_archive:
                app = ArchiveMiddleware(app, lambda: self.archive())  # noqa: PLW0108 - it may be replaced
            made = Route(path, GuardMiddleware(app, guard, note, *methods))
            # Starlette compares line by line, and a path may have line breaks (%0A).
            made.path_regex = re.compile(made.path_regex.pattern.removesuffix("$") + r"\Z", re.DOTALL)
            return made

        account_of = accounts((*settings.limits.exempt, *settings.proxies))
        history, log = HistoryApi(settings, hooks, account_of), LogApi(settings, account_of)
        self.router = Router(
            [
                route("/rights", _READ, self.rights, reads_archive=False),
                route("/history", _READ, history.page, compresses=True),
                route("/history/{channel:path}", _READ, history.page, compresses=True),
                route("/log", _READ, log.rows, compresses=True),
                route("/log/head", _READ, log.head),
                route("/log/purge", ("POST",), log.purge),
                route("/log/consumers/{name:path}", ("POST", "DELETE"), log.consumer),
            ],
            redirect_slashes=False,
            default=pages,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Route a request by its path to an API, or else to `pages` (ASGI)."""
        scope["root_path"] = scope.get("root_path", "").rstrip("/")  # with a slash there, no route would match
        await self.router(scope, receive, send)

    async def rights(self, request: Request) -> Response:
        """The caller's identity, for each verb whether it has any such right, and the node of a cluster.

        Where the server `reads_tokens`, a token is either proved or refused. Where it does not, everybody is anonymous.

        It is for pages that hide what their reader may not do. Whether a verb is allowed on one channel is decided at
        the request itself, together with a program's own policies, which this response does not consider.
        """
        check_no_parameters(request)
        caller = caller_of(request)
        may = {verb: caller.may_any(verb) for verb in get_args(Verb)}
        found: dict[str, Any] = {"authid": caller.proof.authid, "role": caller.proof.role, "may": may}
        found["reads_tokens"] = self._identities.reads_tokens
        if self._node is not None:
            found["node"] = self._node
        return Content(request, b"application/json", orjson.dumps(found))


def operations_app(
    *,
    is_live: Callable[[], bool],
    is_ready: Callable[[], bool],
    refusal: Callable[[], str],
    metrics: Callable[[], bytes],
    cluster: Callable[[], object] | None = None,
) -> Starlette:
    """The ASGI application of the operations listener.

    `refusal` returns why durable publishes are refused, "" while they are taken; `metrics` the metrics in Prometheus's
    text format; `cluster` the figures of the cluster, for a node of one.
    """

    async def live(_: Request) -> Response:
        return _state("live", is_true=is_live())

    async def ready(_: Request) -> Response:
        reason = refusal()
        return _state("ready", is_true=is_ready(), more=f"history_unavailable: {reason}\n" if reason else "")

    async def show_metrics(_: Request) -> Response:
        return Response(metrics(), media_type=METRICS_TYPE, headers=_NO_STORE)

    async def show_cluster(_: Request) -> Response:
        assert cluster is not None
        return Response(orjson.dumps(cluster()), media_type="application/json", headers=_NO_STORE)

    routes = [Route("/health/live", live), Route("/health/ready", ready), Route("/metrics", show_metrics)]
    if cluster is not None:
        routes.append(Route("/cluster", show_cluster))
    return Starlette(routes=routes)


def _state(name: str, *, is_true: bool, more: str = "") -> Response:
    text = (f"{name}\n" if is_true else f"not {name}\n") + more
    return PlainTextResponse(text, status_code=200 if is_true else 503, headers=_NO_STORE)
