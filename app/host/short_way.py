"""The short way: Bayeux' hot requests answered where they are parsed, without a scope, a task or a future for each.

A POST to one of Bayeux' paths goes from the parser's callback through the guard to the engine, and its answer into the
socket in one write. A held connect is nothing but its `Hold` in a slot of the connection object; that the connection is
lost is all there is to watching for its peer. Whatever is unusual about a request (a query, chunks, `Expect`, HTTP/1.0,
another request before it, a head that the guard does not like) goes to the application instead, which serves the same
engine by the same rules and gives the same bytes: the whole wire suite runs over both.
"""

from __future__ import annotations

import asyncio
import re
from time import monotonic
from typing import TYPE_CHECKING, Any

from app import telemetry
from app.host.connection import Connection
from app.host.responses import begin, response
from app.protocols.bayeux.exchanges import Hold, Reply, Wait
from app.transports import long_polling
from app.transports.endpoint import leaving
from app.transports.exchange import TEXT_HEADERS, verdict_on
from app.transports.guard import Rejection
from app.transports.head import Head

if TYPE_CHECKING:
    from app.protocols.bayeux.exchanges import Outcome
    from app.server import House

    Header = tuple[bytes, bytes]

_PLAIN_PATH = re.compile(rb"[A-Za-z0-9/._~-]+")
_OK = begin(200, long_polling.HEADERS)


class ShortWay:
    """What the connections of one server share on it: the house's rooms, and which paths are Bayeux'."""

    def __init__(self, house: House) -> None:
        self.engine = house.engine
        self.endpoint = house.endpoint
        self.guard = house.guard
        self.proxies = house.proxies
        self.body_bytes = house.settings.limits.body_bytes
        self._mounts = frozenset(path.encode() for path in house.settings.bayeux.paths)
        self._below = tuple(mount + b"/" for mount in self._mounts)

    def leads_to(self, url: bytes) -> bool:
        """Whether a request target is one of Bayeux' paths, in plain letters and without a query."""
        return url in self._mounts or (url.startswith(self._below) and _PLAIN_PATH.fullmatch(url) is not None)


class BayeuxConnection(Connection):
    """A connection that serves hot requests itself. To the engine it is the `connection` of each of them."""

    __slots__ = ("_cors", "_head", "_hold", "_way")

    def __init__(self, *arguments: Any, short_way: ShortWay, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._way = short_way
        self._hold: Hold | None = None
        self._head: Head | None = None  # of the request that was taken
        self._cors: tuple[Header, ...] = ()  # what its answer must have

    def _takes(self, fields: dict[bytes, bytes]) -> bool:
        way, parser = self._way, self.parser
        if (
            not way.leads_to(self.url)
            or parser.get_method() != b"POST"
            or b"content-length" not in fields  # chunks have none
            or b"upgrade" in fields
            or b"expect" in fields
            or len(fields) != len(self.headers)
            or not parser.should_keep_alive()
            or (b"connection" in fields and parser.get_http_version() != "1.1")
        ):
            return False
        address = self.address
        scheme: str = self.scheme or "http"
        if address in way.proxies:
            address, scheme = way.proxies.seen_through(address, scheme, self.headers)
        head = Head("POST", self.url.decode(), b"", fields, address, scheme)
        try:
            way.guard.check_host(fields.get(b"host", b""))
            self._cors = way.guard.check(head)
        except Rejection:
            return False
        self._head = head
        return True

    def _serve(self, body: bytes) -> None:
        way, head = self._way, self._head
        assert head is not None
        self._head = self.headers = None  # type: ignore[assignment] # a held connect needs them no more
        try:
            outcome: Outcome = way.engine.receive(way.endpoint.request(head, body, self), monotonic())
            if isinstance(outcome, Wait):
                task = self.loop.create_task(self._go_on_with(outcome, head))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)
            else:
                self._take_outcome(outcome, head)
        except Exception as error:  # noqa: BLE001 - see `_fail`
            self._fail(error, head)

    async def _go_on_with(self, outcome: Outcome, head: Head) -> None:
        """A hook of the program is being waited for; here a task is worth its price."""
        engine = self._way.engine
        try:
            while isinstance(outcome, Wait):
                outcome = engine.resume(outcome, await verdict_on(outcome, engine.options.policy_s), monotonic())
            self._take_outcome(outcome, head)
        except asyncio.CancelledError:  # the server leaves, and its patience is at an end
            reason = leaving()
            self.refuse(reason.status, reason.text, reason.headers)
        except Exception as error:  # noqa: BLE001 - see `_fail`
            self._fail(error, head)

    def _take_outcome(self, outcome: Reply | Hold, head: Head) -> None:
        if isinstance(outcome, Reply):
            self._write(outcome, head.scheme)
        elif self._is_lost or self._has_ended:
            self._way.engine.gone(outcome, monotonic())
        else:
            self._hold = outcome

    def answer(self, reply: Reply | None) -> None:
        """The held connect has its reply; None means that a newer connect makes this connection useless."""
        self._hold = None
        if reply is None:
            self.cut("replaced")
        else:
            self._write(reply, self.scheme or "http")

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer of a held connect may be the one who left."""
        super().connection_lost(exc)
        hold, self._hold = self._hold, None
        if hold is not None:
            self._way.engine.gone(hold, monotonic())  # nothing, if it has been answered

    def _write(self, reply: Reply, scheme: str) -> None:
        engine, body = self._way.engine, reply.body()
        if reply.status == 200 and reply.set_cookie is None and not reply.is_last and not self._cors:
            self.respond(b"%b%d\r\n\r\n%b" % (_OK, len(body), body), closes=False)
        else:
            headers = (*long_polling.HEADERS, *self._cors, *self._way.endpoint.headers(reply, scheme))
            self.respond(response(reply.status, headers, body), closes=reply.is_last)
        if self.has_flushed():
            engine.written(reply)
        else:
            self.settle(lambda is_written: engine.written(reply) if is_written else engine.unwritten(reply))

    def _fail(self, error: Exception, head: Head) -> None:
        """Say why there is no answer: what the request is lacking, or nothing where the fault is ours."""
        if isinstance(error, Rejection):
            telemetry.request_refused(error.status, error.text, head=head)
            rejection = error
        else:
            telemetry.fault("request", error)
            rejection = Rejection(500, "internal error")
        headers = (*TEXT_HEADERS, *rejection.headers, *self._cors)
        self.respond(response(rejection.status, headers, rejection.text.encode()), closes=False)
