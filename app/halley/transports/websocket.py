"""WebSockets: where they reach a protocol, the checks of a request that opens one, and foreign ASGI servers.

Halley's own host (`host/websocket.py`) and foreign ones share the checks and the responses. A page's scripts may open a
WebSocket to any server without a preflight, so the Origin must be checked here (S25).

A foreign server does the framing. Messages go through `send`, one at a time, which waits for a slow peer. So the engine
is paused as soon as a message waits here; what it sends nevertheless is bounded by its own check of the backlog.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from starlette.types import Receive, Scope, Send

from halley.protocols.contract import ABNORMAL, Close, Engine, Link, WebSocketService, WireProtocol
from halley.settings import Limits
from halley.transports.guard import Guard, Rejection
from halley.transports.head import Head, Header, raw_path, route_path
from halley.transports.middleware import GuardMiddleware, Note, reject
from halley.transports.waits import outcome_of

_REASON_BYTES = 123
_TOO_BIG = 1009
UPGRADE = ((b"upgrade", b"websocket"), (b"connection", b"upgrade"))

TURN_S = 0.01
"""How long one peer's messages are taken in one turn; the rest waits until the other peers have had their turn."""


@dataclass(frozen=True, slots=True)
class WebSocketRoute:
    """A protocol's WebSockets: how they reach it (`service`), and the guard of their opening requests."""

    protocol: WireProtocol
    service: WebSocketService
    guard: Guard

    def matches(self, path: str) -> bool:
        """Whether a path is one of the route's."""
        return path.removesuffix("/") in self.service.paths

    def check_head(self, head: Head) -> None:
        """Check that a head, with its path as it was sent, has what the engine needs. Raises `Rejection`."""

    def connect(self, link: Link, head: Head, now: float) -> Engine:
        """Make the engine for a WebSocket that was accepted."""
        return self.protocol.connect(link, head, now)

    def choose(self, offered: Iterable[str]) -> str:
        """The first of the offered subprotocols that the route has. Raises `Rejection`."""
        for name in offered:
            if name in self.service.subprotocols:
                return name
        raise self._nothing_in_common()

    def _nothing_in_common(self) -> Rejection:
        return Rejection(400, f"no common subprotocol; expected one of {', '.join(self.service.subprotocols)}")


def check(head: Head, headers: Sequence[Header], route: WebSocketRoute, target: bytes = b"/") -> str:
    """Check a request that opens a WebSocket, and choose one of its subprotocols. Raises `Rejection`.

    `target` is the request's as it was sent, which may name a host (`Guard.check_names`).
    """
    route.guard.check_names(headers, target)
    route.guard.check_origin(head)
    route.check_head(head)
    offered = [value for name, value in headers if name == b"sec-websocket-protocol"]
    return route.choose(name.strip() for names in offered for name in names.decode("latin-1").split(","))


