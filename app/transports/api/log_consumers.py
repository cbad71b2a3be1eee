"""`/log/consumers/NAME`: a consumer on another machine reports its position, so that retention waits for it.

The only effect here is that retention deletes later; what a consumer does with the events is not known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import orjson

from app import telemetry
from app.history.consumers import TooManyConsumers, is_name
from app.settings import Settings
from app.transports.api.archive import Archive
from app.transports.api.history_query import NONE_KNOWN, parameters
from app.transports.api.log import EVERYTHING
from app.transports.api.rights import Visitors
from app.transports.bodies import read_body
from app.transports.door import RETRY_AFTER, Door, Visit
from app.transports.guard import Rejection
from app.transports.paths import route_path

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

PREFIX = "/log/consumers/"
BAD_NAME = "a consumer's name must have 1 to 64 letters, digits, _ and -, and must not begin with draft-"
BAD_REPORT = 'the body must be {"offset": N}, where N is the next offset to read, at least 1'
OUT_OF_RANGE = "offset: expected a number from first to next; see /log/head"
TOO_MANY = "too many consumers; delete one that is unused"
UNKNOWN = "no such consumer"
NO_DISK = "the server cannot write the consumer's position at the moment; try again later"


class LogConsumers:
    """The ASGI application of `/log/consumers`; `archive` returns the log, or raises `Rejection` if history is off."""

    def __init__(self, settings: Settings, door: Door, visitors: Visitors, archive: Callable[[], Archive]) -> None:
        self._door = door
        self._visitors = visitors
        self._archive = archive
        self._limits = settings.limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._door.let_in(("POST", "DELETE"), self._serve, scope, receive, send)

    async def _serve(self, visit: Visit) -> None:
        archive = self._archive()
        visitor = self._visitors.identify(visit.head)
        if visit.head.method == "POST":
            self._door.check_order(visit.head)
        else:
            self._door.check_same_site(visit.head)
        self._visitors.demand("export", EVERYTHING, visitor)
        parameters(visit.head.query_string, {}, NONE_KNOWN)
        name = route_path(visit.scope).removeprefix(PREFIX)
        if not is_name(name):
            raise Rejection(400, BAD_NAME)
        try:
            answer = await (self._report if visit.head.method == "POST" else self._forget)(archive, name, visit)
        except OSError as error:  # TimeoutError is one too
            if not isinstance(error, TimeoutError):
                telemetry.fault("consumers", error)
            raise Rejection(503, NO_DISK, headers=(RETRY_AFTER,)) from None
        await visit.answer(b"application/json", answer)

    async def _report(self, archive: Archive, name: str, visit: Visit) -> bytes:
        """Note a consumer's offset. It may also go back: a consumer that has lost its results must read again."""
        offset = _offset_of(await read_body(visit.receive, self._limits))
        await archive.settle()
        if not archive.start <= offset <= archive.head + 1:
            raise Rejection(400, OUT_OF_RANGE)
        try:
            await archive.report(name, offset)
        except TooManyConsumers:
            raise Rejection(409, TOO_MANY, limit="consumers") from None
        return orjson.dumps({"offset": offset})

    async def _forget(self, archive: Archive, name: str, _: Visit) -> bytes:
        if not await archive.forget(name):
            raise Rejection(404, UNKNOWN)
        return b'{"forgotten":true}'


def _offset_of(body: bytes) -> int:
    """The offset in the body of a report. Raises `Rejection`."""
    try:
        told = orjson.loads(body)
    except orjson.JSONDecodeError:
        told = None
    if isinstance(told, dict) and told.keys() == {"offset"}:
        offset = told["offset"]
        if type(offset) is int and offset > 0:
            return offset
    raise Rejection(400, BAD_REPORT)
