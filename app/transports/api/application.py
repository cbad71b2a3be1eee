"""The HTTP APIs besides Bayeux, as one ASGI application: the history, the log, and the caller's rights."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from app.broker.policy import Identities, Rights
from app.protocols.bayeux.hooks import Hooks
from app.settings import Settings
from app.transports.api.archive import Archive, NoHistory
from app.transports.api.history import PATH, HistoryApi
from app.transports.api.log import PATHS, LogApi
from app.transports.api.log_consumers import PREFIX, LogConsumers
from app.transports.api.rights import PATH as RIGHTS
from app.transports.api.rights import RightsApi, Visitors
from app.transports.door import Door
from app.transports.guard import Rejection
from app.transports.paths import route_path

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

OFF = "history is off on this server"


class Apis:
    """The ASGI application of all API paths.

    `archive` returns the log, or raises `NoHistory` where it is off.
    """

    def __init__(
        self,
        settings: Settings,
        door: Door,
        rights: Rights,
        identities: Identities,
        hooks: Hooks,
        *,
        archive: Callable[[], Archive],
    ) -> None:
        self.archive = archive
        visitors = Visitors(rights, identities)
        self._history = HistoryApi(settings, door, visitors, self._archive, hooks)
        self._log = LogApi(settings, door, visitors, self._archive)
        self._consumers = LogConsumers(settings, door, visitors, self._archive)
        self._rights = RightsApi(door, visitors)

    def _archive(self) -> Archive:
        """The log. Raises `Rejection` (404) where the history is off."""
        try:
            return self.archive()
        except NoHistory:
            raise Rejection(404, OFF) from None

    @staticmethod
    def leads_to(path: str) -> bool:
        """Whether a path belongs to one of the APIs."""
        return path in (PATH, RIGHTS) or path.startswith((f"{PATH}/", PREFIX)) or path in PATHS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = route_path(scope)
        if path == RIGHTS:
            await self._rights(scope, receive, send)
            return
        api = self._log if path in PATHS else self._consumers if path.startswith(PREFIX) else self._history
        await api(scope, receive, send)
