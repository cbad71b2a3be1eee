"""One HTTP request and its response: the contract between what serves requests and what makes them of connections.

A request that the guard admits (`routes.py`) reaches its `Endpoint` when all of its body is there, as an `Exchange`.
The endpoint answers at once, or keeps in `waiting` what the answer waits for, or runs a coroutine. It learns whether a
response has left, and when a peer goes that waits. There are two makers of exchanges, which serve the same endpoints:

| | Halley's own connections (`host/http.py`) | any ASGI server (`asgi.py`) |
|---|---|---|
| a response has left | when the kernel has all of it, to the byte | when the server has taken it |
| a peer that ends its stream | is answered, unless something waits for it | is as the server takes it |
| `cut` | aborts the connection | has no effect: the request ends with its peer, or by its deadline |
| a refusal before the body has come | ends the connection, and leaves time to read it | asks the server for that |
| an early hint, an upgrade, `Date` | the connection's | the server's |
| a host in an absolute target | is checked | cannot be seen, or not always |
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

from halley import telemetry
from halley.protocols.bayeux.session import BayeuxSession
from halley.protocols.contract import Close, Engine
from halley.transports.guard import Rejection
from halley.transports.head import RETRY_AFTER, Head, Header, Headers
from halley.transports.subclassing import mypyc_attr

Result = TypeVar("Result")

HeadOf = Callable[[], Head]
"""Makes the head of a request, which is parsed again for it where it was only recognized (`host/repeated.py`)."""

Note = Callable[[Rejection, Head], None]
"""Logs and counts a rejection."""


class Disconnected(Exception):
    """The peer disconnected before its request was complete, or answered."""


class ResponseLink(Protocol):
    """A response that stays open, for an engine (`protocols.contract.Link`), which is to be set as its `engine`."""

    kind: str
    subprotocol: str
    engine: Engine | None

    def text(self, message: bytes) -> bytes:
        """Return a message as it is written."""

    def binary(self, message: bytes) -> bytes:
        """Return a message as it is written: there is one kind."""

    @property
    def backlog_bytes(self) -> int:
        """The number of bytes that were written and are not yet sent."""

    def write(self, output: list[bytes] | Close) -> None:
        """Write messages, each made by `text`; a `Close` ends the response behind them."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Exchange:
    """One request and its response. All is called on the event loop; only what is a coroutine waits.

    endpoint   what serves the request, or writes its response later
    waiting    what the endpoint keeps for a peer that is there, until it has responded: when the peer goes, the
               endpoint's `lost` gets it, or a task is cancelled
    cors       the headers that the guard adds to any response
    source     the client's address, empty if unknown, and its scheme
    is_gone    whether the peer has gone
    is_over    whether it has gone or has ended its stream: then it may read on, or may not, so that nothing is written
               to it which would be lost with it
    """

    __slots__ = ("cors", "endpoint", "is_gone", "is_over", "source", "waiting")

    def __init__(self) -> None:
        self.endpoint: Endpoint | None = None
        self.waiting: Any = None
        self.cors: tuple[Header, ...] = ()
        self.source = ("", "http")
        self.is_gone = False
        self.is_over = False

    @property
    def peer(self) -> object:
        """What has an identity of its own for each connection, where the maker knows connections."""
        raise NotImplementedError

    def respond(self, status: int, headers: Headers, body: bytes | None = b"", more: Sequence[Header] = ()) -> bool:
        """Write the response: `headers`, those of CORS, `more`, and the length of its `body`.

        True if all of it has left; else `when_written` reports whether it does. A body of None is that of a response to
        HEAD whose length is not known.
        """
        raise NotImplementedError

    def respond_array(self, headers: Headers, texts: list[bytes]) -> bool:
        """Respond with 200 and a JSON array of these texts."""
        return self.respond(200, headers, b"[%b]" % b",".join(texts))

    def pass_on(self, status: int, headers: Sequence[Header], body: bytes, whole: bytes = b"") -> bool:
        """Write a response whose headers are complete; `whole` are its bytes as HTTP/1.1 has them, where known."""
        raise NotImplementedError

    def reject(self, rejection: Rejection) -> None:
        """Write the response that a rejection is, unless one has begun: then the connection is cut."""
        raise NotImplementedError

    def when_written(self, report: Callable[[bool], None]) -> None:
        """Call `report(True)` when all that was written has left, and `report(False)` if it never will."""
        raise NotImplementedError

    def cut(self, reason: str) -> None:
        """Close the connection without another byte, where that is possible; `reason` is for the log."""
        raise NotImplementedError

    def leave(self) -> None:
        """End the exchange without a response: its peer has gone."""
        raise NotImplementedError

    def run(self, work: Coroutine[Any, Any, None], head: HeadOf) -> asyncio.Task[None]:
        """Run a coroutine for the request, in a task; what it raises is the response, as `fail` has it.

        It is cancelled if it still runs when the server's grace period ends, and its peer gets 503.
        """
        raise NotImplementedError

    # A body in pieces

    def begin_response(self, status: int, headers: Headers, more: Sequence[Header] = ()) -> None:
        """Write the head of a response whose length is not known."""
        raise NotImplementedError

    async def send(self, piece: bytes) -> None:
        """Write a piece of the body, and return when it has left. Raises `Disconnected`."""
        raise NotImplementedError

    def end_response(self) -> None:
        """End the body. Without that, the client learns that it is not complete."""
        raise NotImplementedError

    # A response that stays open

    def stream(self) -> ResponseLink:
        """Make the link for a response that stays open; it begins with `begin_stream`, or is forgotten."""
        raise NotImplementedError

    def begin_stream(self, link: ResponseLink, headers: Headers, more: Sequence[Header], first: bytes) -> None:
        """Write the head of the response, and its first message if there is one; the rest is the link's.

        If the peer has gone meanwhile, the link's engine learns that.
        """
        raise NotImplementedError

    # Of an engine

    def remember_connect(self, body: bytes, messages: Sequence[dict[str, Any]], session: BayeuxSession) -> None:
        """Note that the request was a connect of this session, which was held: the next one may be the same."""

    def write(self, outcome: Any) -> None:
        """Pass an outcome to the endpoint, whose `write` makes the response."""
        assert self.endpoint is not None
        self.endpoint.write(self, outcome)


