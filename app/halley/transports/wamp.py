"""The endpoint of WAMP: serves all requests for one of its paths, over WebSockets or by long-polling.

Long-polling is what autobahn-js uses where WebSockets do not get through. `POST <path>/open` returns the name of a
transport, a secret; below it are `send`, `receive` and `close`. autobahn-js reads a response with 200, takes 204 for
"nothing", and any other status for the end of the transport: so after a receive has fetched the engine's last message
the response is 404. Without batches it takes one message from each receive.

A receive that a newer one replaces ends empty. The messages of a receive that ended before its response was written are
sent with the next.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import monotonic
from typing import Any, Final, NamedTuple

import orjson

from halley.broker.aging import Round, TimeoutQueue
from halley.broker.broker import Broker
from halley.protocols.contract import Close, Context, Pings, WebSocketService, WireProtocol
from halley.protocols.wamp.serializers import SUBPROTOCOLS, is_batched, serializer_of
from halley.settings import Settings, Wamp
from halley.transports.exchange import Exchange, HeadOf, Note, fail, shutting_down
from halley.transports.guard import Guard, Rejection
from halley.transports.head import JSON, RETRY_AFTER, UNCACHED, Head, Header, Headers
from halley.transports.relay import Relay, pass_on
from halley.transports.routes import ProtocolEndpoint, Route
from halley.transports.websocket import TURN_S, UPGRADE, WebSocketRoute

_CHECKS = 4
"""Looks at each peer in one `ping_s`."""

_ID_BYTES = 32

_CHARGED: Final = "wamp poll"
"""What accounts are charged for each of these connections (`broker/census.py`); no protocol has this name."""

_NOTHING: Final = Headers(*UNCACHED)
_TEXT: Final = Headers(JSON, *UNCACHED)
_BINARY: Final = Headers((b"content-type", b"application/octet-stream"), *UNCACHED)


class Verb(NamedTuple):
    """What a request below one of the paths asks for: of the transport `name`, or to open one."""

    name: str
    verb: str


def _copied(message: bytes) -> bytes:
    """A message that waits without a frame: a copy, since a result of orjson keeps kilobytes behind its end."""
    return bytes(memoryview(message))


class Poll:
    """One long-poll connection: a `Link` that keeps the engine's messages until the peer fetches them.

    `engine` is its engine, `account` that of the peer's address (`addresses.py`), and `receiver` the receive that
    waits, which `answer` answers. The messages that a receive takes must be settled by `written` or `put_back`: if a
    receive died before its response was written, the next one gets them.
    """

    kind = "poll"
    text = binary = staticmethod(_copied)

    def __init__(
        self,
        protocol: WireProtocol,
        subprotocol: str,
        context: Context,
        account: str | None,
        now: float,
        answer: Callable[[Poll], None],
    ) -> None:
        """Connect to `protocol`, by a request to open the connection; `account` is what it is charged to."""
        self.subprotocol = subprotocol
        self.is_binary = serializer_of(subprotocol).is_binary
        self._is_batched = is_batched(subprotocol)
        self.account = account
        self.backlog_bytes = 0
        self.received_at = now  # the latest receive of the peer, or when the response to it was written
        self.receiver: Exchange | None = None
        self._answer = answer
        self.is_ending = False  # the engine has sent its last message
        self._waiting: deque[bytes] = deque()
        self._is_paused = False  # the engine is
        self._is_settled = True  # what was taken last has been written
        self._is_lost = False  # the engine has been notified that the peer is lost
        self.engine = protocol.connect(self, context, now)

    def write(self, outcome: list[bytes] | Close) -> None:
        """Keep messages for the peer; a `Close` ends the connection after them. See `Link`."""
        if self.is_ending or self._is_lost:
            return
        if isinstance(outcome, Close):
            self.is_ending = True
            outcome = outcome.frames
        self._waiting.extend(outcome)
        self.backlog_bytes += sum(map(len, outcome))
        if not (self._is_paused or self.is_ending):
            self._is_paused = True
            self.engine.paused()
        self._answer_receiver()

    @property
    def has_output(self) -> bool:
        """Whether a receive can be answered immediately."""
        return self._is_settled and (bool(self._waiting) or self.is_ending or self._is_lost)

    @property
    def is_over(self) -> bool:
        """Whether the connection has ended, with nothing left to fetch."""
        return self._is_lost or (self.is_ending and self._is_settled and not self._waiting)

    @property
    def is_awaited(self) -> bool:
        """Whether it is the peer's turn to send a receive: none waits, and no response is on its way to it."""
        return self.receiver is None and self._is_settled

    def take(self) -> list[bytes]:
        """Take the messages for one receive: one, or all that wait if the subprotocol is batched; may be empty.

        It is empty until the messages taken before are settled by `written` or `put_back`, to keep their order.
        """
        if not (self._waiting and self._is_settled):
            return []
        taken = [self._waiting.popleft() for _ in range(len(self._waiting) if self._is_batched else 1)]
        self.backlog_bytes -= sum(map(len, taken))
        self._is_settled = False
        return taken

    def put_back(self, taken: list[bytes]) -> None:
        """Put back the messages of a receive that ended before its response was written."""
        self._is_settled = True
        self.received_at = monotonic()
        if not self._is_lost:
            self._waiting.extendleft(reversed(taken))
            self.backlog_bytes += sum(map(len, taken))
            self._answer_receiver()

    def written(self) -> None:
        """Note that the messages taken last have been written to the peer."""
        self._is_settled = True
        self.received_at = monotonic()
        if self._waiting or self.is_over:
            self._answer_receiver()
        else:
            self._is_paused = False
            self.engine.resumed(monotonic())

    def lose(self, now: float) -> None:
        """End the connection: the peer has closed it or has timed out."""
        if not self._is_lost:
            self._is_lost = True
            self._waiting.clear()
            self.backlog_bytes = 0
            self.engine.lost(now)
            self._answer_receiver()

    def _answer_receiver(self) -> None:
        if self.receiver is not None and self.has_output:
            self._answer(self)


