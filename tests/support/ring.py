"""An endpoint at `/ring`, to show what it takes to add one: this file, and one line where its server is composed.

A GET waits until somebody rings, and is answered with what was said then; a POST rings. `GET /ring/log` is what has
been said so far, line by line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from halley.transports.exchange import Endpoint, Exchange, HeadOf, respond_by
from halley.transports.guard import Guard, Rejection
from halley.transports.head import UNCACHED, Head, Header, Headers
from halley.transports.routes import ProtocolEndpoint, Route

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from halley.protocols.contract import Part
    from halley.server.protocols import Common

PATH: Final = "/ring"
_TEXT: Final = Headers((b"content-type", b"text/plain; charset=utf-8"), *UNCACHED)
_MOST_BYTES = 100
_MOST_WAITING = 10


class Ring(ProtocolEndpoint):
    """Serves `/ring`; `waiting` are the exchanges that wait."""

    def __init__(self, guard: Guard) -> None:
        self.waiting: dict[Exchange, None] = {}
        self._guard = guard
        self._said: list[bytes] = []

    def routes(self) -> list[Route]:
        """Return the routes of the ring."""
        methods = ("GET", "POST", "OPTIONS")
        return [
            Route(PATH, self, self._guard, methods, has_below=False),
            Route(f"{PATH}/log", _Log(self._said), self._guard, methods[::2], has_below=False),
        ]

    def prepare(self, head: Head, headers: Sequence[Header]) -> bool:
        """Return whether a request rings."""
        return head.method == "POST"

    def serve(self, exchange: Exchange, prepared: bool, body: bytes, head: HeadOf) -> None:
        """Ring, or wait. Raises `Rejection`."""
        if not prepared:
            if len(self.waiting) >= _MOST_WAITING:
                raise Rejection(503, "too many wait")
            exchange.waiting = self.waiting
            self.waiting[exchange] = None
            return
        if len(body) > _MOST_BYTES:
            raise Rejection(413, "too much to say")
        self._said.append(body)
        rung, self.waiting = self.waiting, {}
        for each in rung:
            each.respond(200, _TEXT, body)
        exchange.respond(204, _TEXT)

    def lost(self, exchange: Exchange, waiting: Any) -> None:
        """Forget a peer that has gone."""
        waiting.pop(exchange, None)


class _Log(Endpoint):
    def __init__(self, said: list[bytes]) -> None:
        self._said = said

    def serve(self, exchange: Exchange, prepared: Any, body: bytes, head: HeadOf) -> None:
        """Respond in pieces."""
        exchange.run(respond_by(exchange, 200, _TEXT, self._lines()), head)

    async def _lines(self) -> AsyncGenerator[bytes, None]:
        for said in self._said:
            yield said + b"\n"


def ring(common: Common) -> Sequence[Part]:
    """Compose the endpoint: the line."""
    return (Ring(common.guard),)
