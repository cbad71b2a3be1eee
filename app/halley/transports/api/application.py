"""The HTTP APIs: the history, the log, and the caller's rights, each at its route.

An API is a coroutine that gets an `ApiRequest` and responds. Before it runs, its caller is known by the token; after
it, nothing begins that the caller has lost the right to meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, get_args

import orjson

from halley.broker.policy import Identities, Rights
from halley.broker.rates import Rates
from halley.protocols.bayeux.hooks import Hooks
from halley.settings import Settings, Verb
from halley.transports.addresses import accounts
from halley.transports.api.archive import OFF, Archive, NoHistory
from halley.transports.api.history import HistoryApi
from halley.transports.api.identity import caller_by
from halley.transports.api.log import LogApi
from halley.transports.api.parameters import check_no_parameters
from halley.transports.api.responses import ApiRequest
from halley.transports.exchange import Endpoint, Exchange, HeadOf
from halley.transports.guard import Guard, Rejection
from halley.transports.head import Head, bearer_token
from halley.transports.routes import Route

Answer = Callable[[ApiRequest], Awaitable[None]]

LOG: Final = "/log"
"""The path of the log, which in a cluster the nodes that keep it serve."""

_READ: Final = ("GET", "HEAD", "OPTIONS")


class Apis:
    """All APIs of a server; `archive` returns the log, or raises `NoHistory` where it is off."""

    def __init__(
        self,
        settings: Settings,
        rights: Rights,
        identities: Identities,
        hooks: Hooks,
        rates: Rates,
        *,
        archive: Callable[[], Archive],
    ) -> None:
        self.archive = archive
        self.rights = rights
        self.identities = identities
        self.rates = rates
        self._node = settings.cluster.node if settings.cluster.urls else None
        account_of = accounts((*settings.limits.exempt, *settings.proxies))
        self._history = HistoryApi(settings, hooks, account_of)
        self._log = LogApi(settings, account_of)

    def routes(self, guard: Guard) -> list[Route]:
        """Return the routes of the APIs."""

        def route(
            path: str,
            methods: tuple[str, ...],
            answer: Answer,
            *,
            is_of_log: bool = True,
            compresses: bool = False,
            has_below: bool = False,
        ) -> Route:
            endpoint = ApiEndpoint(self, path, answer, is_of_log=is_of_log, compresses=compresses)
            return Route(path, endpoint, guard, methods, has_below=has_below)

        log, change = self._log, ("POST", "DELETE", "OPTIONS")
        return [
            route("/rights", _READ, self._show_rights, is_of_log=False),
            route("/history", _READ, self._history.page, compresses=True, has_below=True),
            route(LOG, _READ, log.rows, compresses=True),
            route(f"{LOG}/head", _READ, log.head),
            route(f"{LOG}/purge", ("POST", "OPTIONS"), log.purge),
            route(f"{LOG}/consumers/", change, log.consumer, has_below=True),
        ]

    async def _show_rights(self, request: ApiRequest) -> None:
        """Respond with the caller's identity, for each verb whether it has any such right, and the node of a cluster.

        Where the server `reads_tokens`, a token is either proved or refused. Where it does not, everybody is anonymous.

        It is for pages that hide what their reader may not do. Whether a verb is allowed on one channel is decided at
        the request itself, together with a program's own policies, which this response does not consider.
        """
        check_no_parameters(request.head.query_string)
        caller = request.caller
        may = {verb: caller.may_any(verb) for verb in get_args(Verb)}
        found: dict[str, Any] = {"authid": caller.proof.authid, "role": caller.proof.role, "may": may}
        found["reads_tokens"] = self.identities.reads_tokens
        if self._node is not None:
            found["node"] = self._node
        await request.respond(b"application/json", orjson.dumps(found))


class ApiEndpoint(Endpoint):
    """The endpoint of one API at `path`; one that `is_of_log` is not there where the history is off."""

    def __init__(self, apis: Apis, path: str, answer: Answer, *, is_of_log: bool, compresses: bool) -> None:
        self._apis = apis
        self._path = path
        self._answer = answer
        self._is_of_log = is_of_log
        self._compresses = compresses

    def serve(self, exchange: Exchange, prepared: None, body: bytes, head: HeadOf) -> None:  # noqa: ARG002
        """Run the API."""
        exchange.run(self._run(exchange, body, head()), head)

    async def _run(self, exchange: Exchange, body: bytes, head: Head) -> None:
        """Find the log and the caller, and have the API respond.

        Raises `Rejection`: 401 for an invalid token, 401 or 403 for a right that is gone; and `Disconnected`.
        """
        apis = self._apis
        try:
            log = apis.archive() if self._is_of_log else None
        except NoHistory:
            raise Rejection(404, OFF) from None
        token = bearer_token(head.fields.get(b"authorization"))
        caller = caller_by(token, head.address, apis.rights, apis.identities, apis.rates)
        with caller.asking():
            below = head.own_path[len(self._path) :]
            await self._answer(ApiRequest(exchange, head, body, caller, below, log, self._compresses))