class WampEndpoint(ProtocolEndpoint):
    """The endpoint of WAMP: its WebSockets, and all its long-poll connections.

    An account has as many of these at most as it may have sessions, whether they have one or not. In a cluster `relay`
    passes on requests of connections that another node has.
    """

    def __init__(
        self,
        protocol: WireProtocol,
        guard: Guard,
        note: Note,
        settings: Settings,
        broker: Broker,
        node_id: str = "",
        relay: Relay | None = None,
    ) -> None:
        self.sockets = _route(protocol, guard, settings.wamp)
        self._guard = guard
        self._note = note
        self._limits = settings.limits
        self._account_of = broker.account_of
        self._census = broker.census
        self._options = settings.wamp
        self._relay = relay
        self._node_id = node_id  # the names of transports begin with it
        self._polls: dict[str, Poll] = {}
        self._round: Round[str] = Round()
        self._receiving: TimeoutQueue[Poll] = TimeoutQueue(settings.wamp.poll_s)
        self._is_draining = False  # the server drains

    def routes(self) -> list[Route]:
        """Return the routes of WAMP: its paths, where there are only WebSockets, and below each of them its polls."""
        paths = self.sockets.service.paths
        at = [
            Route(each, self, self._guard, ("GET", "POST", "OPTIONS"), has_below=False, sockets=self.sockets)
            for path in paths
            for each in (path, f"{path}/")
        ]
        return [*at, *(Route(path, self, self._guard, ("POST", "OPTIONS"), sockets=self.sockets) for path in paths)]

    def prepare(self, head: Head, headers: Sequence[Header]) -> Verb:  # noqa: ARG002 - Endpoint's form
        """Read what a path asks for. Raises `Rejection`, also for a transport that nobody has (404)."""
        path = head.own_path
        mounts = [mount for mount in self.sockets.service.paths if f"{path}/".startswith(f"{mount}/")]
        below = path.removeprefix(max(mounts, key=len)).strip("/")
        name, _, verb = below.partition("/")
        self.hide(head)
        if not below:
            text = "this path accepts only WebSockets; long-polling begins at /open below it"
            raise Rejection(426, text, headers=UPGRADE)
        if verb not in ("send", "receive", "close") and (name, verb) != ("open", ""):
            raise _unknown()
        asked = Verb(name, verb)
        if verb and name not in self._polls:
            self._node_of(asked)
        return asked

    def hide(self, head: Head) -> None:
        """Leave only what a request asks for: the name of a transport is a secret."""
        head.path = head.path.rpartition("/")[2]

    def serve(self, exchange: Exchange, prepared: Verb, body: bytes, head: HeadOf) -> None:
        """Serve a request: `open`, or `send` and the like of a transport. Raises `Rejection`."""
        name, verb = prepared
        if len(body) > self.sockets.service.message_bytes:
            raise Rejection(413, "message too large", limit="message_bytes")
        poll = self._polls.get(name)
        if not verb:
            self._open(exchange, body, head())
        elif poll is None:
            self._pass_on(exchange, prepared, body, head)
        elif verb == "send":
            self._send(exchange, poll, body, head)
        elif verb == "receive":
            self._receive(exchange, poll)
        else:
            self._forget(name, poll, monotonic())
            exchange.respond(204, _NOTHING)

    def sweep(self, now: float) -> bool:
        """End receives that have waited long enough, and forget connections without one for `poll_gone_s`.

        One that is over is kept as long: autobahn-js closes it then, and waits forever if that is answered with 404.
        True if there are more to look at.
        """
        for poll in list(self._receiving.overdue(now)):
            self._end_receive(poll)
        for name in self._round.piece(self._polls):
            known = self._polls.get(name)
            if known is None:
                continue
            if known.is_over:
                known.lose(now)
            if known.is_awaited and now - known.received_at > self._options.poll_gone_s:
                self._forget(name, known, now)
        return len(self._round) > 0 or self._receiving.has_overdue(now)

    def begin(self, now: float) -> None:
        """Accept connections from now on, without those of an earlier run."""
        self._is_draining = False
        for name, poll in list(self._polls.items()):
            self._forget(name, poll, now)

    def end(self, now: float) -> None:
        """End all waiting receives because the server drains; the engines' last messages can still be fetched."""
        self._is_draining = True
        for poll in list(self._polls.values()):
            if poll.receiver is not None:
                poll.lose(now)

    def _pass_on(self, exchange: Exchange, asked: Verb, body: bytes, head: HeadOf) -> None:
        """Have the node that has a transport respond, if there may be one. Raises `Rejection`."""
        relay, node = self._node_of(asked)
        pass_on(relay, node, exchange, body, head, self._note, _raise_unknown, is_poll=asked.verb == "receive")

    def _node_of(self, asked: Verb) -> tuple[Relay, str]:
        relay = self._relay
        node = None if relay is None else relay.node_of(asked.name, self._options.poll_gone_s)
        if relay is None or node is None:
            raise _unknown()
        return relay, node

    def _open(self, exchange: Exchange, body: bytes, head: Head) -> None:
        if self._is_draining:
            raise shutting_down()
        subprotocol = self.sockets.choose(_offered(body))
        account = self._account_of(head.address)
        self._admit(account)
        name, now = self._node_id + secrets.token_urlsafe(_ID_BYTES), monotonic()
        self._polls[name] = Poll(self.sockets.protocol, subprotocol, head, account, now, self._answer)
        self._census.charge(account, _CHARGED)
        exchange.respond(200, _TEXT, orjson.dumps({"protocol": subprotocol, "transport": name}))

    def _admit(self, account: str | None) -> None:
        """Check that the limits allow one more connection, before any HELLO. Raises `Rejection` (503)."""
        limit = ""
        if len(self._polls) >= self._options.polls:
            limit = "polls"
        elif self._census.charged(account, _CHARGED) >= self._limits.sessions_per_address:
            limit = "sessions_per_address"
        if limit:
            raise Rejection(503, "too many connections", headers=(RETRY_AFTER,), limit=limit)

    def _send(self, exchange: Exchange, poll: Poll, body: bytes, head: HeadOf) -> None:
        if poll.is_over:
            raise _unknown()
        now = monotonic()
        messages = iter(() if poll.is_ending else poll.engine.split(body, now, is_binary=poll.is_binary))
        if self._is_done(poll, messages):
            exchange.respond(204, _NOTHING)
        else:
            exchange.run(self._finish_send(exchange, poll, messages), head)

    def _is_done(self, poll: Poll, messages: Iterator[Any]) -> bool:
        """Have the engine receive messages for one turn; whether that were all."""
        began = monotonic()
        for message in messages:
            poll.engine.receive(message, monotonic())
            if monotonic() - began > TURN_S:
                return False
        return True

    async def _finish_send(self, exchange: Exchange, poll: Poll, messages: Iterator[Any]) -> None:
        is_done = False
        while not is_done:
            await asyncio.sleep(0)  # others have their turn
            is_done = self._is_done(poll, messages)
        exchange.respond(204, _NOTHING)

    def _receive(self, exchange: Exchange, poll: Poll) -> None:
        """Answer with the messages that wait, or wait for some."""
        poll.received_at = now = monotonic()
        if poll.receiver is not None:
            self._end_receive(poll)
        if self._is_draining and not poll.has_output:
            poll.lose(now)
        poll.receiver = exchange
        if poll.has_output:
            self._answer(poll)
        elif exchange.is_over:
            self.lost(exchange, poll)
            exchange.leave()
        else:
            exchange.waiting = poll
            self._receiving.add(poll, now)

    def _answer(self, poll: Poll) -> None:
        """Answer the receive of a connection that has news."""
        exchange = self._take_receiver(poll)
        taken = poll.take()
        if taken:
            settle = partial(_settle, poll, taken)
            if exchange.respond(200, _BINARY if poll.is_binary else _TEXT, b"".join(taken)):
                settle(True)  # noqa: FBT003 - the callback's one meaning
            else:
                exchange.when_written(settle)
        elif poll.is_over:
            hidden = Head("POST", "receive", b"", {}, *exchange.source)  # the name of its transport is a secret
            fail(exchange, _unknown(), self._note, lambda: hidden)
        else:
            exchange.respond(204, _NOTHING)

    def _end_receive(self, poll: Poll) -> None:
        """End a receive with nothing: a newer one replaces it, or it has waited for `poll_s`."""
        self._take_receiver(poll).respond(204, _NOTHING)

    def _take_receiver(self, poll: Poll) -> Exchange:
        exchange, poll.receiver = poll.receiver, None
        assert exchange is not None
        exchange.waiting = None
        poll.received_at = monotonic()
        self._receiving.forget(poll)
        return exchange

    def lost(self, exchange: Exchange, waiting: Any) -> None:
        """Note that the peer of a receive has gone, or of a request that another node answers."""
        if not isinstance(waiting, Poll):
            waiting.settle(False)  # noqa: FBT003 - the callback's one meaning
        elif waiting.receiver is exchange:
            self._take_receiver(waiting)

    def _forget(self, name: str, poll: Poll, now: float) -> None:
        del self._polls[name]
        self._census.discharge(poll.account, _CHARGED)
        poll.lose(now)


def _route(protocol: WireProtocol, guard: Guard, options: Wamp) -> WebSocketRoute:
    service = WebSocketService(
        tuple(path.rstrip("/") for path in options.paths),
        dict.fromkeys(SUBPROTOCOLS, Pings(options.ping_s, options.pong_s)),
        options.message_bytes,
        options.pings_per_s,
        options.kill_s,
        options.ping_s / _CHECKS,
    )
    return WebSocketRoute(protocol, service, guard)


def _unknown() -> Rejection:
    return Rejection(404, "no such transport")


def _offered(body: bytes) -> list[str]:
    """The subprotocols in the body of an `open`. Raises `Rejection`."""
    try:
        asked = orjson.loads(body)
    except orjson.JSONDecodeError:
        asked = None
    names = asked.get("protocols") if isinstance(asked, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise Rejection(400, 'the body must be {"protocols": [...]}')
    return names


def _settle(poll: Poll, taken: list[bytes], is_written: bool) -> None:  # noqa: FBT001 - as `Exchange.when_written` calls it
    if is_written:
        poll.written()
    else:
        poll.put_back(taken)


def _raise_unknown() -> None:
    raise _unknown()
