"""One HTTP connection: what is received on it, as requests, with guards.

* Head: limits for its size and number of headers, and a deadline; bytes are counted when they are received, before any
  parser has buffered them.
* Body: a deadline; the size limit includes the framing of chunks.
* While a request is being processed nothing further is parsed: bytes received meanwhile wait, up to the size of one
  head and body. So reading does not stop, and a peer that closes is noticed immediately.
* What was received at once may have several requests. If one of them is refused, the requests before it are answered
  first, and nothing behind it is served.
* A peer that ends its stream behind a whole request may still read the response, as `nc -N` does. A closed tab looks
  the same. So it gets responses that only it can miss, but no events of a session (`_can_still_answer`).
* More than a piece is parsed in turns that all connections share (`timeouts.py`); reading is paused while it waits.

The parser is httptools', which a connection has while it receives a request. How responses are written is in `peer.py`,
and how an application answers in `asgi.py`, which finds the connection as `scope["extensions"]["halley"]`. A subclass
can respond to some requests itself, without the application. Nothing here knows of Bayeux. How uvicorn's server and
ours make and close it is in `__init__.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from http import HTTPStatus
from time import monotonic
from typing import Any, Final

import httptools
from uvicorn import Config
from uvicorn.server import ServerState

from halley import telemetry
from halley.broker.aging import TimeoutQueue
from halley.host.asgi import Cycle, make_scope
from halley.host.heads import (
    NOT_IN_TRAILERS,
    body_too_large,
    cannot_parse,
    check_fed,
    check_head,
    check_line,
    head_again,
    offers_websocket,
    origin_form,
    parser_for,
    version_of,
)
from halley.host.peer import HALF_CLOSED, SHUTTING_DOWN, Peer
from halley.host.responses import head_lines
from halley.host.streams import Stream
from halley.host.timeouts import DISCARDED_BYTES, SLICE_S, Requester, ServerContext
from halley.host.websocket import WebSocket
from halley.transports.guard import Rejection
from halley.transports.head import CLOSE, Head, Header, fields_of

_PIECE_BYTES = 16_384
"""The largest piece fed to the parser: a body's framing is counted after each piece, so to this precision."""
_HEAD_PIECE_BYTES = 2_048
"""The same for heads: it has 400 headers at most, which are counted after each piece; most requests are shorter."""
_PIPELINED_REQUESTS = 16
NO_HEADERS: Final[list[Header]] = []

BETWEEN: Final = 0
IN_HEAD: Final = 1
IN_BODY: Final = 2
"""Where the parser is: between two requests, or in a part of one."""


class _Cut(Exception):
    """Raised in a parser callback once the connection is cut."""


