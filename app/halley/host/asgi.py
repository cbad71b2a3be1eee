"""One request on its way through an ASGI application: its scope, what `receive` gives, and what `send` writes.

This is ASGI's HTTP scope (version 3.0, HTTP 2.3) over a connection of HTTP/1.1. The connection parses, and it has the
limits and the deadlines: no body is longer than one of these allows, so nothing here is bounded a second time.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any, Final, Protocol
from urllib.parse import unquote

import httptools
from starlette.types import ASGIApp, Message, Scope

from halley.host.responses import status_line
from halley.transports.head import CLOSE, Header

_log = logging.getLogger("uvicorn.error")  # the server's log, which uvicorn configures

_NOT_IN_NAMES: Final = re.compile(rb'[\x00-\x1f\x7f()<>@,;:\[\]={} \t\\"]')
_NOT_IN_VALUES: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_BODILESS: Final = (204, 304)
_UNTIL_CLOSE: Final = -1  # as many bytes as come until the connection is closed
_FAILED: Final = b"Internal Server Error"
_FAILED_HEADERS: Final = [
    (b"content-type", b"text/plain; charset=utf-8"),
    (b"content-length", b"%d" % len(_FAILED)),
    CLOSE,
]


def make_scope(
    method: str, target: bytes, version: str, headers: list[Header], extensions: dict[str, Any], **known: Any
) -> Scope:
    """Return the scope of a request; `known` are `client`, `server`, `scheme`, `root_path` and `state`.

    Raises `httptools.HttpParserError` for a target that is not a URL.
    """
    url: Any = httptools.parse_url(target)  # whose path and query may be None
    raw_path: bytes = url.path or b"/"  # RFC 9110, 4.2.3
    path = raw_path.decode("ascii")
    root = known["root_path"]
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": version,
        "method": method,
        "path": root + (unquote(path) if "%" in path else path),
        "raw_path": root.encode("ascii") + raw_path,
        "query_string": url.query or b"",
        "headers": headers,
        "extensions": extensions,
        **known,
    }


class Link(Protocol):
    """The connection of a request."""

    transport: Any

    @property
    def date(self) -> bytes:
        """The line of a response's Date, or empty (`timeouts.ServerContext`)."""

    async def drained(self) -> None:
        """Return when all written bytes are in the kernel, or never will be."""

    def answered(self, cycle: Cycle) -> None:
        """Note that all of the response is written."""


