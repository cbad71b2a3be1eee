"""Requests of sessions that another node of a cluster has: they are passed on to it, and it responds.

Halley's own host passes them on (`host/relay.py`); this is what the transports know of it. A session's id begins with
four letters of its node. The other node treats the request as if the client had connected to it, so its response goes
to the client as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Protocol

from starlette.types import Receive, Scope, Send

from halley.transports.asgi import host_connection, target_of
from halley.transports.bodies import Disconnected, disconnected
from halley.transports.guard import Rejection
from halley.transports.head import Head, Header
from halley.transports.middleware import head_in


class Answer(NamedTuple):
    """The response of another node, with all of its headers; `whole` are its bytes, if they came in one piece."""

    status: int
    headers: list[Header]
    body: bytes
    whole: bytes = b""


class Failure(Enum):
    """Why a request that was passed on has no response."""

    GONE = "gone"
    """The node does not run any more: its sessions have ended, and it has not seen the request."""
    LOST = "lost"
    """The node has closed the connection without a response, or did not respond in time."""


Outcome = Answer | Failure | Rejection
"""What becomes of a request that is passed on; a `Rejection` is to be the response to it."""


class RelayedRequest(NamedTuple):
    """A request of a client, to be passed on. `target` are its path and query.

    Of several requests of the same `client`, each is passed on over the connection of the one before, if it is free.
    `is_poll`: it only fetches events, so it may come again; then it is answered 503 if the node falls silent.
    """

    target: bytes
    head: Head
    body: bytes
    client: object
    is_poll: bool


class Relaying(Protocol):
    """One request that is being passed on."""

    def settle(self, is_written: bool, /) -> None:  # noqa: FBT001 - as `Socket.settle` calls it
        """Report that the client's kernel has all of the response, or else that the client is gone.

        The other node takes back the events of a response that was not written, and ends a poll that waits.
        """


class Relay(Protocol):
    """Passes on requests to the other nodes of a cluster."""

    def node_of(self, session_id: str, session_s: float) -> str | None:
        """The id of the other node that has a session, if there may be one: it is alive, or was within `session_s`.

        That is how long such a session lives without a request.
        """

    def send(self, node_id: str, request: RelayedRequest, done: Callable[[Outcome], None]) -> Relaying:
        """Pass on a request; `done` is called later, with what has become of it. Raises `Rejection`.

        `done` is called once more, with `LOST`, if the other node takes its response back before it is settled.
        """


async def is_relayed(
    relay: Relay, node: str, body: bytes, scope: Scope, receive: Receive, send: Send, *, is_poll: bool
) -> bool:
    """Have another node respond to a request; False if that node is gone. Raises `Disconnected`, `Rejection`."""
    connection = host_connection(scope)
    result: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def done(outcome: Outcome) -> None:
        if not result.done():
            result.set_result(outcome)
        elif connection is not None:
            connection.cut("relay_lost")

    request = RelayedRequest(target_of(scope), head_in(scope), body, connection or done, is_poll)
    relaying = relay.send(node, request, done)
    departure = asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait((result, departure), return_when=asyncio.FIRST_COMPLETED)
        outcome = result.result() if result.done() else Failure.LOST
        if outcome is Failure.GONE:
            return False
        if isinstance(outcome, Rejection):
            raise outcome
        if not isinstance(outcome, Answer):
            if connection is not None:
                connection.cut("relay_lost")
            raise Disconnected
        await send({"type": "http.response.start", "status": outcome.status, "headers": outcome.headers})
        await send({"type": "http.response.body", "body": outcome.body})
    except BaseException:
        relaying.settle(False)  # noqa: FBT003 - the callback's one meaning
        raise
    finally:
        departure.cancel()
    if connection is None:
        relaying.settle(True)  # noqa: FBT003
    else:
        connection.settle(relaying.settle)
    return True
