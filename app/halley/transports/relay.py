"""Requests of sessions that another node of a cluster has: they are passed on to it, and it responds.

Halley's own host passes them on (`host/relay.py`); this is what the transports know of it. A session's id begins with
four letters of its node. The other node treats the request as if the client had connected to it, so its response goes
to the client as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from time import monotonic
from typing import NamedTuple, Protocol, cast

from halley.protocols.bayeux.outcomes import Misdirected
from halley.protocols.bayeux.relayed import Relayed
from halley.protocols.contract import ABNORMAL, POLICY_VIOLATION, TRY_AGAIN_LATER, Close
from halley.transports.exchange import Exchange, HeadOf, Note, fail
from halley.transports.guard import Rejection
from halley.transports.head import JSON, Head, Header

_OF_OPENING = (b"sec-websocket-", b"traceparent")
"""How the headers begin that are about the request that opens a WebSocket, and not about its messages."""


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

    def report_written(self, is_written: bool, /) -> None:  # noqa: FBT001 - as `when_written` calls it
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


def pass_on(
    relay: Relay,
    node: str,
    exchange: Exchange,
    body: bytes,
    head: HeadOf,
    note: Note,
    gone: Callable[[], None],
    *,
    is_poll: bool,
) -> None:
    """Have another node respond to a request; `gone` is called if that node does not run any more.

    The exchange keeps the `Relaying`, which is to be settled if its peer goes. Raises `Rejection`.
    """
    if exchange.is_over:
        exchange.leave()
        return

    def done(outcome: Outcome) -> None:
        if outcome is Failure.LOST:  # also after the answer, while not all of it is read
            exchange.cut("relay_lost")
            exchange.leave()
            return
        relaying, exchange.waiting = exchange.waiting, None
        if isinstance(outcome, Answer):
            if exchange.pass_on(outcome.status, outcome.headers, outcome.body, outcome.whole):
                relaying.report_written(True)  # noqa: FBT003 - the callback's one meaning
            else:
                exchange.when_written(relaying.report_written)
        elif isinstance(outcome, Rejection):
            fail(exchange, outcome, note, head)
        else:
            try:
                gone()
            except Exception as error:  # noqa: BLE001 - after any error the client gets a response
                fail(exchange, error, note, head)

    known = head()
    exchange.waiting = relay.send(node, RelayedRequest(known.target, known, body, exchange, is_poll), done)


def relay_text(
    relay: Relay, note: Note, misdirected: Misdirected, text: bytes, done: Callable[[Relayed, float], None]
) -> Callable[[bool], None] | Close:
    """Pass on the messages of a WebSocket as the POST that they would be (`protocols.bayeux.socket.Relay`)."""
    request = misdirected.request
    opening = cast(Head, request.context)
    fields = {name: value for name, value in opening.fields.items() if not name.startswith(_OF_OPENING)}
    fields |= [JSON]
    head = Head("POST", opening.path, opening.query_string, fields, opening.address, opening.scheme)
    target = opening.path.encode() + (b"?%b" % opening.query_string if opening.query_string else b"")
    # The connection of a poll is kept apart, since another request may be passed on while it is held.
    client = request.connection if request.is_poll else opening
    try:
        return relay.send(
            misdirected.node,
            RelayedRequest(target, head, text, client, request.is_poll),
            lambda outcome: done(_for_socket(outcome), monotonic()),
        ).report_written
    except Rejection as rejection:
        note(rejection, head)
        return _close_for(rejection.status, rejection.text)


def _for_socket(outcome: Outcome) -> Relayed:
    if outcome is Failure.GONE:
        return None
    if isinstance(outcome, Rejection):
        return _close_for(outcome.status, outcome.text)
    if not isinstance(outcome, Answer):
        return Close([], ABNORMAL, "relay_lost")
    if outcome.status != 200:
        return _close_for(outcome.status, outcome.body.decode("ascii", "replace"))
    return outcome.body


def _close_for(status: int, text: str) -> Close:
    return Close([], TRY_AGAIN_LATER if status == 503 else POLICY_VIOLATION, text)
