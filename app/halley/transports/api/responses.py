"""A request to an HTTP API, and its response: content of the log or of access rules, in one piece or in several."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

from halley.transports.api.archive import ELSEWHERE, Archive, LocalArchive
from halley.transports.api.identity import Caller
from halley.transports.compression import LEAST_BYTES, QUICK, VARY, coding_of, compressed, compressed_pieces, encoder
from halley.transports.exchange import Exchange, respond_by
from halley.transports.guard import Rejection
from halley.transports.head import CONTENT_LENGTH, UNCACHED, Head, Header, Headers

PRIVATE: Final[tuple[Header, ...]] = (
    *UNCACHED,
    (b"cross-origin-resource-policy", b"same-origin"),  # no page of another site embeds it; CORS is another matter
)


@dataclass(slots=True, eq=False)
class ApiRequest:
    """A request to an API: its exchange, head and body, who calls, and the log that it is about, if it is about one.

    `below` is the part of the path behind that of its route. With `compresses` the response is in the coding that the
    client wants most.
    """

    exchange: Exchange
    head: Head
    body: bytes
    caller: Caller
    below: str
    log: Archive | None
    compresses: bool

    @property
    def archive(self) -> Archive:
        """The log."""
        assert self.log is not None  # the API is about one
        return self.log

    @property
    def local_archive(self) -> LocalArchive:
        """The log with all its rows. Raises `Rejection` (409) where they are on other servers only."""
        local = self.archive.local
        if local is None:
            raise Rejection(409, ELSEWHERE)
        return local

    @property
    def base_url(self) -> str:
        """The server's URL without a slash at the end, as the caller wrote it; the guard has checked the host."""
        return f"{self.head.scheme}://{self.head.headers['host']}{self.head.root}"

    async def respond(self, content_type: bytes, body: bytes | None, *more: Header) -> None:
        """Respond with content that is complete; without, to HEAD, its length is not known. Raises `Rejection`."""
        last: list[Header] = []
        if self.compresses:
            coding = coding_of(self.head)
            if coding and body is not None and len(body) >= LEAST_BYTES:
                body = await compressed(encoder(coding, QUICK), body, is_last=True)
                last.append((b"content-encoding", coding.encode()))
            last += [VARY] if body is None else [CONTENT_LENGTH, VARY]
        self.caller.begin_response()
        self.exchange.respond(200, Headers((b"content-type", content_type), *PRIVATE, *more), body, last)

    async def respond_by(
        self, content_type: bytes, pieces: AsyncGenerator[bytes, None], *more: Header, status: int = 200
    ) -> None:
        """Respond piece by piece. Raises `Rejection` before the first, and `Disconnected` (`exchange.respond_by`)."""
        every = [*more]
        if self.compresses:
            coding = coding_of(self.head)
            first = await anext(pieces, b"")
            is_worth_it = bool(coding) and len(first) >= LEAST_BYTES
            pieces = compressed_pieces(first, pieces, encoder(coding, QUICK) if is_worth_it else None)
            every += [(b"content-encoding", coding.encode()), VARY] if is_worth_it else [VARY]
        self.caller.begin_response()
        await respond_by(self.exchange, status, Headers((b"content-type", content_type), *PRIVATE), pieces, every)
