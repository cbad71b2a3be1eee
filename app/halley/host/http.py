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

A request is admitted when its head is there (`transports/routes.py`), and served when its body is, by the endpoint of
its route; the connection is the `Exchange` that the endpoint gets, whose other methods are in `peer.py`. A request with
the same head as the one before is served without parsing that head (`repeated.py`).

The parser is httptools', which a connection has while it receives a request. How uvicorn's server and ours make and
close a connection is in `__init__.py`.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from time import monotonic
from typing import Any, Final

import httptools
from uvicorn import Config
from uvicorn.server import ServerState

from halley import telemetry
from halley.broker.aging import TimeoutQueue
from halley.host.heads import (
    NOT_IN_TRAILERS,
    body_too_large,
    cannot_parse,
    check_fed,
    check_head,
    check_line,
    head_again,
    head_at,
    offers_websocket,
    origin_form,
    parser_for,
    version_of,
)
from halley.host.peer import BETWEEN, HALF_CLOSED, IN_BODY, IN_HEAD, SHUTTING_DOWN
from halley.host.repeated import RememberedRequest
from halley.host.requests import Received, Serving, Site
from halley.host.streams import Stream
from halley.host.timeouts import DISCARDED_BYTES, SLICE_S, Requester, ServerContext
from halley.host.websocket import WebSocket
from halley.transports.guard import Rejection
from halley.transports.head import Head, Header, fields_of
from halley.transports.routes import Admitted

_PIECE_BYTES = 16_384
"""The largest piece fed to the parser: a body's framing is counted after each piece, so to this precision."""
_HEAD_PIECE_BYTES = 2_048
"""The same for heads: it has 400 headers at most, which are counted after each piece; most requests are shorter."""
_PIPELINED_REQUESTS = 16
"""How many requests may wait behind another one, and how many may come behind another one in one piece."""
_HOPS: Final = frozenset((b"x-forwarded-for", b"via"))
"""Headers of which each proxy may add another; of all others a request that is remembered has one."""
NO_HEADERS: Final[list[Header]] = []


class _Cut(Exception):
    """Raised in a parser callback once the connection is cut."""