class Cycle:
    """A request that an application answers.

    keeps_alive     the connection stays open after the response
    more_body       the request is not complete
    is_begun        the head of the response is written
    is_complete     all of it is written
    is_lost         nothing is written any more: the peer has gone, or was refused
    is_half_closed  the peer has ended its stream, and may read on: who waits for its end is notified, and what is sent
                    nevertheless is written
    """

    __slots__ = (
        "_body",
        "_expects_continue",
        "_has_given_body",
        "_is_chunked",
        "_left_bytes",
        "_link",
        "_news",
        "_scope",
        "is_begun",
        "is_complete",
        "is_half_closed",
        "is_lost",
        "keeps_alive",
        "more_body",
    )

    def __init__(self, link: Link, scope: Scope, *, keeps_alive: bool, expects_continue: bool) -> None:
        self.keeps_alive = keeps_alive
        self.more_body = True
        self.is_begun = False
        self.is_complete = False
        self.is_lost = False
        self.is_half_closed = False
        self._link = link
        self._scope = scope
        self._expects_continue = expects_continue
        self._has_given_body = False  # to the application, all of it
        self._body = bytearray()
        self._news = asyncio.Event()
        self._is_chunked = False
        self._left_bytes = 0  # of the response's body, by its Content-Length

    # What the connection calls

    @property
    def is_head(self) -> bool:
        """Whether the response has no body (RFC 9110, 9.3.2)."""
        return bool(self._scope["method"] == "HEAD")

    def add_body(self, piece: bytes) -> None:
        """Add a piece of the request's body; what comes after the response is of no use any more."""
        if not self.is_complete:
            self._body += piece
            self._news.set()

    def end_body(self) -> None:
        """Note that the request is complete."""
        self.more_body = False
        self._news.set()

    def lose(self) -> None:
        """Write nothing any more, and let the application know, unless the response is complete."""
        if not self.is_complete:
            self.is_lost = True
            self._expects_continue = False
        self._news.set()

    def half_close(self) -> None:
        """Note that the peer has ended its stream, behind all of the request."""
        self.is_half_closed = True
        self._news.set()

    async def run(self, app: ASGIApp) -> None:
        """Have the application answer. What it raises or leaves undone is logged, and is 500 if nothing is written."""
        try:
            await app(self._scope, self.receive, self.send)
        except BaseException as error:  # noqa: BLE001 - also that the task is cancelled: its client gets an answer
            _log.error("Exception in ASGI application\n", exc_info=error)
        else:
            if self.is_complete or self.is_lost:
                return
            if self.is_half_closed:  # the application takes its peer for gone
                self._link.transport.close()
                return
            step = "completing" if self.is_begun else "starting"
            _log.error("ASGI callable returned without %s response.", step)
        if self.is_begun:
            self._link.transport.close()
        else:
            await self.send({"type": "http.response.start", "status": 500, "headers": _FAILED_HEADERS})
            await self.send({"type": "http.response.body", "body": _FAILED})

    # ASGI

    async def receive(self) -> Message:
        """Return what has come of the request's body, or that the client has gone or the response is complete."""
        transport = self._link.transport
        if self._expects_continue and not transport.is_closing():
            transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._expects_continue = False
        if not self._is_over():
            await self._news.wait()
            self._news.clear()
        if self._is_over():
            return {"type": "http.disconnect"}
        body, self._body = bytes(self._body), bytearray()
        self._has_given_body = not self.more_body
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    def _is_over(self) -> bool:
        """Whether the peer sends nothing more that the application waits for."""
        return self.is_lost or self.is_complete or (self.is_half_closed and self._has_given_body)

    async def send(self, message: Message) -> None:
        """Write the head of the response, or a part of its body. Raises `RuntimeError` if it is not what can follow."""
        if not self.is_lost:
            await self._link.drained()
        if self.is_lost:
            return
        kind = message["type"]
        if self.is_complete:
            raise RuntimeError(f"Unexpected ASGI message '{kind}' sent, after response already completed.")
        expected = "http.response.body" if self.is_begun else "http.response.start"
        if kind != expected:
            raise RuntimeError(f"Expected ASGI message '{expected}', but got '{kind}'.")
        if self.is_begun:
            self._send_body(message.get("body", b""), is_last=not message.get("more_body", False))
        else:
            self._send_head(message["status"], list(message.get("headers", ())))

    def _send_head(self, status: int, headers: list[Header]) -> None:
        lines = [status_line(status), self._link.date]
        keeps_alive, has_length, is_chunked, left_bytes = self.keeps_alive, False, False, 0
        has_close = False
        for given, value in headers:
            if _NOT_IN_NAMES.search(given) or _NOT_IN_VALUES.search(value):
                raise RuntimeError(f"Invalid HTTP header: {given!r}")
            name = given.lower()
            if name == b"content-length" and not (has_length or is_chunked):
                has_length, left_bytes = True, int(value)
            elif name == b"transfer-encoding" and value.lower() == b"chunked":
                is_chunked, left_bytes = True, 0
            elif name == b"connection" and b"close" in [token.strip() for token in value.lower().split(b",")]:
                has_close, keeps_alive = True, False
            elif name == b"date":  # the application's own
                lines[1] = b""
            lines += (name, b": ", value, b"\r\n")
        if not (keeps_alive or has_close):
            lines.append(b"connection: close\r\n")
        if not (has_length or is_chunked or self.is_head or status in _BODILESS):
            if self._scope["http_version"] == "1.0":  # which has no chunks (RFC 9112, 6.1)
                left_bytes = _UNTIL_CLOSE
            else:
                is_chunked = True
                lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n")
        self.is_begun, self._expects_continue = True, False  # not before: a head that is refused is not written
        self.keeps_alive, self._is_chunked, self._left_bytes = keeps_alive, is_chunked, left_bytes
        self._link.transport.write(b"".join(lines))

    def _send_body(self, piece: bytes, *, is_last: bool) -> None:
        transport = self._link.transport
        if self.is_head:
            self._left_bytes = 0
        elif self._is_chunked:
            chunk = b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""
            transport.write(chunk + (b"0\r\n\r\n" if is_last else b""))
        elif self._left_bytes == _UNTIL_CLOSE:
            transport.write(piece)
        else:
            if len(piece) > self._left_bytes:
                raise RuntimeError("Response content longer than Content-Length")
            self._left_bytes -= len(piece)
            transport.write(piece)
        if is_last:
            if self._left_bytes > 0:
                raise RuntimeError("Response content shorter than Content-Length")
            self.is_complete = True
            self._news.set()
            if not self.keeps_alive:
                transport.close()
            self._link.answered(self)
