"""`GET /rights`: the identity that the caller's token proves, and for each verb whether its role has any such right.

It is for pages that hide what their reader may not do. Whether a verb is allowed on one channel is decided at the
request itself, together with a program's own policies, which this response does not consider.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import orjson

from app.settings import Verb
from app.transports.api.history_query import parameters
from app.transports.api.log import NONE_KNOWN
from app.transports.api.visitors import Visitors
from app.transports.door import Door, Visit

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

PATH = "/rights"


class RightsApi:
    """Answers `{"authid", "role", "may": {VERB: true or false, ...}}`; 401 where the token is invalid."""

    def __init__(self, door: Door, visitors: Visitors) -> None:
        self._door = door
        self._visitors = visitors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._door.let_in(("GET", "HEAD"), self._serve, scope, receive, send)

    async def _serve(self, visit: Visit) -> None:
        visitor = self._visitors.identify(visit.head)
        parameters(visit.head.query_string, {}, NONE_KNOWN)
        may = {verb: self._visitors.may_any(verb, visitor) for verb in get_args(Verb)}
        await visit.answer(
            b"application/json", orjson.dumps({"authid": visitor.authid, "role": visitor.role, "may": may})
        )
