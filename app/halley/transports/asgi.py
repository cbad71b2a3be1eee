"""Any ASGI server as a maker of exchanges: its requests, its WebSockets, and responses that stay open.

A server knows less of a connection than Halley's own host (`exchange.py` has the table). A peer that disconnects is
noticed while its request waits; a response counts as written when the server has taken it, which a peer that reads
nothing has `write_s` for.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from time import monotonic
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from halley import telemetry
from halley.protocols.contract import ABNORMAL, Close, Engine
from halley.settings import Limits
from halley.transports.addresses import Proxies
from halley.transports.bodies import inflated
from halley.transports.exchange import Disconnected, Exchange, HeadOf, ResponseLink, fail
from halley.transports.guard import TEXT_HEADERS, Rejection, check_framing
from halley.transports.head import BODILESS, CLOSE, CONTENT_LENGTH, Head, Header, Headers, raw_path
from halley.transports.routes import Admitted, Routes
from halley.transports.waits import close_unawaited, outcome_of
from halley.transports.websocket import TURN_S, WebSocketRoute, check, reason_bytes

_OVERDUE_S = 60.0
"""A request that waits this long past its deadline will never be answered: better an error than no end at all."""

_TOO_BIG: Final = 1009


class AsgiServer:
    """Serves the requests of any ASGI server by these `routes`; `patience_s` is how long a request may wait.

    `hits` counts how often each limit was reached, by its setting.
    """

    def __init__(self, routes: Routes, proxies: Proxies, limits: Limits, hits: Counter[str], patience_s: float) -> None:
        self.routes = routes
        self.limits = limits
        self.hits = hits
        self._proxies = proxies
        self._patience_s = patience_s + _OVERDUE_S

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request from its head to the end of its response."""
        self._proxies.set_client(scope)
        head = Head.of(scope)
        try:
            check_framing(scope.get("http_version", ""), scope["headers"])
            admitted = self.routes.admit(head, scope["headers"])
            has_body = head.method == "POST" and admitted.endpoint.takes_body
            body = await read_body(receive, self.limits) if has_body else b""
            if admitted.is_gzip:
                body = inflated(body, self.limits.body_bytes)
        except Disconnected:
            return
        except Rejection as rejection:
            self.routes.note(rejection, head)
            await reject(scope, send, rejection)
            return
        exchange = AsgiExchange(self, scope, receive, send, head, admitted)
        try:
            admitted.endpoint.serve(exchange, admitted.prepared, body, lambda: head)
        except Exception as error:  # noqa: BLE001 - after any error the client gets a response
            fail(exchange, error, self.routes.note, lambda: head)
        await exchange.finish(self._patience_s)

    async def serve_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a WebSocket from its opening request to its end; at a path without any, close it."""
        self._proxies.set_client(scope)
        head = Head.of(scope)
        route = self.routes.find(head.own_path)
        if route.sockets is None:
            await send({"type": "websocket.close", "code": 1000})
            return
        try:
            if (await receive())["type"] != "websocket.connect":
                return
            if not route.sockets.matches(head.own_path):
                raise Rejection(403, "this path does not accept WebSockets")
            head.path = raw_path(scope)
            subprotocol = check(head, scope["headers"], route.sockets)
        except Rejection as rejection:
            self.routes.note(rejection, head)
            await reject(scope, send, rejection)
            return
        await send({"type": "websocket.accept", "subprotocol": subprotocol or None})
        await _Socket(head, subprotocol, route.sockets, send, self.limits.write_s).serve(receive)


async def read_body(receive: Receive, limits: Limits) -> bytes:
    """Read a request's body. Raises `Rejection` (413) at the first byte beyond `limits.body_bytes`, `Disconnected`."""
    chunks: list[bytes] = []
    nbytes = 0
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise Disconnected
        chunk = event.get("body", b"")
        nbytes += len(chunk)
        if nbytes > limits.body_bytes:
            raise Rejection(413, "request body too large", closes=True, limit="body_bytes")
        chunks.append(chunk)
        if not event.get("more_body", False):
            return b"".join(chunks)