class Connection(Serving):
    """A guarded connection, which serves one request after the other: the `Exchange` of each."""

    __slots__ = (
        "_fed_bytes",
        "_heads",
        "_is_first",
        "_opening",
        "_window",
        "headers",
        "parser",
        "url",
    )

    _HIDDEN_HEADERS = 0
    """The number of headers in a head that are not among `headers`."""

    def __init__(
        self,
        config: Config,  # noqa: ARG002 - as uvicorn's server makes connections
        server_state: ServerState,
        app_state: dict[str, Any],  # noqa: ARG002
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        shared: ServerContext,
        site: Site,
    ) -> None:
        super().__init__(server_state, shared, site)
        self.parser: Any = None  # httptools', within a request; it refers to this
        self.url = b""
        self.headers = NO_HEADERS
        self._window = b""  # the piece being parsed, after earlier ones that have a part of the same head
        self._is_first = False  # no other request precedes this one in the window
        self._opening: tuple[WebSocket, bytes] | None = None  # the WebSocket that the request opens, and the response
        self._fed_bytes = 0  # bytes of this head, or of this body with its framing
        self._heads = 0  # that were parsed in one piece

    # asyncio.Protocol

    def connection_made(self, transport: Any) -> None:
        """A peer has connected; the deadline of its first request starts now. Those of a proxy name their client."""
        super().connection_made(transport)
        address = self.address
        self.source = (address, self.scheme)
        self._is_proxy = address in self._site.proxies
        self._idle_since = monotonic()
        self.shared.idle.add(self, self._idle_since)
        self._choose_timeout()

    def data_received(self, data: bytes) -> None:
        """Parse the received bytes, now or later, or discard them."""
        try:
            if self.is_gone:
                self._discarded_bytes += len(data)
                if self._discarded_bytes > DISCARDED_BYTES:
                    self.cut("sends_on")
            elif self._unparsed is None and not (self._is_answering or self.is_paused):
                if self.parser is None and self._serve_repeated(data):
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
        self._closing, self.is_over = HALF_CLOSED, True
        return True

    def _can_still_answer(self) -> bool:
        """Whether a peer that ends its stream now has sent a whole request to which no response is written.

        What waits for its peer is for one that is there. With TLS the end of a stream is that of both directions for
        most peers.
        """
        if self.is_gone or self.transport.is_closing() or self.transport.get_extra_info("sslcontext"):
            return False
        return self.waiting is None and (self._is_answering or bool(self._unparsed or self._waiting))

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed: drop what was received, and the parser, which refers to this."""
        super().connection_lost(exc)
        self.parser = self._known = self._unparsed = self._received = self._opening = None
        self._window, self.headers, self._waiting = b"", NO_HEADERS, ()

    def work(self, now: float) -> bool:
        """Parse the unparsed bytes until they contain a whole request; see `Worker`."""
        try:
            while self._unparsed and not self._is_busy():
                if self.is_gone or self.transport.is_closing():
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
        if not (self._is_answering or self._received is not None or self._waiting):
            self.transport.close()

    def is_idle(self, since: float) -> bool:
        """Whether there was no request or response since the time `since`."""
        return self._stage == BETWEEN and not self._is_busy() and self._idle_since <= since

    # Parsing

    def _feed(self, data: bytes) -> None:
        if self.parser is None:
            self.parser = parser_for(self)
        self._fed_bytes += len(data)
        self._heads = 0
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
        if self._received is not None:
            self._continue()
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
        telemetry.fault("request", error)
        self._refuse_received(Rejection(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error"), is_logged=True)

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
            is_early = offers_websocket(self.parser, self.headers) and not (self._is_first and not self._is_answering)
            self._unparsed = bytearray(
                head_again(self.parser, self.url, self.headers, keeps_upgrade=is_early) + unparsed
            )
            self.url, self.headers = b"", NO_HEADERS
            self.parser = None
            self._stage, self._fed_bytes, self._is_first = BETWEEN, 0, False
            self._window = b""
            self._parse_unparsed()
        # else it was CONNECT, and what follows that is not for this server

    def _hand_over(self, successor: WebSocket | Stream, accepted: bytes, rest: bytes) -> None:
        """Make the connection a WebSocket or a stream."""
        self._opening, self.is_gone, self._is_parsing = None, True, False
        self.is_over = True
        self.shared.idle.forget(self)
        self._set_timeout(None)
        self.transport.resume_reading()
        self._unparsed = self._known = self.repeated = self.endpoint = None
        successor.begin(self.transport, accepted, rest)
        self._state.connections.discard(self)
        self.parser = None  # breaks a reference cycle

    @property
    def _parses_head(self) -> bool:
        """Whether the request being parsed is to HEAD, as far as is known."""
        return bool(self.url) and self.parser is not None and bool(self.parser.get_method() == b"HEAD")

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
        if self.is_gone or self._is_refused:  # then the deadline for its end may run
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
        """The head is complete: check its limits, then open a WebSocket, or admit the request."""
        self._heads += 1
        if len(self._waiting) >= _PIPELINED_REQUESTS or self._heads > _PIPELINED_REQUESTS + 1:
            self.cut("too_much_ahead")
            raise _Cut
        window = self._window
        is_plain = self._is_first and window.endswith(b" HTTP/1.1", 0, window.find(b"\r\n"))
        if not is_plain or b"  " in window:
            check_line(window, self.parser.get_http_version(), is_first=self._is_first)
        fields = dict(self.headers)
        limits = self.shared.limits
        is_sound = self._fed_bytes <= limits.head_bytes and len(self.headers) <= limits.headers  # see `check_head`
        if self._timeouts is not None:
            self._set_timeout(None)
        if b"upgrade" in fields and self._asks_for_upgrade():
            is_next = is_sound and self._is_first and not self._is_answering
            if is_next and offers_websocket(self.parser, self.headers):
                self._open_socket()
            return  # the parser goes no further; see `_upgrade`
        self._stage = IN_BODY
        if not is_sound or b"transfer-encoding" in fields or b"?" in self.url:
            check_head(self.url, self.headers, self.parser.get_http_version(), self._fed_bytes, limits)
        self._admit(fields)
        self.url, self.headers = b"", NO_HEADERS
        self._fed_bytes = 0

    def _asks_for_upgrade(self) -> bool:
        return bool(self.parser.should_upgrade()) and self.parser.get_method() != b"CONNECT"

    def _open_socket(self) -> None:
        """Open a WebSocket if the path has any. Raises `Rejection` if its opening handshake is invalid."""
        parser, target = self.parser, origin_form(self.url)
        path, _, query = target.partition(b"?")
        text = path.decode("latin-1")
        route = self._site.routes.find(text).sockets
        sockets = None if route is None else self._site.sockets.get(id(route))
        if sockets is not None and sockets.route.matches(text):
            method, fields = parser.get_method().decode("ascii"), fields_of(self.headers)
            head = Head(method, text, query, fields, self.address, self.scheme, self.port, self.url)
            self._opening = sockets.open(head, self.headers, version_of(parser))

    def _admit(self, fields: dict[bytes, bytes]) -> None:
        """Admit the request whose head was received, or refuse it: now if nothing else is due before, else later."""
        parser, headers, site = self.parser, self.headers, self._site
        has_chunks = parser.get_http_version() != "1.0"  # a later version of HTTP/1 is served as 1.1
        source = site.proxies.client_of(self.address, self.scheme, headers) if self._is_proxy else self.source
        fields_once = fields if len(fields) == len(headers) else fields_of(headers)
        port = 0 if self._is_proxy or self.client is None else self.client[1]
        head = head_at(parser.get_method().decode("ascii"), self.url, fields_once, source, port)
        keeps_alive = has_chunks and head.method != "CONNECT" and bool(parser.should_keep_alive())
        expects_continue = has_chunks and fields.get(b"expect", b"").lower() == b"100-continue"
        received = Received(head, has_chunks=has_chunks, keeps_alive=keeps_alive, expects_continue=expects_continue)
        try:
            received.admitted = admitted = site.routes.admit(head, headers)
        except Rejection as rejection:
            site.routes.note(rejection, head)
            # Its traceback has this frame, which has the request.
            self._received, received.refusal = received, rejection.with_traceback(None)
            received.expects_continue = False
            if rejection.closes:
                self._refuse_received(rejection, is_logged=True)
                raise _Cut from None
            if not (self._is_answering or self._waiting):
                received.is_answered = True
                self._serve(received)
            return
        self._received = received
        if site.remembers and (self._has_served or self._is_proxy) and self._is_first and keeps_alive:
            received.repeated = self._remembered(received, admitted, fields, source)
        if not ((head.method == "POST" and admitted.endpoint.takes_body) or self._waiting or self._is_busy()):
            received.is_answered, received.expects_continue = True, False
            self._serve(received)

    def _remembered(
        self, received: Received, admitted: Admitted, fields: dict[bytes, bytes], source: tuple[str, str]
    ) -> RememberedRequest | None:
        """Return what is remembered of a request for the next one, if that may have the same head."""
        headers = self.headers
        if (
            received.head.method != "POST"
            or admitted.is_gzip
            or fields.keys() & _UNUSUAL  # in another trace no request has the same head
            or (len(fields) != len(headers) and not _repeats_only_hops(headers))
        ):
            return None
        limit = self.shared.limits.head_bytes
        repeated = RememberedRequest.of(self._window, len(headers) + self._HIDDEN_HEADERS, limit, admitted, source)
        if self._is_proxy and repeated is not None:
            self._site.proxied.remember(self.address, self._window, repeated)
        return repeated

    def on_body(self, body: bytes) -> None:
        """Append a piece of the body."""
        received = self._received
        if received is not None and not received.is_answered and received.refusal is None:
            if received.body:
                received.add_body(body)
            else:
                received.body = body
            if len(received.body) > self.shared.limits.body_bytes:
                raise body_too_large()

    def on_message_complete(self) -> None:
        """The request is complete: serve it, or let it wait for those before it."""
        if self._stage == IN_HEAD:  # the parser ends where an upgrade is asked for
            return
        self._stage, self._has_served, self._is_first = BETWEEN, True, False
        self._fed_bytes = 0
        if self._timeouts is not None:
            self._set_timeout(None)
        received, self._received = self._received, None
        if received is None or received.is_answered:
            return
        if self._waiting or self._is_answering or self.is_paused:
            self._waiting = (*self._waiting, received)
        else:
            self._serve(received)


_UNUSUAL: Final = frozenset((b"transfer-encoding", b"upgrade", b"expect", b"traceparent"))


def _repeats_only_hops(headers: list[Header]) -> bool:
    others = [name for name, _ in headers if name not in _HOPS]
    return len(others) == len(set(others))
