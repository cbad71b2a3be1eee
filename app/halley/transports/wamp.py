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
from collections.abc import Callable
from time import monotonic

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from halley.broker.aging import Round
from halley.protocols.contract import Close, Context, Pings, WebSocketService, WireProtocol
from halley.protocols.wamp.serializers import SUBPROTOCOLS, is_batched, serializer_of
from halley.settings import Settings, Wamp
from halley.transports.addresses import accounts
from halley.transports.asgi import host_connection
from halley.transports.bodies import Disconnected, disconnected, read_body
from halley.transports.endpoint import shutting_down
from halley.transports.guard import Guard, Rejection
from halley.transports.head import JSON, RETRY_AFTER, UNCACHED, route_path
from halley.transports.middleware import GuardedResponse, GuardMiddleware, Note, head_in
from halley.transports.relay import Relay, is_relayed
from halley.transports.websocket import TURN_S, UPGRADE, WebSocketEndpoint, WebSocketRoute

_CHECKS = 4
"""Looks at each peer in one `ping_s`."""

_ID_BYTES = 32
_BINARY = (b"content-type", b"application/octet-stream")


def _copied(message: bytes) -> bytes:
    """A message that waits without a frame: a copy, since a result of orjson keeps kilobytes behind its end."""
    return bytes(memoryview(message))


class Poll:
    """One long-poll connection: a `Link` that keeps the engine's messages until the peer fetches them.

    `engine` is its engine, `account` that of the peer's address (`addresses.py`). Nothing here waits. The messages that
    a receive takes must be settled by `written` or `put_back`: if a receive died before its response was written, the
    next one gets them.
    """

    kind = "poll"
    text = binary = staticmethod(_copied)

    def __init__(
        self, protocol: WireProtocol, subprotocol: str, context: Context, account: str | None, now: float
    ) -> None:
        """Connect to `protocol`, by a request to open the connection; `account` is what it is charged to."""
        self.subprotocol = subprotocol
        self.is_binary = serializer_of(subprotocol).is_binary
        self._is_batched = is_batched(subprotocol)
        self.account = account
        self.backlog_bytes = 0
        self.received_at = now  # the latest receive of the peer, or when the response to it was written
        self.wake: Callable[[], None] | None = None  # wakes the receive that waits
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
        self._wake_receive()
        if not (self._is_paused or self.is_ending):
            self._is_paused = True
            self.engine.paused()

    @property
    def has_news(self) -> bool:
        """Whether a receive can be answered immediately."""
        return self._is_settled and (bool(self._waiting) or self.is_ending or self._is_lost)

    @property
    def is_over(self) -> bool:
        """Whether the connection has ended, with nothing left to fetch."""
        return self._is_lost or (self.is_ending and self._is_settled and not self._waiting)

    @property
    def is_awaited(self) -> bool:
        """Whether it is the peer's turn to send a receive: none waits, and no response is on its way to it."""
        return self.wake is None and self._is_settled

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
            self._wake_receive()

    def written(self) -> None:
        """Note that the messages taken last have been written to the peer."""
        self._is_settled = True
        self.received_at = monotonic()
        if self._waiting or self.is_over:
            self._wake_receive()
        else:
            self._is_paused = False
            self.engine.resumed(monotonic())

    def lose(self, now: float) -> None:
        """End the connection: the peer has closed it or has timed out."""
        if not self._is_lost:
            self._is_lost = True
            self._waiting.clear()
            self.backlog_bytes = 0
            self._wake_receive()
            self.engine.lost(now)

    def _wake_receive(self) -> None:
        if self.wake is not None:
            self.wake()