@mypyc_attr(allow_interpreted_subclasses=True)
class Endpoint:
    """What serves the requests of some routes. An endpoint that never waits needs `serve` alone."""

    @property
    def takes_body(self) -> bool:
        """Whether it is passed a POST when all of its body is there; else at once, without."""
        return True

    def prepare(self, head: Head, headers: Sequence[Header]) -> Any:
        """Read what `serve` needs from a request's head, before its body has come. Raises `Rejection`.

        `headers` are all of them. The result depends on the head alone, since it is kept for a later request with the
        same. What is refused for something that counts at this moment only is to be refused by `serve`, too.
        """

    def hide(self, head: Head) -> None:
        """Take what is secret out of a head, which is going to be logged."""

    def serve(self, exchange: Exchange, prepared: Any, body: bytes, head: HeadOf) -> None:
        """Serve a request that is complete. What it raises is the response, as `fail` has it."""
        raise NotImplementedError

    def serve_again(self, exchange: Exchange, session_id: str, cookies: tuple[str, ...], message_id: str) -> bool:  # noqa: ARG002
        """Serve a connect of Bayeux that differs from an earlier one only in its id; False if it must be parsed."""
        return False

    def write(self, exchange: Exchange, outcome: Any) -> None:
        """Write what an engine has to say later."""
        raise NotImplementedError

    def lost(self, exchange: Exchange, waiting: Any) -> None:
        """Note that the peer of a request that waits has gone; `waiting` is what the exchange had."""


def fail(exchange: Exchange, error: Exception, note: Note, head: HeadOf) -> None:
    """Respond to a request that could not be served: by a rejection, or with 500, where the peer learns nothing."""
    if isinstance(error, Rejection):
        note(error, head())
        exchange.reject(error)
    elif not isinstance(error, Disconnected):
        telemetry.fault("request", error)
        exchange.reject(Rejection(500, "internal error"))
    else:
        exchange.leave()


def shutting_down() -> Rejection:
    """Return the rejection of a request that still runs when the server's grace period has ended."""
    return Rejection(503, "the server is shutting down", closes=True, headers=(RETRY_AFTER,))


async def while_connected(exchange: Exchange, work: Coroutine[Any, Any, Result]) -> Result:
    """Await `work`, and cancel it if the peer goes meanwhile. Raises `Disconnected` then."""
    if exchange.is_over:
        work.close()
        raise Disconnected
    exchange.waiting = working = asyncio.ensure_future(work)
    try:
        return await working
    except asyncio.CancelledError:
        if exchange.is_over:
            raise Disconnected from None
        raise
    finally:
        exchange.waiting = None


async def respond_by(
    exchange: Exchange,
    status: int,
    headers: Headers,
    pieces: AsyncGenerator[bytes, None],
    more: Sequence[Header] = (),
) -> None:
    """Write a response whose body is made piece by piece, and read piece by piece.

    It ends without its end if a piece cannot be made or its reader has lost the right to it, so that it is not taken
    for complete. Raises `Disconnected`.
    """
    async with aclosing(pieces):
        exchange.begin_response(status, headers, more)
        try:
            async for piece in pieces:
                await exchange.send(piece)
        except (Rejection, TimeoutError):
            exchange.cut("log")
            raise Disconnected from None
        except Disconnected:
            raise
        except Exception as error:  # noqa: BLE001 - after any error the body is not complete
            telemetry.fault("request", error)
            exchange.cut("log")
            raise Disconnected from None
    exchange.end_response()
