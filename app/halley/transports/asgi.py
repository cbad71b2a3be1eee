"""Bayeux's requests under any ASGI server: each on its way through the engine and back.

This is where Halley waits: for hooks of the program (with a deadline), for a held connect's reply or for the log (with
the engine's deadline, and a later one here), and for a slow socket. A peer that disconnects is noticed in each case,
and for every reply the engine is notified whether it was written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any, Protocol

from starlette.types import Receive, Scope, Send

from halley.broker.limits import sharer_of
from halley.broker.ports import Reader
from halley.protocols.bayeux.engine import BayeuxEngine
from halley.protocols.bayeux.outcomes import AwaitHook, Cut, Deferred, Outcome, Request
from halley.protocols.bayeux.session import Hold, Reply
from halley.transports.bodies import disconnected
from halley.transports.head import Header
from halley.transports.waits import verdict_on

_OVERDUE_S = 60.0
"""A hold this long past its deadline means that the sweeper is dead: better an error than a poll that never ends."""


class HostConnection(Protocol):
    """A connection of Halley's own host (`halley/host/http.py`); other ASGI servers have no such interface."""

    def settle(self, report: Callable[[bool], None]) -> None:
        """Call `report(True)` when all that was written has left for the kernel, `report(False)` if it never will."""

    def cut(self, reason: str) -> None:
        """Close without sending another byte; `reason` is for the log."""

    def refuse(self, status: int, text: str, headers: tuple[Header, ...] = (), *, is_logged: bool = False) -> None:
        """Answer before the request is complete, and close."""

    async def drained(self) -> None:
        """Return when all that was written has left for the kernel, or never will."""

    def stream(self) -> Any:
        """Make a `Link` for the response to the running request, of HTTP/1.1; its `engine` is then to be set."""

    def begin_stream(self, stream: Any, headers: list[Header], first: bytes) -> None:
        """Once all is `drained`: write the head of the response and its first bytes; then it is the stream's."""


def host_connection(scope: Scope) -> HostConnection | None:
    """The connection of a request, under Halley's own host; None under another server."""
    connection: HostConnection | None = (scope.get("extensions") or {}).get("halley")
    return connection


def reader_in(scope: Scope, authid: str | None, account_of: Callable[[str], str | None]) -> Reader:
    """Who reads the history by a request: a proved `authid`, else the client's address, else the connection."""
    address, port = scope.get("client") or ("", 0)
    return Reader(sharer_of(authid, account_of(address), host_connection(scope) or f"{address} {port}"))


def target_of(scope: Scope) -> bytes:
    """The target of a request; only its path, where it begins with a slash.

    Of a target in absolute form, Halley's own host passes on all of it. Servers that use h11 put it into the path,
    and uvicorn with httptools drops its host, so there it cannot be checked.
    """
    target: bytes | None = (scope.get("extensions") or {}).get("halley.target")
    path: str = scope["path"]
    return path.encode() if target is None else target


