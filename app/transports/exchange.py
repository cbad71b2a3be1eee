"""One HTTP request on its way through the engine and back.

This is where Halley waits: for hooks of the program (with a deadline), for a held connect's reply (with the engine's
deadline, and one of our own behind it) and for a slow socket. A peer that leaves is noticed in each case, and the
engine is told what became of every reply.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from app.protocols.bayeux.exchanges import Hold, Reply, Verdict, Wait

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Receive, Scope, Send

    from app.protocols.bayeux.engine import Engine
    from app.protocols.bayeux.exchanges import Outcome, Request

    Header = tuple[bytes, bytes]

_OVERDUE_S = 60.0
"""A hold this long past its time means that the sweeper is dead: better an error than a poll that never ends."""


class Socket(Protocol):
    """What Halley's own host tells of a connection (`app/host/connection.py`); other servers tell nothing."""

    def settle(self, report: Callable[[bool], None]) -> None:
        """Report True when all that was written has left, False when it never will."""

    def cut(self, reason: str) -> None:
        """Close without a further byte."""

    def refuse(self, status: int, text: str, headers: tuple[Header, ...] = (), *, is_logged: bool = False) -> None:
        """Answer before the request is whole, and close."""


def socket_of(scope: Scope) -> Socket | None:
    """The connection a request came on, if the host is ours."""
    socket: Socket | None = (scope.get("extensions") or {}).get("halley")
    return socket


class Exchange:
    """The engine's `connection` for one request."""

    def __init__(self, engine: Engine, scope: Scope, receive: Receive, send: Send) -> None:
        self._engine = engine
        self.receive = receive
        self._send = send
        self._socket = socket_of(scope)
        self._answer: asyncio.Future[Reply | None] = asyncio.get_running_loop().create_future()

    def answer(self, reply: Reply | None) -> None:
        """The held connect has its reply; None means that a newer connect makes this connection useless."""
        if reply is None:
            if self._socket is not None:
                self._socket.cut("replaced")
        elif self._answer.done():
            self._engine.unwritten(reply)
        else:
            self._answer.set_result(reply)

    async def reply_to(self, request: Request) -> Reply | None:
        """Take a request through the engine; None if its peer left while it was held."""
        outcome: Outcome = self._engine.receive(request, monotonic())
        while isinstance(outcome, Wait):
            verdict = await verdict_on(outcome, self._engine.options.policy_s)
            outcome = self._engine.resume(outcome, verdict, monotonic())
        if isinstance(outcome, Hold):
            return await self._held(outcome)
        return outcome

    async def _held(self, hold: Hold) -> Reply | None:
        departure = asyncio.ensure_future(self._departure())
        has_left = True
        try:
            ends: list[asyncio.Future[Any]] = [self._answer, departure]
            await asyncio.wait(ends, timeout=hold.wait_s + _OVERDUE_S, return_when=asyncio.FIRST_COMPLETED)
            has_left = departure.done()
        finally:
            departure.cancel()
            self._engine.gone(hold, monotonic())  # nothing, if it has been answered
            if not self._answer.done():
                self._answer.cancel()  # a reply that comes now is `unwritten` at once
            elif has_left and (reply := self._answer.result()) is not None:
                self._engine.unwritten(reply)
        if has_left:
            return None
        if self._answer.cancelled():
            raise TimeoutError("a hold was not ended by its deadline")
        return self._answer.result()

    async def _departure(self) -> None:
        """Returns when the peer has closed the connection."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def write(self, reply: Reply, headers: list[Header], body: bytes) -> None:
        """Send a response and report what became of it."""
        # Our own host cuts a peer that reads nothing; a foreign one may wait for ever.
        limit_s = self._engine.broker.limits.write_s if self._socket is None else None
        try:
            async with asyncio.timeout(limit_s):
                await respond(self._send, reply.status, headers, body)
        except TimeoutError:
            self._engine.broker.hits["write_s"] += 1
            self._engine.unwritten(reply)
            return
        except BaseException:
            self._engine.unwritten(reply)
            raise
        if self._socket is None:
            self._engine.written(reply)
        else:
            self._socket.settle(lambda is_written: self._settled(reply, is_written=is_written))

    def _settled(self, reply: Reply, *, is_written: bool) -> None:
        if is_written:
            self._engine.written(reply)
        else:
            self._engine.unwritten(reply)


async def verdict_on(wait: Wait, limit_s: float) -> Verdict:
    """What the program answers within `limit_s`, or in the time that the wait itself allows."""
    try:
        async with asyncio.timeout(limit_s if wait.limit_s is None else wait.limit_s):
            return Verdict(value=await wait.awaitable)
    except Exception as error:  # noqa: BLE001 - a program's hook may raise anything
        return Verdict(error=error)


async def respond(send: Send, status: int, headers: list[Header], body: bytes) -> None:
    """Send one whole response."""
    length = (b"content-length", b"%d" % len(body))
    start: dict[str, Any] = {"type": "http.response.start", "status": status, "headers": [*headers, length]}
    await send(start)
    await send({"type": "http.response.body", "body": body})