class Connection(Peer):
    """A guarded connection, which feeds the parser and passes the application one request after the other.

    A subclass can take some requests and respond itself: `_accepts`, `_serve`, `_serve_repeated` and `respond` are for
    that.
    """

    __slots__ = (
        "_app_state",
        "_body",
        "_config",
        "_fed_bytes",
        "_has_served",
        "_idle_since",
        "_is_answering",
        "_is_first",
        "_is_parsing",
        "_opening",
        "_stage",
        "_unparsed",
        "_window",
        "headers",
        "parser",
        "url",
    )

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        shared: ServerContext,
    ) -> None:
        super().__init__(server_state, shared)
        self._config = config
        self._app_state = app_state  # of the lifespan

        # Per-connection state
        self._is_answering = False  # a request that the subclass took is not answered yet
        self._unparsed: bytearray | None = None  # received meanwhile, or too much for one turn
        self._is_parsing = False  # the unparsed bytes are being parsed, now or in a later turn
        self._idle_since = 0.0  # when the latest response was written
        self._has_served = False  # at least one whole request was received

        # Per-request state
        self.parser: Any = None  # httptools', within a request; it refers to this
        self.url = b""
        self.headers = NO_HEADERS
        self._stage: int = BETWEEN
        self._window = b""  # the piece being parsed, after earlier ones that have a part of the same head
        self._is_first = False  # no other request precedes this one in the window
        self._body: bytes | bytearray | None = None  # the received part of the body, if the subclass took the request
        self._opening: tuple[WebSocket, bytes] | None = None  # the WebSocket that the request opens, and the response
        self._fed_bytes = 0  # bytes of this head, or of this body with its framing

    # asyncio.Protocol

    def connection_made(self, transport: Any) -> None:
        """A peer has connected; the deadline of its first request starts now."""
        super().connection_made(transport)
        self._idle_since = monotonic()
        self.shared.idle.add(self, self._idle_since)
        self._choose_timeout()

    def data_received(self, data: bytes) -> None:
        """Parse the received bytes, now or later, or discard them."""
        try:
            is_free = self._running is None and not (self._is_answering or self.is_paused)
            if self._is_over:
                self._discarded_bytes += len(data)
                if self._discarded_bytes > DISCARDED_BYTES:
                    self.cut("sends_on")
            elif self._unparsed is None and (is_free or not self._is_busy()):
                if is_free and self.parser is None and self._serve_repeated(data):
                    return
                if len(data) <= _HEAD_PIECE_BYTES:
                    self._feed(data)
                else:
                    self._unparsed = bytearray(data)
                    self._parse_unparsed()
            else:
                self._unparsed = self._unparsed or bytearray()
                self._unparsed += data
                limits = self.shared.limits
                if len(self._unparsed) > limits.head_bytes + limits.body_bytes:
                    self.cut("too_much_ahead")
        except Exception as error:  # noqa: BLE001 - it ends this connection only
            self._fail_reading(error)

    def eof_received(self) -> bool:
        """The peer has ended its stream: it is gone, unless it can still be answered."""
        if not self._can_still_answer():
            return super().eof_received()
        self._closing = HALF_CLOSED
        for cycle in (self._running, *self._waiting):
            if isinstance(cycle, Cycle):
                cycle.half_close()
        return True

    def _can_still_answer(self) -> bool:
        """Whether a peer that ends its stream now has sent a whole request to which no response is written.

        With TLS the end of a stream is that of both directions for most peers.
        """
        if self._is_over or self.transport.is_closing() or self.transport.get_extra_info("sslcontext"):
            return False
        running = self._running
        is_due = running is not None and not (running.is_complete or running.more_body)
        return is_due or self._is_answering or bool(self._unparsed)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed: drop what was received, and the parser, which refers to this."""
        super().connection_lost(exc)
        self.parser = self._unparsed = self._body = self._opening = None
        self._window, self.headers = b"", NO_HEADERS

    def work(self, now: float) -> bool:
        """Parse the unparsed bytes until they contain a whole request; see `Worker`."""
        try:
            while self._unparsed and not self._is_busy():
                if self._is_over or self.transport.is_closing():
                    break
                if monotonic() - now > SLICE_S:
                    return True
                nbytes = _PIECE_BYTES if self._stage == IN_BODY else _HEAD_PIECE_BYTES
                piece = bytes(self._unparsed[:nbytes])
                del self._unparsed[:nbytes]
                self._feed(piece)
        except Exception as error:  # noqa: BLE001 - as in `data_received`
            self._fail_reading(error)
        if not self._is_parsing:  # a WebSocket has the connection now
            return False
        self._is_parsing = False
        if not (self._is_busy() and self._unparsed):
            self._unparsed = None
        if self.transport.is_closing():
            return False
        if self._closing != HALF_CLOSED:
            self.transport.resume_reading()  # after a refusal, too: what follows is discarded
            self._choose_timeout()
        elif not self._is_busy():
            self.transport.close()
        return False

    def resume_writing(self) -> None:
        """All written bytes are in the kernel: go on with the next request."""
        super().resume_writing()
        self._go_on()

    def shutdown(self) -> None:
        """Close the connection because the server shuts down: now if it is idle, else after its response."""
        if self._closing != HALF_CLOSED:
            self._closing = SHUTTING_DOWN
        last = self._last
        if self._is_answering or self._body is not None or self._is_refused:
            return
        if last is None or last.is_complete:
            self.transport.close()
        else:
            last.keeps_alive = False

    def is_idle(self, since: float) -> bool:
        """Whether there was no request or response since the time `since`."""
        return self._stage == BETWEEN and self._running is None and not self._is_busy() and self._idle_since <= since

    # For subclasses that respond to requests themselves

    def _accepts(self, fields: dict[bytes, bytes]) -> bool:  # noqa: ARG002 - for subclasses
        """Whether `_serve` is to be called with the request whose head was received, once its body is complete.

        `fields` has its headers by lower-case name; of repeated ones, the last.
        """
        return False

    def _serve(self, body: bytes) -> None:
        """Process a request that was taken and is complete: call `respond`, now or later."""

    def _serve_repeated(self, data: bytes) -> bool:  # noqa: ARG002 - for subclasses
        """Process a request that `data` is the whole of, and whose head is known from an earlier one; else False.

        It is called between two requests only, and not while the application has one.
        """
        return False

    def respond(self, response: bytes, *, closes: bool = False) -> bool:
        """Write the response to a request that was taken; True if all of it is in the kernel.

        Bytes received meanwhile are parsed as soon as it is. What closes the connection is not known to be.
        """
        if self._is_over:
            return False
        transport = self.transport
        transport.write(response)
        if closes or self._closing == SHUTTING_DOWN:
            transport.close()
        self._is_answering = False
        self._idle_since = monotonic()
        is_written = not (self.is_paused or transport.is_closing())
        if self._waiting or self._unparsed or self._stage != BETWEEN or self._closing:
            self._go_on()
        return is_written

    def answered(self, cycle: Cycle) -> None:
        """The application has responded: go on with the next request."""
        self._idle_since = monotonic()
        if not cycle.more_body:
            self._running = None
        self._go_on()

    def _go_on(self) -> None:
        """Begin with the next request, if there is one. What is not parsed yet waits until the response is read."""
        if self.transport.is_closing():
            return
        if self._waiting and self._running is None:
            following, *rest = self._waiting
            if isinstance(following, Cycle):
                self._waiting = tuple(rest)
                self._start(following)
            elif not self._is_busy():  # else what is written before could not count as read
                self._waiting, self._unparsed = (), None
                self._end(following)
                return
        if self._unparsed and not (self._is_busy() or self._is_refused):
            self._parse_unparsed()
        elif self._closing == HALF_CLOSED and not (self._is_busy() or self._is_parsing):
            self.transport.close()
        elif self._stage != BETWEEN:
            self._choose_timeout()

    def _start(self, cycle: Cycle) -> None:
        self._running = cycle
        self._run(cycle.run(self._config.loaded_app))

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task that the server waits for when it shuts down."""
        tasks = self._state.tasks
        task = asyncio.get_running_loop().create_task(coroutine)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    # Parsing

    def _is_busy(self) -> bool:
        """Whether a whole request was received and its response is not in the kernel yet."""
        if self._is_answering or self.is_paused:
            return True
        running = self._running
        return running is not None and not (running.is_complete or running.more_body)

    def _feed(self, data: bytes) -> None:
        if self.parser is None:
            self.parser = parser_for(self)
        self._fed_bytes += len(data)
        self._is_first = self._is_first or not self._window
        self._window = self._window + data if self._window else data
        upgrade_at = -1
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            upgrade_at = upgrade.args[0]
        except httptools.HttpParserError as error:
            self._refuse_piece(data, error)
        if upgrade_at >= 0:
            self._upgrade(data[upgrade_at:])
        if self._stage != IN_HEAD:
            self._window = b""
        if self._stage == BETWEEN and not self._fed_bytes:
            self.parser = None
        else:
            self._check_fed()
            self._choose_timeout()

    def _refuse_piece(self, data: bytes, error: httptools.HttpParserError) -> None:
        """Refuse the request that the parser stopped at: it cannot be parsed, or one of our callbacks has raised."""
        raised = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else None
        if isinstance(raised, Rejection):
            self._refuse_received(raised)
        elif isinstance(raised, _Cut):
            pass
        elif raised is not None and not isinstance(raised, httptools.HttpParserError):  # else the target is not a URL
            self._fail_reading(raised)
        else:
            self._refuse_received(cannot_parse(data, is_in_head=self._stage != IN_BODY))

    def _fail_reading(self, error: BaseException) -> None:
        """Log a fault of ours, for which the peer gets 500."""
        telemetry.fault("request", error)
        self._refuse_received(Rejection(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error"), is_logged=True)

    def _refuse_received(self, rejection: Rejection, *, is_logged: bool = False) -> None:
        """Refuse what is being received, behind the responses that are due before it (RFC 9112, 9.3.2)."""
        if self._is_refused:
            return
        running, last = self._running, self._last
        is_head = bool(self.url) and self.parser is not None and self.parser.get_method() == b"HEAD"
        if last is not None and last.more_body:  # it is this one
            is_head = last.is_head
            self._waiting = self._waiting[:-1]
        is_due = self._is_answering or (running is not None and not running.more_body)
        if is_due and not (self._is_over or self.transport.is_closing()):
            self._waiting = (*self._waiting, self._refusal(rejection, is_logged=is_logged, is_head=is_head))
        else:
            self._refuse(rejection, is_logged=is_logged, is_head=is_head)

    def _parse_unparsed(self) -> None:
        """Parse what is unparsed, now or in later turns."""
        if not self._is_parsing:
            self._is_parsing = True
            if not self.shared.turns.run(self):
                self.transport.pause_reading()

    def _upgrade(self, rest: bytes) -> None:
        """Switch to the requested WebSocket; other upgrades are ignored (RFC 9110, 7.8), and HTTP/1.1 goes on.

        `rest` is what follows the head. The parser takes it for another protocol, also if it is the request's body; so
        the head is parsed again, without what asks for the upgrade. If other requests come before that for a WebSocket,
        it is parsed again as it is when they are answered.
        """
        unparsed = rest + (self._unparsed or b"")
        if self._opening is not None:
            self._hand_over(*self._opening, unparsed)
        elif self._stage == IN_HEAD:
            is_early = offers_websocket(self.parser, self.headers) and not (self._is_first and self._running is None)
            self._unparsed = bytearray(
                head_again(self.parser, self.url, self.headers, keeps_upgrade=is_early) + unparsed
            )
            self.url, self.headers = b"", NO_HEADERS
            self.parser = None
            self._stage, self._fed_bytes, self._is_first = BETWEEN, 0, False
            self._window = b""
            self._parse_unparsed()
        # else it was CONNECT, and what follows that is not for this server

    def stream(self) -> Stream:
        """Make a stream for the response to the running request, to be begun by `begin_stream` or forgotten."""
        return Stream(self.address, self.shared, self._state.connections)

    def begin_stream(self, stream: Stream, headers: list[Header], first: bytes) -> None:
        """Make the connection the stream: write the head of its response, and its first message.

        The running request is complete with that; what was written before must be `drained`. If the peer has gone
        meanwhile, the stream's engine learns that.
        """
        running = self._running
        if self.is_over or running is None or self.transport.is_closing():
            stream.eof_received()
            if running is not None:
                running.lose()
            if self._closing == HALF_CLOSED:
                self.transport.close()
            return
        running.is_begun = running.is_complete = True
        self._running, self._waiting = None, ()
        lines = head_lines(HTTPStatus.OK, [*headers, (b"transfer-encoding", b"chunked"), CLOSE], self.shared.date)
        self._hand_over(stream, lines + b"\r\n" + first, b"")

    def _hand_over(self, successor: WebSocket | Stream, accepted: bytes, rest: bytes) -> None:
        """Make the connection a WebSocket or a stream."""
        self._opening, self._is_over, self._is_parsing = None, True, False
        self.shared.idle.forget(self)
        self._set_timeout(None)
        self.transport.resume_reading()
        self._unparsed = None
        successor.begin(self.transport, accepted, rest)
        self._state.connections.discard(self)
        self.parser = None  # breaks a reference cycle

    def _check_fed(self) -> None:
        """Refuse a part of a head or body that is too large already."""
        limits = self.shared.limits
        try:
            if self._stage != IN_BODY:
                check_fed(self._fed_bytes, len(self.headers), limits)
            elif self._fed_bytes > limits.body_bytes:
                self._refuse_received(body_too_large())
        except Rejection as rejection:
            self._refuse_received(rejection)

    def _choose_timeout(self) -> None:
        """Start the deadline for what the peer must send next, if anything; none runs while a request is processed."""
        if self._is_over or self._is_refused:  # then the deadline for its end may run
            return
        timeouts: TimeoutQueue[Requester] | None = None
        if self._is_busy():
            pass
        elif self._stage == IN_BODY:
            timeouts = self.shared.bodies
        elif self._stage == IN_HEAD or not self._has_served:
            timeouts = self.shared.heads
        if timeouts is not self._timeouts:
            self._set_timeout(timeouts)

    # Parser callbacks

    def on_message_begin(self) -> None:
        """A request begins: forget the one before it."""
        self.url = b""
        self.headers = []
        self._stage = IN_HEAD

    def on_url(self, url: bytes) -> None:
        """Append a piece of the request target."""
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add one complete header; trailers, which follow the body, are ignored, or refused by their names."""
        if self._stage == IN_HEAD:
            self.headers.append((name.lower(), value))
        elif name.lower() in NOT_IN_TRAILERS:  # RFC 9110, 6.5.1
            raise Rejection(HTTPStatus.BAD_REQUEST, "bad request")

    def on_headers_complete(self) -> None:
        """The head is complete: check its limits, then open a WebSocket or begin a request, maybe of a subclass."""
        if len(self._waiting) >= _PIPELINED_REQUESTS:
            self.cut("too_much_ahead")
            raise _Cut
        window = self._window
        is_plain = self._is_first and window.endswith(b" HTTP/1.1", 0, window.find(b"\r\n"))
        if not is_plain or b"  " in window:
            check_line(window, self.parser.get_http_version(), is_first=self._is_first)
        fields = dict(self.headers)
        limits = self.shared.limits
        is_sound = self._fed_bytes <= limits.head_bytes and len(self.headers) <= limits.headers  # see `check_head`
        is_usual = is_sound and self._is_first and self._running is None
        if self._timeouts is not None:
            self._set_timeout(None)
        if b"upgrade" in fields and self._asks_for_upgrade():
            if is_usual and offers_websocket(self.parser, self.headers):
                self._open_socket()
            return  # the parser goes no further; see `_upgrade`
        self._stage = IN_BODY
        if is_usual and self._accepts(fields):
            self._body = b""
        else:
            check_head(self.url, self.headers, self.parser.get_http_version(), self._fed_bytes, limits)
            self._pass_to_application(fields)
        self._fed_bytes = 0

    def _asks_for_upgrade(self) -> bool:
        return bool(self.parser.should_upgrade()) and self.parser.get_method() != b"CONNECT"

    def _open_socket(self) -> None:
        """Open a WebSocket if the path has any. Raises `Rejection` if its opening handshake is invalid."""
        parser, target = self.parser, origin_form(self.url)
        for route in self.shared.sockets:
            if route.matches(target):
                path, _, query = target.partition(b"?")
                method, fields = parser.get_method().decode("ascii"), fields_of(self.headers)
                head = Head(method, path.decode("latin-1"), query, fields, self.address, self.scheme, self.port)
                self._opening = route.open(head, self.headers, version_of(parser), self.url)
                return

    def _pass_to_application(self, fields: dict[bytes, bytes]) -> None:
        """Make the cycle of a request, which begins now or after those before it."""
        parser, version = self.parser, version_of(self.parser)
        method = parser.get_method().decode("ascii")
        server = self.transport.get_extra_info("sockname")
        scope = make_scope(
            method,
            self.url,
            version,
            self.headers,
            {"halley": self, "halley.target": self.url},
            client=self.client,
            server=tuple(server[:2]) if isinstance(server, tuple) else None,
            scheme=self.scheme,
            root_path=self._config.root_path,
            state=self._app_state.copy(),
        )
        expects_continue = version != "1.0" and fields.get(b"expect", b"").lower() == b"100-continue"
        keeps_alive = version != "1.0" and method != "CONNECT" and parser.should_keep_alive()
        cycle = Cycle(self, scope, keeps_alive=keeps_alive, expects_continue=expects_continue)
        if self._running is None and not self._is_answering:
            self._start(cycle)
        else:
            self._waiting = (*self._waiting, cycle)
        self.url, self.headers = b"", NO_HEADERS

    def on_body(self, body: bytes) -> None:
        """Append a piece of the body."""
        if self._body is None:
            if (cycle := self._last) is not None:
                cycle.add_body(body)
        elif not self._body:
            self._body = body
        else:
            self._body = bytearray(self._body) if isinstance(self._body, bytes) else self._body
            self._body += body

    def on_message_complete(self) -> None:
        """The request is complete: serve it, or let the application know."""
        if self._stage == IN_HEAD:  # the parser ends where an upgrade is asked for
            return
        self._stage, self._has_served, self._is_first = BETWEEN, True, False
        self._fed_bytes = 0
        if self._timeouts is not None:
            self._set_timeout(None)
        if self._body is not None:
            body, self._body = bytes(self._body), None
            self._is_answering = True
            self._serve(body)
            return
        if (cycle := self._last) is not None:
            cycle.end_body()
            if self._closing == HALF_CLOSED:
                cycle.half_close()
            if cycle.is_complete and cycle is self._running:  # it was answered before it was complete
                self._running = None
                self._idle_since = monotonic()