class AsgiConnection:
    """One request under way: what the engine knows as its `connection`."""

    def __init__(self, engine: BayeuxEngine, scope: Scope, receive: Receive, send: Send) -> None:
        self._engine = engine
        self.scope = scope
        self.receive = receive
        self.send = send
        self._host = host_connection(scope)
        self._departure: asyncio.Future[None] | None = None  # of the peer, while it is waited for
        self._outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def write(self, outcome: Outcome | Cut) -> None:
        """Take the outcome that the request waits for."""
        if isinstance(outcome, Cut):
            if self._host is not None:
                self._host.cut(outcome.reason)
        elif self._outcome.done():
            self._give_back(outcome)
        else:
            self._outcome.set_result(outcome)

    async def reply_to(self, request: Request, *, is_here: bool = False) -> Reply | None:
        """Process a request until there is a reply; None if its peer disconnected before.

        Raises `TimeoutError` if a hold or commit is not answered long after its deadline, and `Misdirected` unless
        `is_here`: the node that has the session is gone.
        """
        engine = self._engine
        receive = engine.receive_here if is_here else engine.receive
        outcome: Outcome | None = receive(request, monotonic())
        try:
            while outcome is not None and not isinstance(outcome, Reply):
                self._departure = departure = self._departure or asyncio.ensure_future(disconnected(self.receive))
                if isinstance(outcome, AwaitHook):
                    verdict = await verdict_on(outcome, engine.options.policy_s)
                    outcome = engine.resume(outcome, verdict, monotonic())
                else:
                    outcome = await self._wait_for(outcome, departure)
            if outcome is not None and self.is_over and not self._may_be_read(outcome):
                self._give_back(outcome)
                outcome = None
        finally:
            if self._departure is not None:
                self._departure.cancel()
        return outcome

    @property
    def is_over(self) -> bool:
        """Whether the peer is known to have disconnected."""
        return self._departure is not None and self._departure.done()

    async def _wait_for(self, waiting: Hold | Deferred, departure: asyncio.Future[None]) -> Outcome | None:
        """Wait for the outcome that `write` brings; None if the peer has disconnected.

        A request whose peer has disconnected is processed to its end nevertheless.
        """
        ends: list[asyncio.Future[Any]] = [self._outcome]
        limit_s = self._engine.broker.commits.options.commit_s
        if isinstance(waiting, Hold):
            ends.append(departure)
            limit_s = waiting.wait_s
        is_gone = True
        try:
            await asyncio.wait(ends, timeout=limit_s + _OVERDUE_S, return_when=asyncio.FIRST_COMPLETED)
            is_gone = departure.done()
        finally:
            if isinstance(waiting, Hold):
                self._engine.sessions.lost(waiting.session, self, monotonic())  # does nothing if it has been answered
            answered, self._outcome = self._outcome, asyncio.get_running_loop().create_future()
            outcome = answered.result() if answered.done() else None
            if outcome is None:
                self._outcome.cancel()  # an outcome that comes from now on is returned to the engine at once
            elif is_gone and not (isinstance(outcome, AwaitHook) or self._may_be_read(outcome)):
                self._give_back(outcome)
                outcome = None
        if outcome is None and not is_gone:
            raise TimeoutError("a request was not answered by its deadline")
        return outcome

    def _may_be_read(self, outcome: Outcome) -> bool:
        """Whether a peer that has ended its stream is to be sent an outcome: a reply that only it can miss.

        Of Halley's own host it is known that the peer may read on, and that nothing is raised if it cannot.
        """
        is_of_session = isinstance(outcome, Reply) and (outcome.events or outcome.answers_connect)
        return isinstance(outcome, Reply) and not is_of_session and self._host is not None

    def _give_back(self, outcome: Outcome) -> None:
        """Return an outcome to the engine because the peer has disconnected."""
        if isinstance(outcome, Reply):
            self._engine.sessions.take_back(outcome)
        elif isinstance(outcome, Hold):
            self._engine.sessions.lost(outcome.session, self, monotonic())

    async def respond(self, reply: Reply, headers: list[Header], body: bytes) -> None:
        """Send a response, and report to the engine whether it was written."""
        # Halley's own host cuts a peer that reads nothing; a foreign one may wait forever.
        limit_s = self._engine.broker.limits.write_s if self._host is None else None
        self._engine.sessions.delayed(reply, monotonic())
        try:
            async with asyncio.timeout(limit_s):
                await respond(self.send, reply.status, headers, body)
        except TimeoutError:
            self._engine.broker.hits["write_s"] += 1
            self._settled(reply, is_written=False)
            return
        except BaseException:
            self._settled(reply, is_written=False)
            raise
        if self._host is None:
            self._settled(reply, is_written=True)
        else:
            self._host.settle(lambda is_written: self._settled(reply, is_written=is_written))

    def _settled(self, reply: Reply, *, is_written: bool) -> None:
        self._engine.sessions.settle_delayed(reply, monotonic(), is_written=is_written)


async def respond(send: Send, status: int, headers: list[Header], body: bytes, kind: str = "http.response") -> None:
    """Send one complete response; `kind` is the prefix of the ASGI events' names."""
    length = (b"content-length", b"%d" % len(body))
    start: dict[str, Any] = {"type": f"{kind}.start", "status": status, "headers": [*headers, length]}
    await send(start)
    await send({"type": f"{kind}.body", "body": body})
