"""The door: what is wrong with a request before its messages are looked at.

Methods, Host, Origin and CORS, sizes and encodings. Answers are fixed texts: nothing of the request is repeated.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from app.settings import is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import Scope

    from app.settings import Settings

    Header = tuple[bytes, bytes]

_ALLOWED_METHODS = b"GET, POST, OPTIONS"
_PREFLIGHT = (
    (b"access-control-allow-methods", b"POST, GET"),
    (b"access-control-allow-headers", b"accept, authorization, cache-control, content-type, pragma, x-requested-with"),
)
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{0,5}))?")
_LAST_PORT = 65_535
_DEFAULT_PORTS = {"http": 80, "https": 443}


class Rejection(Exception):
    """A request that no engine sees: an HTTP status and one fixed sentence.

    `closes` asks for the connection to be closed, where the rest of the request must not be read.
    """

    def __init__(self, status: int, text: str, *, closes: bool = False, headers: Iterable[Header] = ()) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.closes = closes
        self.headers = tuple(headers)


@dataclass(frozen=True, slots=True)
class Head:
    """What was found to be right: headers by lower-case name (the first of each), and what CORS adds to any answer."""

    headers: dict[bytes, bytes]
    cors: tuple[Header, ...]


class Guard:
    """Decides by a listener's settings which requests come in."""

    def __init__(self, settings: Settings) -> None:
        self.is_loopback = is_loopback(settings.host)
        self.is_private = self.is_loopback and not settings.proxies  # only this machine can connect, nobody through it
        self._hosts = frozenset(name.lower() for name in settings.hosts)
        self._origins = frozenset(origin.lower() for origin in settings.cors.origins)
        self._body_bytes = settings.limits.body_bytes
        self._query_bytes = settings.limits.query_bytes
        self._preflight = (*_PREFLIGHT, (b"access-control-max-age", b"%d" % settings.cors.max_age_s))

    @property
    def serves_other_origins(self) -> bool:
        """Whether pages of any other site may speak to this server."""
        return self.is_private or bool(self._origins)

    def check_host(self, scope: Scope) -> None:
        """That Host is there, once, and names this server. Raises `Rejection`.

        A page whose own name was made to point to 127.0.0.1 is stopped here (DNS rebinding).
        """
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1:
            raise Rejection(400, "one Host header is needed", closes=True)
        name, _ = _split(hosts[0].decode("latin-1"))
        is_ours = name in self._hosts or (is_loopback(name) if self.is_loopback else not self._hosts)
        if not name or not is_ours:
            raise Rejection(400, "this Host is not served here")

    def check_head(self, scope: Scope) -> Head:
        """Everything else about a request to a protocol path. Raises `Rejection`."""
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name, value)
        if scope["method"] not in ("GET", "POST", "OPTIONS"):
            raise Rejection(405, "only GET, POST and OPTIONS", headers=((b"allow", _ALLOWED_METHODS),))
        cors = self._check_origin(headers, is_preflight=scope["method"] == "OPTIONS")
        try:
            self._check_body(headers)
            if headers.get(b"upgrade", b"").lower() == b"websocket":
                raise Rejection(400, "no WebSocket here; use long-polling", closes=True)
            if len(scope["query_string"]) > self._query_bytes:
                raise Rejection(414, "query too long")
        except Rejection as rejection:
            rejection.headers += cors
            raise
        return Head(headers, cors)

    def preflight(self, head: Head) -> tuple[Header, ...]:
        """The headers that answer OPTIONS."""
        if not head.cors:
            return ((b"allow", _ALLOWED_METHODS),)
        return (*head.cors, *self._preflight)

    def _check_body(self, headers: dict[bytes, bytes]) -> None:
        if headers.get(b"content-encoding", b"identity").strip().lower() not in (b"identity", b""):
            raise Rejection(415, "content encoding not supported", closes=True)
        length = headers.get(b"content-length", b"0")
        if not length.isdigit():
            raise Rejection(400, "bad Content-Length", closes=True)
        if len(length) > 18 or int(length) > self._body_bytes:
            raise Rejection(413, "request body too large", closes=True)

    def _check_origin(self, headers: dict[bytes, bytes], *, is_preflight: bool) -> tuple[Header, ...]:
        """The CORS headers of any answer: none without an Origin (curl, robots, a page's own scripts)."""
        origin = headers.get(b"origin")
        if origin is None:
            return ()
        if not self._allows_origin(origin.decode("latin-1").lower(), headers.get(b"host", b"").decode("latin-1")):
            if is_preflight:
                raise Rejection(400, "origin not allowed")
            raise Rejection(403, "origin not allowed")
        return (
            (b"access-control-allow-origin", origin),
            (b"access-control-allow-credentials", b"true"),
            (b"vary", b"Origin"),
        )

    def _allows_origin(self, origin: str, host: str) -> bool:
        if origin in self._origins:
            return True
        try:
            parts = urlsplit(origin)
            origin_port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
        except ValueError:
            return False
        if origin_port is None or not parts.hostname:  # "null", file:, extensions
            return False
        name, port = _split(host)
        is_same_site = parts.hostname == name and origin_port == (port or _DEFAULT_PORTS.get(parts.scheme))
        return is_same_site or (self.is_private and is_loopback(parts.hostname))


def _split(host: str) -> tuple[str, int | None]:
    """A Host header's name and port; the name is empty where it is no host (RFC 9112, 3.2)."""
    match = _HOST.fullmatch(host.lower())
    if match is None or int(match[2] or 0) > _LAST_PORT:
        return "", None
    return match[1].strip("[]"), int(match[2]) if match[2] else None
