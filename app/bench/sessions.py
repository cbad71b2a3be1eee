"""A Bayeux session on a connection of its own: what the sessions that receive and those that publish have in common.

Every session keeps the cookie it was given, so each is a browser of its own and limits per browser do not apply.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

from app.bench.connection import Connection
from app.bench.failure import BenchFailed

if TYPE_CHECKING:
    from app.bench.requests import Requests
    from app.bench.tally import Tally

SUCCESS = b'"successful":true'
_SPACED_SUCCESS = re.compile(rb'"successful"\s*:\s*true')
_CLIENT_ID = re.compile(rb'"clientId"\s*:\s*"([^"\\]{1,200})"')
_COOKIE = re.compile(rb"\r\nset-cookie: *([^;\r\n]{1,500})", re.IGNORECASE)


def is_success(body: bytes) -> bool:
    """Whether a body has a successful reply, however its server spaces JSON."""
    return SUCCESS in body or _SPACED_SUCCESS.search(body) is not None


def successes(body: bytes) -> int:
    """How many successful replies a body has."""
    return body.count(SUCCESS) or len(_SPACED_SUCCESS.findall(body))


class Session(Connection):
    """Opens in dialogue (`ask`); afterwards `worked` sees every answer."""

    def __init__(self, requests: Requests, tally: Tally) -> None:
        super().__init__()
        self._requests = requests
        self._tally = tally
        self._asked: asyncio.Future[tuple[bytes, bytes]] | None = None
        self._is_leaving = False
        self._is_counted = False
        self.client_id = ""
        self.cookie = b""

    async def handshake(self) -> None:
        """Begin the session. Raises `BenchFailed`."""
        head, body = await self.ask(self._requests.handshake(), "a handshake")
        client_id = _CLIENT_ID.search(body)
        if client_id is None:
            raise BenchFailed(f"a handshake has no clientId: {_shown(body)}")
        self.client_id = client_id[1].decode()
        cookie = _COOKIE.search(head)
        self.cookie = cookie[1] if cookie else b""

    async def ask(self, request: bytes, what: str) -> tuple[bytes, bytes]:
        """Send a request and wait for the response's head and body. Raises `BenchFailed` unless it succeeded."""
        self._asked = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        try:
            head, body = await self._asked
        finally:
            self._asked = None
        if not is_success(body):
            raise BenchFailed(f"the server refused {what}: {_shown(body or head)}")
        return head, body

    def opened(self) -> None:
        """The session is as it should be; from now on losing it is an error that is counted."""
        self._is_counted = True
        self._tally.connections += 1

    def leave(self) -> None:
        """Close the connection without a word."""
        self._is_leaving = True
        self.transport.abort()

    def answered(self, status: int, head: bytes, body: bytes) -> None:
        """Hand the answer to whoever asked, or go on working."""
        if self._asked is not None:
            if not self._asked.done():
                self._asked.set_result((head, body))
            return
        self.worked(status, body)

    def worked(self, status: int, body: bytes) -> None:
        """An answer came while the load runs."""
        raise NotImplementedError

    def failed(self, error: Exception) -> None:
        """Count what is no HTTP."""
        self._tally.errors[str(error)] += 1

    def connection_lost(self, exc: Exception | None) -> None:
        """Whoever asked must not wait for ever; and it counts."""
        if self._asked is not None and not self._asked.done():
            reason = f" ({exc})" if exc else ""
            self._asked.set_exception(BenchFailed(f"the server closed a connection while it was opened{reason}"))
        if self._is_counted and not self._is_leaving:
            self._tally.disconnected()


def _shown(text: bytes) -> str:
    return text[:200].decode("utf-8", "backslashreplace")
