"""The responses of the HTTP APIs: all content of the log and of access rules, in one piece or in several."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from halley import telemetry
from halley.transports.api.identity import caller_of
from halley.transports.asgi import host_connection
from halley.transports.bodies import disconnected
from halley.transports.guard import Rejection
from halley.transports.head import UNCACHED, Header
from halley.transports.middleware import Begun, GuardedResponse, cors_in

PRIVATE = (
    *UNCACHED,
    (b"cross-origin-resource-policy", b"same-origin"),  # no page of another site embeds it; CORS is another matter
)
_CUT_S = 1.0


class Content(GuardedResponse):
    """A response that is complete; `more` are further headers."""

    def __init__(self, request: Request, content_type: bytes, body: bytes, *more: Header) -> None:
        super().__init__(request, body, (b"content-type", content_type), *PRIVATE, *more)


class Stream(StreamingResponse):
    """A response whose body is sent piece by piece.

    It ends without its last chunk if a piece cannot be made or its reader has lost the right to it, so that it is not
    taken for complete, or if the peer reads nothing for `write_s` seconds. Halley's own host has such a deadline
    itself; other servers may wait forever.
    """

    def __init__(
        self,
        request: Request,
        content_type: bytes,
        pieces: AsyncGenerator[bytes, None],
        *more: Header,
        write_s: float,
        status: int = 200,
    ) -> None:
        super().__init__(pieces, status)
        self.raw_headers += [(b"content-type", content_type), *PRIVATE, *cors_in(request.scope), *more]
        self._caller = caller_of(request)
        self._pieces = pieces
        self._write_s = write_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response (ASGI). Raises `Begun` if it fails half-way, `Rejection` before it has begun."""
        connection = host_connection(scope)
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async with aclosing(self._pieces):
                async for piece in self._pieces:
                    async with asyncio.timeout(None if connection is not None else self._write_s):
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
        except Exception as error:
            if isinstance(error, Rejection) and not self._caller.has_begun:  # a middleware has kept its head back
                raise
            if not isinstance(error, TimeoutError | Rejection):
                telemetry.fault("request", error)
            if connection is not None:  # another server ends the connection when no more events are sent
                connection.cut("log")
                with suppress(TimeoutError):
                    async with asyncio.timeout(_CUT_S):
                        await disconnected(receive)
            raise Begun from error
        await send({"type": "http.response.body", "body": b""})


def base_url(request: Request) -> str:
    """The server's URL without a slash at the end, as the caller wrote it; the guard has checked the host.

    Starlette's `base_url` lacks the path at which this application is mounted.
    """
    root: str = request.scope.get("root_path", "").rstrip("/")
    return f"{request.scope['scheme']}://{request.headers['host']}{root}"
