"""Compressed responses (RFC 9110, 8.4 and 12.5.3): which coding a client takes, and the middleware that writes it.

This is for pages of the history and of the log, and for files. Responses to sessions (polls, JSONP, streams) are never
compressed: they have secrets together with the text of others, and by the size of such a response those who send the
text could find out the secrets (BREACH).

Starlette's own middleware is not enough: it overlooks weights, so `gzip;q=0` is given gzip; it compresses a whole page
at once, and at the level that takes longest, while nobody else is served.
"""

from __future__ import annotations

import asyncio
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from halley.transports.head import Header, weights

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LEAST_BYTES = 1_024
"""What is smaller fits into a packet as it is."""

VARY: Header = (b"vary", b"Accept-Encoding")
"""Of every response that could have been compressed, for caches (RFC 9110, 12.5.5)."""

GZIP, ZSTD = "gzip", "zstd"
QUICK, SMALL = 1, 9
"""Levels: for what is compressed for one client, and for what is compressed once. The first takes a sixth of the time
of the other, for an eighth more."""

_AT_ONCE_BYTES = 16_384
"""A piece up to here is compressed on the event loop, within 0.2 ms; a thread is for more, and zlib lets others run."""

_THREAD = ThreadPoolExecutor(1, "compression")
"""One, for all servers of the process: several would leave the event loop too little of a machine with few cores."""


class Encoder(Protocol):
    """What compresses: zlib's or zstd's object."""

    def compress(self, data: bytes, /) -> bytes:
        """Return what is ready of the compressed bytes, with `data` behind all before."""

    def flush(self) -> bytes:
        """Return the rest, with the end."""


def encoder(coding: str, level: int) -> Encoder:
    """What compresses in one of the codings, at a level of zlib."""
    if coding == GZIP:
        return zlib.compressobj(level, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    made: Encoder = zstd.ZstdCompressor(level)
    return made


def coding_of(scope: Scope) -> str:
    """The coding for a response, as its request wants it most: zstd if it is named, or gzip, or none.

    Empty without one, also where the client gives gzip less weight than no coding.
    """
    fields = [value for name, value in scope["headers"] if name == b"accept-encoding"]
    if not fields:
        return ""
    wanted = weights(b",".join(fields).decode("latin-1"))
    by_gzip = wanted.get(GZIP, wanted.get("*", 0.0))
    by_zstd = wanted.get(ZSTD, 0.0)
    best = max(by_gzip, by_zstd)
    if best <= 0 or best < wanted.get("identity", 0.0):
        return ""
    return ZSTD if by_zstd == best else GZIP


class CompressionMiddleware:
    """ASGI middleware that compresses complete and streamed responses of 1,024 bytes and more, if the client wants it.

    Of a stream the first piece decides.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, and compress its response (ASGI)."""
        await self._app(scope, receive, _Response(coding_of(scope), send).send)


class _Response:
    """One response on its way, in a coding or, where that is empty, as it is."""

    def __init__(self, coding: str, send: Send) -> None:
        self._coding = coding
        self._send = send
        self._start: Message | None = None  # until it is known whether what follows is compressed
        self._encoder: Encoder | None = None

    async def send(self, event: Message) -> None:
        """Take an event of the application (ASGI)."""
        if event["type"] == "http.response.start":
            self._start = event
            return
        body: bytes = event.get("body", b"")
        has_more: bool = event.get("more_body", False)
        start, self._start = self._start, None
        if start is not None and self._coding and len(body) >= LEAST_BYTES:
            self._encoder = encoder(self._coding, QUICK)
        if self._encoder is not None:
            body = await _compressed(self._encoder, body, is_last=not has_more)
        if start is not None:
            length = None if has_more else len(body)
            await self._send({**start, "headers": [*self._headers(start["headers"], length), VARY]})
        if body or not has_more:
            await self._send({"type": "http.response.body", "body": body, "more_body": has_more})

    def _headers(self, headers: list[Header], length: int | None) -> list[Header]:
        if self._encoder is None:
            return headers
        changed = [header for header in headers if header[0] != b"content-length"]
        changed.append((b"content-encoding", self._coding.encode()))
        if length is not None:
            changed.append((b"content-length", b"%d" % length))
        return changed


async def _compressed(by: Encoder, data: bytes, *, is_last: bool) -> bytes:
    """Compress one piece, with the end behind the last; the loop is free meanwhile, unless it is a small piece."""

    def work() -> bytes:
        return by.compress(data) + (by.flush() if is_last else b"")

    if len(data) <= _AT_ONCE_BYTES:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_THREAD, work)
