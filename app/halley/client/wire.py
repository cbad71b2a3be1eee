"""HTTP requests of the clients: where a server is, how its token is sent, and what an error means.

`Wire` sends JSON messages and returns JSON messages, within a deadline. It has no notion of sessions. Failures are
classified by what the sender needs to know: `Unreachable` if nothing can have been done, `OutcomeUnknown` if something
may have been done, `Refused` if the server refused the request.
"""

from __future__ import annotations

import asyncio
import functools
import json
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

import httpx

from halley.client.errors import OutcomeUnknown, Refused, Unreachable

Trace = Callable[[str, object], Awaitable[None]]  # called by httpx at each step of a request

DEFAULT_PATH = "/bayeux"

_CONNECT_S = 10.0
_RESPONSE_BYTES = 67_108_864
_LARGE_BYTES = 1_048_576
"""A server replies immediately that a request is too large, and continues to read for a while, so that the reply is not
lost (RFC 9112, 9.6). For a request larger than this it may be lost: the connection breaks before all of it is sent."""

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # RFC 6750, 2.1
_UNDONE = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})


class _HungUp(Exception):
    """The connection was lost in the middle of a large request, which cannot have had an effect."""


class Wire:
    """The HTTP connections to one server. Cookies are kept, since sessions and load balancers may depend on them."""

    connection_type = "long-polling"
    """The name of the transport that is used now (Bayeux 1.0, 5)."""

    def __init__(self, url: str, token: str | None) -> None:
        """Set the server's URL and the token for it. Raises `ValueError` if either is invalid."""
        self.url = server_url(url)
        self._http = http_client(self.url, token, {"Content-Type": "application/json"})

    @property
    def name(self) -> str:
        """The server's URL without user and password, for messages."""
        return str(self.url.copy_with(userinfo=b""))

    @property
    def connection_types(self) -> list[str]:
        """The names of the transports that a handshake offers."""
        return [self.connection_type]

    async def close(self) -> None:
        """Close all connections to the server; nothing can be posted after that."""
        await self._http.aclose()

    async def open(self, within_s: float) -> bool:  # noqa: ARG002 - for other transports
        """Prepare for a handshake or a connect; True if there is a new connection, of which the server should know."""
        return False

    async def poll(self, messages: Mapping[str, str], within_s: float) -> list[dict[str, Any]]:
        """Send a handshake or a connect, as `post` does."""
        return await self.post(messages, within_s)

    async def avoid_socket(self) -> bool:
        """Use no WebSocket, since the server does not acknowledge events; True if a new handshake is due."""
        return False

    async def post(self, messages: Mapping[str, str], within_s: float) -> list[dict[str, Any]]:
        """Send messages, JSON texts by their ids, and return the messages of the response, within `within_s` seconds.

        Raises `Unreachable`, `OutcomeUnknown`, or `Refused` with the HTTP status.
        """
        body = f"[{','.join(messages.values())}]".encode()
        deadline = asyncio.get_running_loop().time() + within_s
        try:
            response, answer = await self._exchange(body, within_s)
        except _HungUp:  # try once more: the server may have been killed at that moment
            try:
                response, answer = await self._exchange(body, deadline - asyncio.get_running_loop().time())
            except _HungUp as error:
                reason = f"{self.name} closed the connection during a request of {len(body):,} bytes"
                raise Refused(reason, status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE) from error
        _check_status(response, self.name)
        return messages_of(answer, self.name)

    async def _exchange(self, body: bytes, within_s: float) -> tuple[httpx.Response, bytes]:
        """Send one request and return its response and body. Raises `Unreachable`, `OutcomeUnknown`, `_HungUp`."""
        is_sent = is_whole = False

        async def trace(step: str, _: object) -> None:
            nonlocal is_sent, is_whole
            is_sent = is_sent or step.endswith("send_request_headers.started")
            is_whole = is_whole or step.endswith("send_request_body.complete")

        try:
            async with asyncio.timeout(within_s):
                return await self._send(body, trace)
        except (TimeoutError, httpx.HTTPError) as error:
            if not is_sent:
                raise Unreachable(f"cannot connect to {self.name} ({reason_of(error)})") from error
            if isinstance(error, TimeoutError):
                raise OutcomeUnknown(f"no response from {self.name} within {within_s:g} s") from error
            if not is_whole and len(body) > _LARGE_BYTES:
                raise _HungUp from error
            raise OutcomeUnknown(f"connection to {self.name} lost ({reason_of(error)})") from error

    async def _send(self, body: bytes, trace: Trace) -> tuple[httpx.Response, bytes]:
        async with self._http.stream(**self._request(body), extensions={"trace": trace}) as response:
            answer = bytearray()
            async for chunk in response.aiter_bytes():
                answer += chunk
                if len(answer) > _RESPONSE_BYTES:
                    raise httpx.ReadError("the response is too large")
            return response, bytes(answer)

    def _request(self, body: bytes) -> dict[str, Any]:
        """Return the arguments of httpx' `stream` for a request with these messages."""
        return {"method": "POST", "url": self.url, "content": body}