class Endpoint:
    """A protocol as clients reach it: an ASGI application for its paths, with the guard of all requests to them.

    `route` is how WebSockets reach the protocol, if they do; Halley's own host serves them itself by it.
    """

    guard: Guard
    route: WebSocketRoute | None = None

    def matches(self, path: str) -> bool:
        """Whether a path is one of the protocol's."""
        raise NotImplementedError

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request or a WebSocket at one of its paths."""
        raise NotImplementedError

    def begin(self, now: float) -> None:
        """Accept connections from now on: the server starts, or starts again after it has drained."""

    def sweep(self, now: float) -> bool | None:
        """Handle the deadlines of connections that the transport keeps itself; True if there are more."""

    def end_waits(self, now: float) -> None:
        """End what still waits at the end of the drain."""


def reason_bytes(reason: str) -> bytes:
    """The reason of a close frame in UTF-8, cut to the 123 bytes for which it has room."""
    return reason.encode()[:_REASON_BYTES].decode(errors="ignore").encode()  # not cut in the middle of a character


class WebSocketEndpoint(Endpoint):
    """The endpoint of a protocol that is reached by WebSockets alone."""

    route: WebSocketRoute

    def __init__(self, route: WebSocketRoute, guard: Guard, note: Note, limits: Limits) -> None:
        """`guard` is for requests that open no WebSocket."""
        self.route = route
        self.guard = route.guard
        self._note = note
        self._limits = limits
        self._guarded = GuardMiddleware(_turn_away, guard, note, "GET")

    def matches(self, path: str) -> bool:
        """Whether a path is one of the protocol's."""
        return self.route.matches(path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a WebSocket or a request at one of its paths."""
        await (self._serve_socket if scope["type"] == "websocket" else self._guarded)(scope, receive, send)

    async def _serve_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        await serve_socket(self.route, self._limits, self._note, scope, receive, send)


async def serve_socket(
    route: WebSocketRoute, limits: Limits, note: Note, scope: Scope, receive: Receive, send: Send
) -> None:
    """Serve one WebSocket of a route from its opening request to its end."""
    if (await receive())["type"] != "websocket.connect":
        return
    head = Head.of(scope)
    try:
        if not route.matches(route_path(scope)):
            raise Rejection(403, "this path does not accept WebSockets")
        head.path = raw_path(scope)
        subprotocol = check(head, scope["headers"], route)
    except Rejection as rejection:
        note(rejection, head)
        await reject(scope, send, rejection)
        return
    await send({"type": "websocket.accept", "subprotocol": subprotocol or None})
    await _AsgiWebSocket(head, subprotocol, route, limits, send).serve(receive)


async def _turn_away(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise Rejection(426, "this path accepts only WebSockets", headers=UPGRADE)


class _Text(bytes):
    """A text message that waits: a copy, since a result of orjson keeps kilobytes behind its end."""

    __slots__ = ()


class _Binary(bytes):
    """A binary message that waits, also a copy."""

    __slots__ = ()


class _AsgiWebSocket:
    """One WebSocket; the engine's `Link`."""

    kind = "asgi"
    text, binary = _Text, _Binary

    def __init__(self, head: Head, subprotocol: str, route: WebSocketRoute, limits: Limits, send: Send) -> None:
        self.subprotocol = subprotocol
        self._head = head
        self._route = route
        self._limits = limits
        self._send = send
        self._waiting: list[bytes] = []
        self._close: Close | None = None
        self._news = asyncio.Event()
        self._is_paused = False  # the engine is
        self._is_over = False  # nothing more is read, nor accepted from the engine
        self._engine: Engine
        self.backlog_bytes = 0

    def write(self, outcome: list[bytes] | Close) -> None:
        """Send messages to the peer; a `Close` ends the WebSocket after them. See `Link`."""
        if self._is_over:
            return
        if isinstance(outcome, Close):
            self._close, self._is_over = outcome, True
            outcome = outcome.frames
            if self._close.code == ABNORMAL:
                self._waiting.clear()
        self._waiting += outcome
        self.backlog_bytes += sum(map(len, outcome))
        self._news.set()
        if not (self._is_paused or self._is_over):
            self._is_paused = True
            self._engine.paused()

    async def serve(self, receive: Receive) -> None:
        """Read and write until either side has ended it."""
        self._engine = self._route.connect(self, self._head, monotonic())
        ends = [asyncio.ensure_future(work) for work in (self._read(receive), self._write())]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._is_over = True
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
            self._engine.lost(monotonic())
            self._waiting.clear()
            del self._engine  # it refers to this: else both would wait for the cyclic collector

    async def _read(self, receive: Receive) -> None:
        """Return when the peer has disconnected."""
        began = monotonic()
        while (event := await receive())["type"] == "websocket.receive":
            for message in () if self._is_over else self._messages(event):
                if monotonic() - began > TURN_S:
                    await asyncio.sleep(0)
                    began = monotonic()
                self._engine.receive(message, monotonic())

    def _messages(self, event: Any) -> Iterable[Any]:
        """The engine's messages in one WebSocket message; none if it is too long."""
        data, text = event.get("bytes"), event.get("text")
        message: bytes = text.encode() if data is None else data
        if len(message) > self._route.service.message_bytes:
            self.write(Close([], _TOO_BIG, "message too big"))
            return ()
        return self._engine.split(message, monotonic(), is_binary=data is not None)

    async def _write(self) -> None:
        """Return when the close has been written, or the peer takes nothing any more."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._waiting:
                frames, self._waiting = self._waiting, []
                for frame in frames:
                    if not await self._is_sent({"type": "websocket.send", **_content_of(frame)}):
                        return
                    self.backlog_bytes -= len(frame)
            if self._close is not None and self._close.code != ABNORMAL:
                reason = reason_bytes(self._close.reason).decode()
                await self._is_sent({"type": "websocket.close", "code": self._close.code, "reason": reason})
            if self._close is not None:
                return
            self._is_paused = False
            self._engine.resumed(monotonic())

    async def _is_sent(self, event: dict[str, object]) -> bool:
        """Whether an event could be sent: the peer is connected, and reads."""
        _, error = await outcome_of(
            self._send(event), self._limits.write_s
        )  # servers raise different ones for a lost peer
        return error is None


def _content_of(frame: bytes) -> dict[str, object]:
    return {"bytes": bytes(frame)} if isinstance(frame, _Binary) else {"text": frame.decode()}
