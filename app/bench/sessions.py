"""A Bayeux session on its own connection: what sessions that receive and those that publish have in common.

Every session keeps the cookie that it got, so each counts as a separate browser and limits per browser do not apply.
"""

from __future__ import annotations

import asyncio
import re

from app.bench.connection import Connection
from app.bench.failure import BenchFailed
from app.bench.requests import Requests
from app.bench.tally import Tally

SUCCESS = b'"successful":true'
_SPACED_SUCCESS = re.compile(rb'"successful"\s*:\s*true')
_CLIENT_ID = re.compile(rb'"clientId"\s*:\s*"([^"\\]{1,200})"')
_COOKIE = re.compile(rb"\r\nset-cookie: *([^;\r\n]{1,500})", re.IGNORECASE)


def is_success(body: bytes) -> bool:
    """Whether a body has a successful reply, with or without spaces in its JSON."""
    return SUCCESS in body or _SPACED_SUCCESS.search(body) is not None


def successes(body: bytes) -> int:
    """Return the number of successful replies in a body."""
    return body.count(SUCCESS) or len(_SPACED_SUCCESS.findall(body))


class Session(Connection):
    """A session that is opened request by request (`ask`); afterwards `worked` is called with every response."""

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
        """Send a handshake, which begins the session. Raises `BenchFailed`."""
        head, body = await self.ask(self._requests.handshake(), "a handshake")
        client_id = _CLIENT_ID.search(body)
        if client_id is None:
            raise BenchFailed(f"a handshake reply has no clientId: {_shown(body)}")
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
        """Count the session as open; from now on, losing its connection is an error that is counted."""
        self._is_counted = True
        self._tally.connections += 1

    def leave(self) -> None:
        """Close the connection without a disconnect; this is not counted as an error."""
        self._is_leaving = True
        self.transport.abort()

    def answered(self, status: int, head: bytes, body: bytes) -> None:
        """Pass a response to the `ask` that waits for it, or else to `worked`."""
        if self._asked is not None:
            if not self._asked.done():
                self._asked.set_result((head, body))
            return
        self.worked(status, body)

    def worked(self, status: int, body: bytes) -> None:
        """Handle a response while the load runs."""
        raise NotImplementedError

    def failed(self, error: Exception) -> None:
        """Count received bytes that are not HTTP as an error."""
        self._tally.errors[str(error)] += 1

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the `ask` that waits for a response, if any, and count the lost connection."""
        if self._asked is not None and not self._asked.done():
            reason = f" ({exc})" if exc else ""
            self._asked.set_exception(BenchFailed(f"the server closed a connection while it was being opened{reason}"))
        if self._is_counted and not self._is_leaving:
            self._tally.disconnected()


def _shown(text: bytes) -> str:
    return text[:200].decode("utf-8", "backslashreplace")