def http_client(
    url: httpx.URL, token: str | None, headers: dict[str, str], silence_s: float | None = None
) -> httpx.AsyncClient:
    """Return a client of httpx for one server. `silence_s` bounds each pause of a response, if it is not None.

    Raises `ValueError` for an invalid token.
    """
    timeout = httpx.Timeout(silence_s, connect=_CONNECT_S)
    return httpx.AsyncClient(headers=headers_for(token) | headers, timeout=timeout, verify=authorities(url))


def headers_for(token: str | None) -> dict[str, str]:
    """Return the headers of every request. Raises `ValueError` for an invalid token."""
    return {"Accept-Encoding": "identity", "User-Agent": "halley", **bearer(token)}


def bearer(token: str | None) -> dict[str, str]:
    """Return the header with a token, if there is one. Raises `ValueError` for an invalid token."""
    if token is None:
        return {}
    if not _TOKEN.fullmatch(token):
        raise ValueError("a token consists of letters, digits and -._~+/ with = at its end")
    return {"Authorization": f"Bearer {token}"}


def authorities(url: httpx.URL) -> ssl.SSLContext | bool:
    """Return what a client verifies the server of `url` by (httpx's `verify`).

    All clients of a process share it, and none has it for http://, since it takes a tenth of a second to read.
    """
    return _authorities() if url.scheme == "https" else False


@functools.cache
def _authorities() -> ssl.SSLContext:
    return httpx.create_ssl_context()


def server_url(text: str) -> httpx.URL:
    """Return the URL of a server's Bayeux endpoint; without a path, it gets `/bayeux`. Raises `ValueError`."""
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise ValueError(f"not a URL ({error})") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError("expected a URL like http://127.0.0.1:8080")
    return url.copy_with(path=DEFAULT_PATH) if url.path == "/" else url


def root_url(text: str) -> httpx.URL:
    """Return the URL under which a server has its APIs, from that of its Bayeux endpoint. Raises `ValueError`."""
    url = server_url(text)
    return url.copy_with(path=url.path.removesuffix("/").rpartition("/")[0] + "/", query=None, fragment=None)


def _check_status(response: httpx.Response, name: str) -> None:
    status = response.status_code
    if status == HTTPStatus.OK:
        return
    reason = f"HTTP {status} {response.reason_phrase} from {name}"
    if status in _UNDONE:
        after = response.headers.get("Retry-After", "")
        raise Unreachable(reason, float(after) if re.fullmatch(r"\d{1,5}", after) else 0.0)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise OutcomeUnknown(reason)
    raise Refused(reason, status=status)


def messages_of(body: str | bytes, name: str) -> list[dict[str, Any]]:
    """Return the Bayeux messages in a response or frame from the server `name`. Raises `OutcomeUnknown`."""
    try:
        messages = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise OutcomeUnknown(f"not JSON: the response from {name}") from error
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise OutcomeUnknown(f"not Bayeux messages: the response from {name}")
    return messages


def reason_of(error: Exception) -> str:
    """Return what is wrong with a connection, for messages."""
    if isinstance(error, TimeoutError):
        return "the time has run out"
    return str(error) or type(error).__name__
