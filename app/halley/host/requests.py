"""The requests of one HTTP connection, which are served one after the other, in the order in which they were received.

What was received behind a request that is not answered yet waits: whole requests in a queue, and other bytes unparsed.
The connection goes on with it when all of the response is in the kernel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from uvicorn.server import ServerState

from halley.host.peer import BETWEEN, CHUNKED, HALF_CLOSED, ConnectionWriter
from halley.host.repeated import ProxiedHeads, RememberedRequest, head_of
from halley.host.responses import head_lines
from halley.host.streams import PlainStream, Stream
from halley.host.timeouts import ServerContext
from halley.host.websocket import WebSocket, WebSockets
from halley.protocols.bayeux.session import BayeuxSession
from halley.transports.addresses import Proxies
from halley.transports.bodies import inflated
from halley.transports.exchange import HeadOf, ResponseLink, fail, shutting_down
from halley.transports.guard import Rejection
from halley.transports.head import CLOSE, Head, Header, Headers
from halley.transports.routes import Admitted, Routes
from halley.transports.waits import close_unawaited

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Site:
    """What the connections of one listener serve: its `routes`, and WebSockets by their routes.

    With `remembers` a request with the same head as the one before is not parsed.
    """

    def __init__(self, routes: Routes, proxies: Proxies, *, remembers: bool = True) -> None:
        self.routes = routes
        self.proxies = proxies
        self.remembers = remembers
        self.proxied = ProxiedHeads()
        self.sockets: dict[int, WebSockets] = {}  # by the identity of their route

    def add_sockets(self, sockets: WebSockets) -> None:
        """Let connections become WebSockets of this route."""
        self.sockets[id(sockets.route)] = sockets


class Received:
    """A request whose head was received: what serves it, or why it is refused, and its body so far."""

    __slots__ = (
        "admitted",
        "body",
        "expects_continue",
        "has_chunks",
        "head",
        "is_answered",
        "is_head",
        "keeps_alive",
        "refusal",
        "repeated",
    )

    def __init__(self, head: Head, *, has_chunks: bool, keeps_alive: bool, expects_continue: bool) -> None:
        self.head = head
        self.is_head = head.method == "HEAD"
        self.has_chunks = has_chunks
        self.keeps_alive = keeps_alive
        self.expects_continue = expects_continue
        self.admitted: Admitted | None = None
        self.refusal: Rejection | None = None
        self.repeated: RememberedRequest | None = None
        self.body: bytes | bytearray = b""
        self.is_answered = False  # it was served, or refused, before it was complete

    def add_body(self, piece: bytes) -> None:
        """Append a piece of the body, behind the first."""
        self.body = bytearray(self.body) if isinstance(self.body, bytes) else self.body
        self.body += piece


class Serving(ConnectionWriter):
    """A connection that serves the requests which it has received; a subclass receives them."""

    __slots__ = (
        "_has_served",
        "_is_parsing",
        "_is_proxy",
        "_known",
        "_received",
        "_site",
    )

    def __init__(self, server_state: ServerState, shared: ServerContext, site: Site) -> None:
        super().__init__(server_state, shared)
        self._site = site
        self._is_proxy = False
        self._has_served = False  # at least one whole request was received
        self._known: RememberedRequest | None = None  # the latest request that is remembered
        self._is_parsing = False  # the unparsed bytes are being parsed, now or in a later turn
        self._received: Received | None = None  # the request whose body is being received

    def _serve(self, received: Received) -> None:
        """Have the endpoint serve a request that is complete, or refuse it."""
        if received.expects_continue:
            received.expects_continue = False
            self.transport.write(_CONTINUE)
        self._is_answering = True
        self._is_head, self._has_chunks = received.is_head, received.has_chunks
        self._keeps_alive = received.keeps_alive
        self.repeated = received.repeated
        if received.repeated is not None:
            self._known = received.repeated
        head, admitted, refusal = received.head, received.admitted, received.refusal
        self.source = (head.address, head.scheme)
        if admitted is None:
            assert refusal is not None
            self.cors = ()
            self.reject(refusal)
            return
        self.endpoint, self.cors = admitted.endpoint, admitted.cors
        body = bytes(received.body)

        def make() -> Head:
            return head

        try:
            if admitted.is_gzip:
                body = inflated(body, self.shared.limits.body_bytes)
            admitted.endpoint.serve(self, admitted.prepared, body, make)
        except Exception as error:  # noqa: BLE001 - after any error the client gets a response
            fail(self, error, self._note, make)

    def _serve_repeated(self, data: bytes) -> bool:
        """Serve a request that `data` is the whole of, and whose head is known from an earlier one; else False."""
        if self._is_proxy:
            self._recall(data)
        repeated = self._known
        if repeated is None:
            return False
        if self.repeated is not repeated:  # another request has come after it
            self.repeated, self.cors, self.source = repeated, repeated.cors, repeated.source
            self._is_head, self._has_chunks, self._keeps_alive = False, True, True
        self.endpoint = endpoint = repeated.endpoint
        self._is_answering = True
        try:
            if repeated.session_id:
                message_id = repeated.connect_id(data)
                if message_id is not None and endpoint.serve_again(
                    self, repeated.session_id, repeated.cookies, message_id
                ):
                    return True
            body = repeated.body_of(data)
            if body is not None and len(body) <= self.shared.limits.body_bytes:
                endpoint.serve(self, repeated.prepared, body, partial(self._head_of, data))
                return True
        except Exception as error:  # noqa: BLE001 - after any error the client gets a response
            fail(self, error, self._note, partial(self._head_of, data))
            return True
        self._is_answering = False
        return False

    def _recall(self, data: bytes) -> None:
        """Take what is known of a request from a proxy, which may be any client's."""
        if self._known is None or not self._known.begins(data):
            known = self._site.proxied.recall(self.address, data)
            if known is not None:
                self._known = known
                if not self._has_served:  # the first here; all of its head is known, from another connection
                    self._has_served = True
                    self._set_timeout(None)

    def remember_connect(self, body: bytes, messages: Sequence[dict[str, Any]], session: BayeuxSession) -> None:
        """Remember a connect, if the head of its request may come again (`Exchange.remember_connect`)."""
        if self.repeated is not None:
            self.repeated.remember_connect(body, messages, session)

    def _head_of(self, data: bytes) -> Head:
        return head_of(data, self.source, 0 if self._is_proxy else self.port)

    def run(self, work: Coroutine[Any, Any, None], head: HeadOf) -> asyncio.Task[None]:
        """Run a coroutine in a task that the server waits for when it shuts down (`Exchange.run`)."""
        tasks = self._state.tasks
        task = asyncio.get_running_loop().create_task(self._run(work, head))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        task.add_done_callback(partial(close_unawaited, work))
        return task

    async def _run(self, work: Coroutine[Any, Any, None], head: HeadOf) -> None:
        try:
            await work
        except asyncio.CancelledError:  # the server shuts down, and the grace period has ended
            self.reject(shutting_down())
        except Exception as error:  # noqa: BLE001 - after any error the client gets a response
            fail(self, error, self._note, head)

    def _note(self, rejection: Rejection, head: Head) -> None:
        self._site.routes.note(rejection, head)

    def _go_on(self) -> None:
        """Begin with the next request, if there is one. What is not parsed yet waits until the response is read."""
        if not (self._waiting or self._unparsed or self._stage != BETWEEN or self._closing):
            return
        if self.transport.is_closing():
            return
        while self._waiting and not (self._is_busy() or self.is_gone):
            following, *rest = self._waiting
            if isinstance(following, bytes):
                self._waiting, self._unparsed = (), None
                self._end(following)
                return
            self._waiting = tuple(rest)
            self._serve(following)
        if self.transport.is_closing() or self.is_gone:
            return
        if self._unparsed and not (self._is_busy() or self._is_refused):
            self._parse_unparsed()
        elif self._closing == HALF_CLOSED and not (self._is_busy() or self._is_parsing or self._waiting):
            self.transport.close()
        elif self._stage != BETWEEN:
            self._continue()
            self._choose_timeout()

    @property
    def _is_refused(self) -> bool:
        """Whether what the peer has sent last is refused, and the refusal waits for the responses before it."""
        return bool(self._waiting) and isinstance(self._waiting[-1], bytes)

    def _continue(self) -> None:
        """Ask for the body of a request that waits to be asked, if nothing else is due before (RFC 9110, 10.1.1)."""
        received = self._received
        is_next = not (self._is_answering or self._waiting or self.is_gone)
        if received is not None and received.expects_continue and is_next:
            received.expects_continue = False
            self.transport.write(_CONTINUE)

    def _is_busy(self) -> bool:
        return self._is_answering or self.is_paused

    def _refuse_received(self, rejection: Rejection, *, is_logged: bool = False) -> None:
        """Refuse what is being received, behind the responses that are due before it (RFC 9112, 9.3.2)."""
        if self._is_refused:
            return
        received, self._received = self._received, None
        if received is not None:
            is_head, is_answered = received.is_head, received.is_answered
        else:
            is_head, is_answered = self._parses_head, False
        is_due = self._is_answering or bool(self._waiting)
        if is_due and not (self.is_gone or self.transport.is_closing()):
            self._waiting = (*self._waiting, self._refusal(rejection, is_logged=is_logged, is_head=is_head))
        else:
            self._refuse(rejection, is_logged=is_logged, is_head=is_head, is_begun=is_answered)

    def refuse(self, status: int, text: str, *, limit: str = "") -> None:
        """Refuse the request that is being received; `limit` is the setting that it exceeded (`Requester`)."""
        self._refuse_received(Rejection(status, text, limit=limit))

    def stream(self) -> Stream:
        """Make a stream for the response (`Exchange.stream`)."""
        kind = Stream if self._has_chunks else PlainStream
        return kind(self.address, self.shared, self._state.connections)

    def begin_stream(self, link: ResponseLink, headers: Headers, more: Sequence[Header], first: bytes) -> None:
        """Make the connection the stream: write the head of its response, and its first message."""
        assert isinstance(link, Stream)
        if self.is_over or self.transport.is_closing():
            link.eof_received()
            self.leave()
            return
        ending = (CHUNKED, CLOSE) if self._has_chunks else (CLOSE,)
        lines = head_lines(HTTPStatus.OK, (*headers.pairs, *self.cors, *more, *ending), self.shared.date)
        self._is_answering, self._waiting = False, ()
        self._hand_over(link, lines + b"\r\n" + (link.text(first) if first else b""), b"")

    # For the subclass

    def _hand_over(self, successor: WebSocket | Stream, accepted: bytes, rest: bytes) -> None:
        raise NotImplementedError

    @property
    def _parses_head(self) -> bool:
        """Whether the request being parsed is to HEAD, as far as is known."""
        raise NotImplementedError

    def _parse_unparsed(self) -> None:
        raise NotImplementedError

    def _choose_timeout(self) -> None:
        """Start the deadline for what the peer must send next, if anything."""
        raise NotImplementedError