async def reject(scope: Scope, send: Send, rejection: Rejection) -> None:
    """Respond with a rejection; some ASGI servers can only reject a WebSocket with 403."""
    headers = [*TEXT_HEADERS, *rejection.headers]
    if rejection.closes:
        headers.append(CLOSE)
    if scope["type"] != "websocket":
        await _send_whole(send, rejection.status, headers, rejection.text.encode())
    elif "websocket.http.response" in (scope.get("extensions") or {}):
        await _send_whole(send, rejection.status, headers, rejection.text.encode(), "websocket.http.response")
    else:
        await send({"type": "websocket.close"})


async def _send_whole(
    send: Send, status: int, headers: Iterable[Header], body: bytes, kind: str = "http.response"
) -> None:
    """Send one complete response; `kind` is the prefix of the ASGI events' names."""
    every = [*headers]
    length = (b"content-length", b"%d" % len(body))
    if CONTENT_LENGTH in every:
        every[every.index(CONTENT_LENGTH)] = length
    elif status not in BODILESS:
        every.append(length)
    await send({"type": f"{kind}.start", "status": status, "headers": every})
    await send({"type": f"{kind}.body", "body": body})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class AsgiExchange(Exchange):
    """One request of an ASGI server, whose application waits in `finish`."""

    def __init__(
        self, server: AsgiServer, scope: Scope, receive: Receive, send: Send, head: Head, admitted: Admitted
    ) -> None:
        super().__init__()
        self.endpoint = admitted.endpoint
        self.cors = admitted.cors
        self.source = (head.address, head.scheme)
        self._peer = f"{head.address} {head.port}"
        self._scope = scope
        self._receive = receive
        self._send = send
        self._note = server.routes.note
        self._hits = server.hits
        self._write_s = server.limits.write_s
        self._response: Callable[[], Awaitable[None]] | None = None  # writes it; None while there is none
        self._reports: list[Callable[[bool], None]] = []
        self._is_written: bool | None = None  # None until that is known
        self._is_begun = False
        self._start: dict[str, Any] | None = None  # the head of a response in pieces, until the first
        self._has_ended = asyncio.Event()  # the application need not wait any more
        self._tasks: set[asyncio.Task[None]] = set()

    async def finish(self, patience_s: float) -> None:
        """Return when there has been a response, or will be none."""
        try:
            if not self._has_ended.is_set() and not await self._wait(patience_s):
                self._lose()
            if self._response is not None and not self.is_over:
                await self._response()
                self._settle(is_written=True)
        except TimeoutError:
            self._hits["write_s"] += 1
        except BaseException:
            for task in self._tasks:
                task.cancel()
            self._lose()
            raise
        finally:
            self._settle(is_written=False)
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _wait(self, patience_s: float) -> bool:
        """Wait for the response; False if the peer has gone before."""
        ends = [asyncio.ensure_future(self._has_ended.wait()), asyncio.ensure_future(_disconnected(self._receive))]
        try:
            while not any(end.done() for end in ends):
                await asyncio.wait(ends, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
                if not (self._tasks or any(end.done() for end in ends)):  # a task has deadlines of its own
                    telemetry.fault("request", TimeoutError("a request was not answered by its deadline"))
                    self._lose()
                    self.is_gone = self.is_over = False
                    self.reject(Rejection(500, "internal error"))
                    return True
            return not ends[1].done()
        finally:
            for end in ends:
                end.cancel()

    def _lose(self) -> None:
        self.is_gone = self.is_over = True
        self._settle(is_written=False)
        waiting, self.waiting = self.waiting, None
        if isinstance(waiting, asyncio.Future):
            waiting.cancel()
        elif waiting is not None and self.endpoint is not None:
            self.endpoint.lost(self, waiting)

    def _settle(self, *, is_written: bool) -> None:
        if self._is_written is None:
            self._is_written = is_written
        reports, self._reports = self._reports, []
        for report in reports:
            report(self._is_written)

    # Exchange

    @property
    def peer(self) -> object:
        """The address and port of the peer."""
        return self._peer

    def respond(self, status: int, headers: Headers, body: bytes | None = b"", more: Sequence[Header] = ()) -> bool:
        """Have `finish` send the response."""
        every = [*headers.pairs, *self.cors, *more]
        if body is None:
            self._answer(partial(self._send_as_it_is, status, every, b""))
        else:
            self._answer(partial(_send_whole, self._send, status, every, body))
        return False

    def pass_on(self, status: int, headers: Sequence[Header], body: bytes, whole: bytes = b"") -> bool:  # noqa: ARG002
        """Have `finish` send the response of another node."""
        self._answer(partial(self._send_as_it_is, status, headers, body))
        return False

    def reject(self, rejection: Rejection) -> None:
        """Have `finish` send the rejection, or end what has begun."""
        rejection.add_headers(self.cors)
        if self._is_begun:
            self._has_ended.set()
        else:
            self._answer(partial(reject, self._scope, self._send, rejection))

    def _answer(self, response: Callable[[], Awaitable[None]]) -> None:
        if not self._has_ended.is_set():
            self.waiting = None
            self._response = partial(self._in_time, response)
            self._has_ended.set()

    async def _in_time(self, response: Callable[[], Awaitable[None]]) -> None:
        async with asyncio.timeout(self._write_s):  # a server may wait for ever for a peer that reads nothing
            await response()

    async def _send_as_it_is(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    def when_written(self, report: Callable[[bool], None]) -> None:
        """Report later what becomes of the response, or at once if that is known."""
        if self._is_written is None:
            self._reports.append(report)
        else:
            report(self._is_written)

    def cut(self, reason: str) -> None:
        """Do nothing: an ASGI application cannot close a connection."""

    def leave(self) -> None:
        """End the exchange without a response."""
        self.waiting = None
        self._has_ended.set()

    def run(self, work: Coroutine[Any, Any, None], head: HeadOf) -> asyncio.Task[None]:
        """Run a coroutine; `finish` waits for its end."""
        task = asyncio.get_running_loop().create_task(self._run(work, head))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(partial(close_unawaited, work))
        return task

    async def _run(self, work: Coroutine[Any, Any, None], head: HeadOf) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - after any error the client gets a response
            fail(self, error, self._note, head)

    def begin_response(self, status: int, headers: Headers, more: Sequence[Header] = ()) -> None:
        """Note the head, which is sent before the first piece."""
        self._is_begun = True
        every = [*headers.pairs, *self.cors, *more]
        self._start = {"type": "http.response.start", "status": status, "headers": every}

    async def send(self, piece: bytes) -> None:
        """Send a piece. Raises `Disconnected`, also where the peer has not taken it in `write_s`."""
        start, self._start = self._start, None
        for event in ([] if start is None else [start]) + [_piece(piece)]:
            _, error = await outcome_of(self._send(event), self._write_s)  # servers raise different ones
            if error is not None or self.is_over:
                raise Disconnected

    def end_response(self) -> None:
        """Have `finish` send the end."""
        self._answer(self._send_end)

    async def _send_end(self) -> None:
        if self._start is not None:
            await self._send(self._start)
        await self._send({"type": "http.response.body", "body": b""})

    def stream(self) -> ResponseLink:
        """Make the link for a response that stays open."""
        return _Stream(self._send, self._write_s)

    def begin_stream(self, link: ResponseLink, headers: Headers, more: Sequence[Header], first: bytes) -> None:
        """Have `finish` write the response to its end."""
        assert isinstance(link, _Stream)
        self._response = partial(link.serve, self._receive, [*headers.pairs, *self.cors, *more], first)
        self._has_ended.set()


class _AsgiLink:
    """What an engine writes, through `send`: one message at a time, which waits for a slow peer.

    So the engine is paused as soon as a message waits here; what it sends nevertheless is bounded by its own check of
    the backlog. A peer that takes none for `write_s` is given up.
    """

    subprotocol = ""

    def __init__(self, send: Send, write_s: float) -> None:
        self.engine: Engine | None = None
        self.backlog_bytes = 0
        self._send = send
        self._write_s = write_s
        self._waiting: list[bytes] = []
        self._close: Close | None = None
        self._news = asyncio.Event()
        self._is_paused = False  # the engine is
        self._is_over = False  # nothing more is accepted from the engine

    def write(self, outcome: list[bytes] | Close) -> None:
        """Send messages; a `Close` ends the connection behind them. See `Link`."""
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
            assert self.engine is not None
            self.engine.paused()

    async def run(self, reading: Coroutine[Any, Any, None], writing: Coroutine[Any, Any, None]) -> None:
        """Read and write until either has ended, and notify the engine."""
        ends = [asyncio.ensure_future(work) for work in (reading, writing)]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._is_over = True
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
            engine, self.engine = self.engine, None  # they refer to each other
            if engine is not None:
                engine.lost(monotonic())
            self._waiting.clear()

    async def _write_all(self, events_of: Callable[[list[bytes]], Iterable[tuple[dict[str, Any], int]]]) -> None:
        """Return when all messages before a `Close` are sent, or the peer takes nothing any more.

        `events_of` makes ASGI's events of messages, each with the number of bytes that it sends.
        """
        while True:
            await self._news.wait()
            self._news.clear()
            while self._waiting:
                messages, self._waiting = self._waiting, []
                for event, nbytes in events_of(messages):
                    if not await self._is_sent(event):
                        return
                    self.backlog_bytes -= nbytes
            if self._close is not None:
                return
            self._is_paused = False
            if self.engine is not None:
                self.engine.resumed(monotonic())

    async def _is_sent(self, event: dict[str, Any]) -> bool:
        """Whether an event could be sent: the peer is connected, and reads."""
        _, error = await outcome_of(self._send(event), self._write_s)  # servers raise different ones for a lost peer
        return error is None


class _Stream(_AsgiLink):
    """A response that stays open (`exchange.ResponseLink`)."""

    kind = "plain"

    @staticmethod
    def text(message: bytes) -> bytes:
        """Return a message as it is: the server frames it."""
        return message

    binary = text

    async def serve(self, receive: Receive, headers: list[Header], first: bytes) -> None:
        """Send the head and the first message, then write until either side ends the stream."""
        await self.run(_disconnected(receive), self._write(headers, first))

    async def _write(self, headers: list[Header], first: bytes) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": headers}
        if await self._is_sent(start) and await self._is_sent(_piece(first)):
            await self._write_all(lambda messages: [(_piece(b"".join(messages)), sum(map(len, messages)))])
            if self._close is not None:
                await self._is_sent({"type": "http.response.body", "body": b""})


def _piece(body: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": True}


class _Text(bytes):
    """A text message that waits: a copy, since a result of orjson keeps kilobytes behind its end."""

    __slots__ = ()


class _Binary(bytes):
    """A binary message that waits, also a copy."""

    __slots__ = ()


class _Socket(_AsgiLink):
    """One WebSocket, of which the server does the framing (`protocols.contract.Link`)."""

    kind = "asgi"
    text, binary = _Text, _Binary

    def __init__(self, head: Head, subprotocol: str, route: WebSocketRoute, send: Send, write_s: float) -> None:
        super().__init__(send, write_s)
        self.subprotocol = subprotocol
        self._head = head
        self._route = route

    async def serve(self, receive: Receive) -> None:
        """Read and write until either side has ended it."""
        self.engine = engine = self._route.connect(self, self._head, monotonic())
        await self.run(self._read(receive, engine), self._write())

    async def _read(self, receive: Receive, engine: Engine) -> None:
        """Return when the peer has disconnected."""
        began = monotonic()
        while (event := await receive())["type"] == "websocket.receive":
            for message in () if self._is_over else self._messages(event, engine):
                if monotonic() - began > TURN_S:
                    await asyncio.sleep(0)
                    began = monotonic()
                engine.receive(message, monotonic())

    def _messages(self, event: Any, engine: Engine) -> Iterable[Any]:
        """The engine's messages in one WebSocket message; none if it is too long."""
        data, text = event.get("bytes"), event.get("text")
        message: bytes = text.encode() if data is None else data
        if len(message) > self._route.service.message_bytes:
            self.write(Close([], _TOO_BIG, "message too big"))
            return ()
        return engine.split(message, monotonic(), is_binary=data is not None)

    async def _write(self) -> None:
        """Return when the close has been written, or the peer takes nothing any more."""
        await self._write_all(lambda frames: [(_event_of(frame), len(frame)) for frame in frames])
        close = self._close
        if close is not None and close.code != ABNORMAL:
            reason = reason_bytes(close.reason).decode()
            await self._is_sent({"type": "websocket.close", "code": close.code, "reason": reason})


def _event_of(frame: bytes) -> dict[str, Any]:
    content: dict[str, Any] = {"bytes": bytes(frame)} if isinstance(frame, _Binary) else {"text": frame.decode()}
    return {"type": "websocket.send", **content}
