"""One HTTP request on its way through the engine and back.

This is where Halley waits: for hooks of the program (with a deadline), for a held connect's reply or for the log (with
the engine's deadline, and one of our own behind it) and for a slow socket. A peer that leaves is noticed in each case,
and the engine is told what became of every reply.
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
    from app.protocols.bayeux.exchanges import Outcome, Pending, Request

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
        self._outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def answer(self, outcome: Outcome | None) -> None:
        """What was waited for has come; None means that a newer connect makes this connection useless."""
        if outcome is None:
            if self._socket is not None:
                self._socket.cut("replaced")
        elif self._outcome.done():
            self._let_go(outcome)
        else:
            self._outcome.set_result(outcome)

    async def reply_to(self, request: Request) -> Reply | None:
        """Take a request through the engine; None if its peer has left before there was a reply."""
        engine = self._engine
        outcome: Outcome | None = engine.receive(request, monotonic())
        departure: asyncio.Future[None] | None = None
        try:
            while outcome is not None and not isinstance(outcome, Reply):
                if isinstance(outcome, Wait):
                    verdict = await verdict_on(outcome, engine.options.policy_s)
                    outcome = engine.resume(outcome, verdict, monotonic())
                else:
                    departure = departure or asyncio.ensure_future(self._departure())
                    outcome = await self._later(outcome, departure)
        finally:
            if departure is not None:
                departure.cancel()
        return outcome

    async def _later(self, waiting: Hold | Pending, departure: asyncio.Future[None]) -> Outcome | None:
        """What `answer` brings; None if nobody is there for it. Whatever a peer has sent is worked through even so."""
        ends: list[asyncio.Future[Any]] = [self._outcome]
        limit_s = self._engine.broker.recording.options.commit_s
        if isinstance(waiting, Hold):
            ends.append(departure)
            limit_s = waiting.wait_s
        has_left = True
        try:
            await asyncio.wait(ends, timeout=limit_s + _OVERDUE_S, return_when=asyncio.FIRST_COMPLETED)
            has_left = departure.done()
        finally:
            if isinstance(waiting, Hold):
                self._engine.gone(waiting, monotonic())  # nothing, if it has been answered
            come, self._outcome = self._outcome, asyncio.get_running_loop().create_future()
            outcome = come.result() if come.done() else None
            if outcome is None:
                self._outcome.cancel()  # what comes now is let go of at once
            elif has_left and not isinstance(outcome, Wait):
                self._let_go(outcome)
                outcome = None
        if outcome is None and not has_left:
            raise TimeoutError("a request was not answered by its deadline")
        return outcome

    def _let_go(self, outcome: Outcome) -> None:
        """Nobody is there any more for what has come."""
        if isinstance(outcome, Reply):
            self._engine.unwritten(outcome)
        elif isinstance(outcome, Hold):
            self._engine.gone(outcome, monotonic())

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


async def respond(send: Send, status: int, headers: list[Header], body: bytes, kind: str = "http.response") -> None:
    """Send one whole response; `kind` begins the names of ASGI's events."""
    length = (b"content-length", b"%d" % len(body))
    start: dict[str, Any] = {"type": f"{kind}.start", "status": status, "headers": [*headers, length]}
    await send(start)
    await send({"type": f"{kind}.body", "body": body})
