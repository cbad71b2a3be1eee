"""One HTTP connection: uvicorn's httptools protocol with the guards it lacks.

* Head: size, number of headers and a deadline; bytes are counted as they come, before any parser has buffered them.
* Body: a deadline; chunked framing is bounded along with the content.
* While a request is being answered nothing further is parsed: bytes that come meanwhile are kept, up to one head and
  body, so that a peer that closes is noticed at once, whatever it sent before.

What becomes of answers is in `peer.py`. It knows nothing of Bayeux. ASGI applications find it as
`scope["extensions"]["halley"]`; a subclass may take requests from the application and answer them itself.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from time import monotonic
from typing import TYPE_CHECKING, Any

import httptools

from app.host.peer import Peer
from app.host.sockets import open_socket
from app.transports.guard import Rejection

if TYPE_CHECKING:
    import asyncio

    from uvicorn._types import ASGI3Application
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from app.host.reaper import Reaper
    from app.host.websocket import WebSocket

_HUGE_LENGTH = re.compile(rb"^content-length:[ \t]*[0-9]{19,}[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
_PIECE_BYTES = 16_384
"""Fed to the parser at once, so that a body's framing is counted to within so much."""
_PIPELINED_REQUESTS = 16
_DISCARDED_BYTES = 1_048_576


class _Refused(Exception):
    """Raised in a parser callback once the request has been refused."""