class WampEndpoint(WebSocketEndpoint):
    """The endpoint of WAMP: its WebSockets, and all its long-poll connections.

    In a cluster `relay` passes on requests of connections that another node has.
    """

    def __init__(
        self,
        protocol: WireProtocol,
        guard: Guard,
        note: Note,
        settings: Settings,
        node_id: str = "",
        relay: Relay | None = None,
    ) -> None:
        super().__init__(_route(protocol, guard, settings.wamp), guard, note, settings.limits)
        self._mounts = GuardMiddleware(_turn_away, guard, note, "GET", "POST")
        self._below = GuardMiddleware(self._serve, guard, note, "POST")
        self._account_of = accounts((*settings.limits.exempt, *settings.proxies))
        self._options = settings.wamp
        self._relay = relay
        self._node_id = node_id  # the names of transports begin with it
        self._polls: dict[str, Poll] = {}
        self._round: Round[str] = Round()
        self._is_draining = False  # the server drains

    def matches(self, path: str) -> bool:
        """Whether a path is one of WAMP's, or below one."""
        return self._mount_of(path) is not None

    def _mount_of(self, path: str) -> str | None:
        """Which of WAMP's paths a path is or is below; of several the longest, as one can be below another."""
        mounts = [mount for mount in self.route.service.paths if f"{path}/".startswith(f"{mount}/")]
        return max(mounts, key=len, default=None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a WebSocket, or a request below one of the paths: `open`, or a transport with `send` and the like."""
        if scope["type"] == "websocket":
            await self._serve_socket(scope, receive, send)
            return
        path = route_path(scope)
        below = path.removeprefix(self._mount_of(path) or "").strip("/")
        name, _, verb = below.partition("/")
        # A transport's name is a secret: the path that the log has is without it.
        hidden = {**scope, "path": below.rpartition("/")[2], "path_params": {"name": name, "verb": verb}}
        await (self._below if below else self._mounts)(hidden, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        name, verb = request.path_params["name"], request.path_params["verb"]
        poll = self._polls.get(name)
        if name == "open" and not verb:
            response = await self._open(request)
        elif verb not in ("send", "receive", "close"):
            raise _unknown()
        elif poll is None:
            relay = self._relay
            node = None if relay is None else relay.node_of(name, self._options.poll_gone_s)
            if relay is None or node is None:
                raise _unknown()
            body = await self._body(request)
            if not await is_relayed(relay, node, body, scope, receive, send, is_poll=verb == "receive"):
                raise _unknown()
            return
        elif verb == "send":
            response = await self._send(request, poll)
        elif verb == "receive":
            response = await self._receive(request, poll)
        else:
            self._forget(name, poll, monotonic())
            response = _nothing(request)
        await response(scope, receive, send)

    def sweep(self, now: float) -> bool:
        """Forget connections without a receive for `poll_gone_s`; whether there are more to look at.

        One that is over is kept as long: autobahn-js closes it then, and waits forever if that is answered with 404.
        """
        for name in self._round.piece(self._polls):
            poll = self._polls.get(name)
            if poll is None:
                continue
            if poll.is_over:
                poll.lose(now)
            if poll.is_awaited and now - poll.received_at > self._options.poll_gone_s:
                self._forget(name, poll, now)
        return len(self._round) > 0

    def begin(self, now: float) -> None:
        """Accept connections from now on, without those of an earlier run."""
        self._is_draining = False
        for name, poll in list(self._polls.items()):
            self._forget(name, poll, now)

    def end_waits(self, now: float) -> None:
        """End all waiting receives because the server drains; the engines' last messages can still be fetched."""
        self._is_draining = True
        for poll in self._polls.values():
            if poll.wake is not None:
                poll.lose(now)

    async def _open(self, request: Request) -> Response:
        if self._is_draining:
            raise shutting_down()
        offered = _offered(await self._body(request))
        subprotocol = self.route.choose(offered)
        head = head_in(request.scope)
        account = self._account_of(head.address)
        self._admit(account)
        name, now = self._node_id + secrets.token_urlsafe(_ID_BYTES), monotonic()
        self._polls[name] = Poll(self.route.protocol, subprotocol, head, account, now)
        opened = orjson.dumps({"protocol": subprotocol, "transport": name})
        return GuardedResponse(request, opened, JSON, *UNCACHED)

    def _admit(self, account: str | None) -> None:
        """Check that the limits allow one more connection, before any HELLO. Raises `Rejection` (503)."""
        limit = ""
        if len(self._polls) >= self._options.polls:
            limit = "polls"
        elif account is not None:
            of_account = sum(poll.account == account for poll in self._polls.values())
            limit = "sessions_per_address" if of_account >= self._limits.sessions_per_address else ""
        if limit:
            raise Rejection(503, "too many connections", headers=(RETRY_AFTER,), limit=limit)

    async def _send(self, request: Request, poll: Poll) -> Response:
        data = await self._body(request)
        if poll.is_over:
            raise _unknown()
        began = monotonic()
        for message in () if poll.is_ending else poll.engine.split(data, began, is_binary=poll.is_binary):
            if monotonic() - began > TURN_S:
                await asyncio.sleep(0)
                began = monotonic()
            poll.engine.receive(message, monotonic())
        return _nothing(request)

    async def _receive(self, request: Request, poll: Poll) -> Response:
        is_newest = await self._wait(request, poll)
        taken = poll.take() if is_newest else []
        if taken:
            return _Messages(request, poll, taken)
        if poll.is_over:
            raise _unknown()
        return _nothing(request)

    async def _wait(self, request: Request, poll: Poll) -> bool:
        """Wait for messages, at most `poll_s`; False if a newer receive replaces this one. Raises `Disconnected`."""
        await self._body(request)
        poll.received_at = monotonic()
        if poll.wake is not None:
            poll.wake()
        if self._is_draining and not poll.has_news:
            poll.lose(poll.received_at)
        if poll.has_news:
            return True
        news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        departure = asyncio.ensure_future(disconnected(request.receive))

        def wake() -> None:
            if not news.done():
                news.set_result(None)

        poll.wake = wake
        try:
            await asyncio.wait((news, departure), timeout=self._options.poll_s, return_when=asyncio.FIRST_COMPLETED)
            if departure.done():
                raise Disconnected
            return poll.wake is wake
        finally:
            departure.cancel()
            poll.received_at = monotonic()
            if poll.wake is wake:
                poll.wake = None

    async def _body(self, request: Request) -> bytes:
        body = await read_body(request.receive, self._limits)
        if len(body) > self.route.service.message_bytes:
            raise Rejection(413, "message too large", limit="message_bytes")
        return body

    def _forget(self, name: str, poll: Poll, now: float) -> None:
        self._polls.pop(name, None)
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


class _Messages(GuardedResponse):
    """The response to a receive, which reports to the poll whether its messages were written."""

    def __init__(self, request: Request, poll: Poll, taken: list[bytes]) -> None:
        super().__init__(request, b"".join(taken), _BINARY if poll.is_binary else JSON, *UNCACHED)
        self._poll = poll
        self._taken = taken

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        poll, taken = self._poll, self._taken
        try:
            await super().__call__(scope, receive, send)
        except BaseException:
            poll.put_back(taken)
            raise
        connection = host_connection(scope)
        if connection is None:
            poll.written()
        else:
            connection.settle(lambda is_written: poll.written() if is_written else poll.put_back(taken))


def _nothing(request: Request) -> Response:
    return GuardedResponse(request, None, *UNCACHED, status=204)


async def _turn_away(_scope: Scope, _receive: Receive, _send: Send) -> None:
    text = "this path accepts only WebSockets; long-polling begins at /open below it"
    raise Rejection(426, text, headers=UPGRADE)
