"""`GET /rights`: who a token says that the caller is, and for each verb whether its role may do that to anything.

For pages that leave out what their reader may not do; what may be done to one channel the server says when asked.
A program's own policies are asked then too, and are not known here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import orjson

from app.settings import Verb
from app.transports.history_query import parameters
from app.transports.log_api import NONE_KNOWN

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from app.transports.door import Door, Visit
    from app.transports.visitors import Visitors

PATH = "/rights"


class RightsApi:
    """Answers `{"authid", "role", "may": {VERB: true or false, ...}}`; 401 where the token proves nothing."""

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