class Connection(Peer):
    """A guarded connection, which feeds the parser and asks the application one request after the other.

    A subclass may answer some itself: `_takes`, `_serve` and `respond` are for that.
    """

    __slots__ = (
        "_body",
        "_fed_bytes",
        "_has_begun",
        "_has_served",
        "_is_answering",
        "_is_feeding",
        "_is_in_head",
        "_is_leaving",
        "_is_stuck",
        "_kept",
        "_lacks_body",
        "_may_take",
        "_opening",
        "_quiet_since",
        "_successor",
    )

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)

        # Per-connection state
        self._is_answering = False  # a request that was taken from the application
        self._is_stuck = False  # with an answer of ours that the peer does not read
        self._kept: bytearray | None = None  # came meanwhile
        self._quiet_since = 0.0  # its latest answer of ours has left
        self._has_served = False  # a request has come in whole, some time
        self._is_feeding = False
        self._is_leaving = False  # along with the server
        self._successor: WebSocket | None = None  # has the connection now

        # Per-request state
        self._is_in_head = True  # of a request, or before one
        self._has_begun = False  # part of a head has been parsed
        self._lacks_body = False  # asked for an upgrade, for which httptools skips the body
        self._may_take = False  # no request came ahead of this one in the same piece
        self._body: bytes | bytearray | None = None  # of a request that was taken, as far as it has come
        self._opening: tuple[WebSocket, bytes] | None = None  # what it asked for and is granted
        self._fed_bytes = 0  # of this head, or of this body with its framing

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A peer has connected; its first request is under the deadline at once."""
        super().connection_made(transport)
        self._quiet_since = monotonic()
        self.watch.idle.watch(self, self._quiet_since)
        self._mind_time()

    def data_received(self, data: bytes) -> None:
        """Bytes came: parse them, keep them for later, or throw them away."""
        if self._discarded_bytes is not None:
            self._discarded_bytes += len(data)
            if self._discarded_bytes > _DISCARDED_BYTES:
                self.cut("sends_on")
        elif not self._is_answering and (self._running is None or not self._is_busy()):
            self._feed(data)
        else:
            self._kept = self._kept or bytearray()
            self._kept += data
            limits = self.watch.limits
            if len(self._kept) > limits.head_bytes + limits.body_bytes:
                self.cut("too_much_ahead")

    def resume_writing(self) -> None:
        """All that was written has left: the next request's turn."""
        super().resume_writing()
        if self._is_stuck:
            self._is_stuck = self._is_answering = False
            if not self.transport.is_closing():
                self._go_on()

    def shutdown(self) -> None:
        """The server leaves: an idle connection closes now, any other after its answer."""
        self._is_leaving = True
        if not self._is_answering and self._body is None:
            super().shutdown()

    def is_idle(self, since: float) -> bool:
        """Whether nothing has been asked or answered since then; of the application uvicorn keeps watch itself."""
        is_at_rest = not self._is_busy() and self._is_in_head and not self._has_begun and self._body is None
        return is_at_rest and self.timeout_keep_alive_task is None and self._quiet_since <= since

    def timeout_keep_alive_handler(self) -> None:
        """Nothing has been asked since the application's latest answer."""
        self.watch.hits["keep_alive_s"] += 1
        super().timeout_keep_alive_handler()

    # What a subclass may answer itself

    def _takes(self, fields: dict[bytes, bytes]) -> bool:  # noqa: ARG002 - for subclasses
        """Whether the request whose head has come is one to `_serve`; its body is then collected.

        `fields` has its headers by lower-case name, the last of each.
        """
        return False

    def _serve(self, body: bytes) -> None:
        """The request has come in whole: `respond` to it, now or later."""

    def respond(self, response: bytes, *, closes: bool) -> bool:
        """Write the answer to a request that was taken; True if it has left for the kernel.

        What came meanwhile is looked at as soon as it has.
        """
        if self._is_lost or self._discarded_bytes is not None:
            return False
        transport = self.transport
        transport.write(response)
        if closes or self._is_leaving:
            transport.close()
        if self.flow.write_paused:
            self._is_stuck = True
            return False
        self._is_answering = False
        self._quiet_since = monotonic()
        if transport.is_closing():
            return False
        if self._is_feeding:
            return not self._has_ended
        if self.pipeline or self._kept or self._has_begun:
            self._go_on()
        return not self._has_ended

    def _go_on(self) -> None:
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        self._look_at_kept()

    # Parsing

    def _is_busy(self) -> bool:
        """Whether a request has come in whole and is not answered yet."""
        if self._is_answering:
            return True
        running = self._running
        return running is not None and not running.response_complete and not running.more_body

    def _feed(self, data: bytes) -> None:
        nbytes = len(data)
        if nbytes > _PIECE_BYTES:
            for start in range(0, nbytes, _PIECE_BYTES):
                (self._successor or self).data_received(data[start : start + _PIECE_BYTES])
            return
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        self._fed_bytes += nbytes
        self._is_feeding = self._may_take = True
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._pass_over(data, upgrade.args[0])
        except httptools.HttpParserError:
            if self._is_in_head and _HUGE_LENGTH.search(data):  # more than the parser can count
                self.refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "request body too large", limit="body_bytes")
            else:
                self.refuse(HTTPStatus.BAD_REQUEST, "bad request")
        self._is_feeding = False
        if self._is_in_head and not (self.pipeline or self._fed_bytes or self._has_begun or self._running):
            return  # one request that was taken, and nothing else
        if self._fed_bytes:  # of something that is not whole yet
            self._check_fed()
        if self.pipeline:
            if len(self.pipeline) > _PIPELINED_REQUESTS:
                self.cut("too_much_ahead")
            self.flow.resume_reading()  # else a peer that closes would not be noticed; bytes are kept, and bounded
        self._mind_time()

    def _look_at_kept(self) -> None:
        if self._kept and not self._is_busy():
            kept, self._kept = bytes(self._kept), None
            self._feed(kept)
        else:
            self._mind_time()

    def _pass_over(self, data: bytes, parsed_bytes: int) -> None:
        """What was asked for is switched to; if nothing is (RFC 9110, 7.8: "MAY ignore"), HTTP/1.1 goes on."""
        if self._opening is not None:
            self._hand_over(*self._opening, data[parsed_bytes:])
            return
        self._renew_parser()
        if self._lacks_body:
            self.parser.feed_data(self._body_head())
        rest = data[parsed_bytes:]
        if rest:
            self.data_received(rest)

    def _hand_over(self, successor: WebSocket, accepted: bytes, rest: bytes) -> None:
        """It is a WebSocket from now on."""
        self._opening, self._successor, self._is_lost = None, successor, True
        self.watch.idle.forget(self)
        self._be_under(None)
        self._unset_keepalive_if_required()
        self.flow.resume_reading()
        successor.begin(self.transport, accepted, rest)
        self.connections.discard(self)
        self.parser = None  # type: ignore[assignment]  # which knows us, and we it

    def _check_fed(self) -> None:
        limits = self.watch.limits
        if self._is_in_head and self._fed_bytes > limits.head_bytes:
            self.refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "request head too large", limit="head_bytes")
        elif not self._is_in_head and self._fed_bytes > limits.body_bytes:
            self.refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "request body too large", limit="body_bytes")

    def _renew_parser(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _body_head(self) -> bytes:
        """A head that makes a new parser expect the body of the request at hand; nothing else of it is read."""
        framing = [(name, value) for name, value in self.headers if name in (b"content-length", b"transfer-encoding")]
        return b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(b"%b: %b\r\n" % header for header in framing)

    def _mind_time(self) -> None:
        """Put the connection under the deadline of what it is waited for; while it waits for us there is none."""
        watch = self.watch
        reaper: Reaper[Peer] | None = None
        if self._is_lost or self._discarded_bytes is not None or self._is_busy():
            pass
        elif not self._is_in_head:
            reaper = watch.bodies
        elif self._has_begun or not self._has_served:
            reaper = watch.heads
        if reaper is not self._reaper:
            self._be_under(reaper)

    # Parser callbacks

    def on_message_begin(self) -> None:
        """A request begins. Its scope is made once it is clear that the application will answer it."""
        if self._lacks_body:
            return
        self.url = b""
        self.headers = []
        self._has_begun = True

    def on_url(self, url: bytes) -> None:
        """A piece of the request target."""
        if not self._lacks_body:
            self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, whole; trailers, which come after the body, are nobody's."""
        if self._is_in_head and not self._lacks_body:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is whole: check what only the raw head shows, then let the application begin."""
        if self._lacks_body:
            self._lacks_body = False
            return
        fields = dict(self.headers)
        limits = self.watch.limits
        is_sound = self._fed_bytes <= limits.head_bytes and len(fields) <= limits.headers  # else looked at below
        self._is_in_head = self._has_begun = False
        if self._reaper is not None:
            self._be_under(None)
        is_next = self._may_take and (self.cycle is None or self.cycle.response_complete)
        if is_sound and is_next and (self._opens_socket(fields) or self._takes(fields)):
            self._fed_bytes = 0
            self._body = b""
            return
        self._check_head(fields)
        self._fed_bytes = 0
        url, headers = self.url, self.headers
        super().on_message_begin()  # makes the scope, and forgets what has come
        self.url = url
        self.headers.extend(headers)
        self.expect_100_continue = fields.get(b"expect", b"").lower() == b"100-continue"
        self.scope["extensions"] = {"halley": self}  # type: ignore[dict-item]
        super().on_headers_complete()
        self._lacks_body = self.parser.should_upgrade() and any(
            name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0"))
            for name, value in self.headers
        )

    def _opens_socket(self, fields: dict[bytes, bytes]) -> bool:
        """Whether the request whose head has come is granted a WebSocket; raises `_Refused` if it asks in vain."""
        if fields.get(b"upgrade", b"").lower() == b"websocket" and self.parser.should_upgrade():
            try:
                self._opening = open_socket(self)
            except Rejection as rejection:
                self.refuse(rejection.status, rejection.text, rejection.headers, limit=rejection.limit)
                raise _Refused from None
        return self._opening is not None

    def _check_head(self, fields: dict[bytes, bytes]) -> None:
        limits = self.watch.limits
        if len(self.headers) > limits.headers:
            self._refuse_head(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too many headers", "headers")
        if self._fed_bytes > limits.head_bytes:  # along with what followed the head; now exactly
            head_bytes = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if head_bytes > limits.head_bytes:
                self._refuse_head(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "request head too large", "head_bytes")
        if b"?" in self.url and len(self.url.partition(b"?")[2]) > limits.query_bytes:
            self._refuse_head(HTTPStatus.REQUEST_URI_TOO_LONG, "query too long", "query_bytes")
        if b"transfer-encoding" in fields:
            codings = [value for name, value in self.headers if name == b"transfer-encoding"]
            if len(codings) > 1 or codings[0].strip().lower() != b"chunked":
                # What an intermediary reads differently from us is how requests are smuggled.
                self._refuse_head(HTTPStatus.BAD_REQUEST, "transfer encoding not supported")

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if self._body is None:
            super().on_body(body)
        elif not self._body:
            self._body = body
        else:
            self._body = bytearray(self._body) if isinstance(self._body, bytes) else self._body
            self._body += body

    def on_message_complete(self) -> None:
        """The request has come in whole."""
        if self._lacks_body:
            return
        self._is_in_head = self._has_served = True
        self._may_take = False
        self._fed_bytes = 0
        if self._reaper is not None:
            self._be_under(None)
        if self._body is not None:
            body, self._body = bytes(self._body), None
            if self._opening is None:  # else it is handed over as soon as the parser has let go
                self._is_answering = True
                self._serve(body)
            return
        super().on_message_complete()
        if self._running is not None and self._running.response_complete:  # it was answered before it was whole
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_response_complete(self) -> None:
        """The application has answered a request: go on with what came meanwhile."""
        super().on_response_complete()
        if not self.transport.is_closing():
            self._look_at_kept()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if self._is_answering:  # something that was taken, and comes first
            self.pipeline.appendleft((cycle, app))
            return
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _refuse_head(self, status: HTTPStatus, text: str, limit: str = "") -> None:
        self.refuse(status, text, limit=limit)
        raise _Refused
