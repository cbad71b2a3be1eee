"""The head of one HTTP request, the same for hot requests and for ASGI scopes: its path, its fields, and its token.

The guard looks at the raw fields. Hooks can use the other properties (`messages.HttpContext`), which are computed
only then.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, quote

from starlette.types import Scope

Header = tuple[bytes, bytes]
"""A header field of a request or response: its name in lower case, and its value."""

CLOSE: Header = (b"connection", b"close")
BAD_TOKEN: Header = (b"www-authenticate", b'Bearer error="invalid_token"')
JSON: Header = (b"content-type", b"application/json; charset=utf-8")
RETRY_AFTER: Header = (b"retry-after", b"5")
UNCACHED: tuple[Header, ...] = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
"""The headers of every response that must not be cached: of all but the pages' files."""
BODILESS = (204, 304)
"""The statuses of responses that have no body (RFC 9110, 6.4.1), and here no `Content-Length`."""
CONTENT_LENGTH: Header = (b"content-length", b"")
"""Stands in a response's headers where its length is to be put, if that is not behind all others."""

_WEIGHT = re.compile(r";\s*q=([0-9.]{1,5})")
_MOST_PARAMETERS = 100
_SCHEMES: dict[str, str] = {"ws": "http", "wss": "https"}


def header_lines(headers: Iterable[Header]) -> bytes:
    """Return the lines of these headers, as HTTP/1.1 has them."""
    return b"".join([name + b": " + value + b"\r\n" for name, value in headers])


class Headers:
    """Headers that many responses have: as `pairs`, and as the `lines` of HTTP/1.1."""

    __slots__ = ("lines", "pairs")

    def __init__(self, *pairs: Header) -> None:
        self.pairs = pairs
        self.lines = header_lines(pairs)


def fields_of(headers: Sequence[Header]) -> dict[bytes, bytes]:
    """Return the first of each header field by its name, as `Head` has them; a proxy may add another one behind it.

    Of `traceparent` there may be only one: two are one field that is malformed (RFC 9110, 5.3). `accept-encoding` is a
    list, which may be spread over several.
    """
    fields = dict(reversed(headers))
    if len(fields) < len(headers):
        for joined in (b"traceparent", b"accept-encoding"):
            if joined in fields:
                fields[joined] = b",".join(value for name, value in headers if name == joined)
    return fields


@dataclass(slots=True, eq=False)
class Head:
    """Method, path (decoded), query, and the first of each header field by lower-case name.

    `address` and `port` are the client's, empty and 0 where the server does not know them: a proxy does not name the
    client's port. `scheme` is `http` or `https`. A WebSocket's path keeps its percent escapes, since its engine decodes
    it (`contract.Context`). `target` is the request's as it was sent, with a host where it is in absolute form; another
    server than Halley's own gives the path alone. `root` is the path below which the application is mounted.
    """

    method: str
    path: str
    query_string: bytes
    fields: dict[bytes, bytes]
    address: str
    scheme: str
    port: int = 0
    target: bytes = b""
    root: str = ""
    _headers: Mapping[str, str] | None = None

    @classmethod
    def of(cls, scope: Scope) -> Head:
        """Make the head of a request from its ASGI scope; a WebSocket scope has no method, since only GET opens one."""
        client = scope.get("client")
        scheme: str = scope["scheme"]
        return cls(
            scope.get("method", "GET"),
            scope["path"],
            scope["query_string"],
            fields_of(scope["headers"]),
            client[0] if client else "",
            _SCHEMES.get(scheme, scheme),
            (client[1] or 0) if client else 0,
            scope["path"].encode(),
            _root(scope),
        )

    @property
    def own_path(self) -> str:
        """The path below that at which the application is mounted."""
        return _below(self.root, self.path)

    @property
    def headers(self) -> Mapping[str, str]:
        """The header fields as text, by lower-case name."""
        if self._headers is None:
            pairs = self.fields.items()
            self._headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in pairs}
        return self._headers

    @property
    def cookies(self) -> Mapping[str, str]:
        """The cookies by name; empty if the header is malformed."""
        jar: SimpleCookie = SimpleCookie()
        try:
            jar.load(self.fields.get(b"cookie", b"").decode("latin-1"))
        except CookieError:
            return {}
        return {name: morsel.value for name, morsel in jar.items()}

    @property
    def query(self) -> Mapping[str, str]:
        """The parameters of the URL by name; the first of each."""
        found: dict[str, str] = {}
        text = self.query_string.decode("latin-1")
        for name, value in parse_qsl(text, keep_blank_values=True)[:_MOST_PARAMETERS]:
            found.setdefault(name, value)
        return found


def weights(value: str) -> dict[str, float]:
    """What a header such as Accept lists, in lower case, with the weight of each (RFC 9110, 12.4.2), 1 by default."""
    found: dict[str, float] = {}
    for entry in value.lower().split(","):
        name, _, _ = entry.partition(";")
        weight = _WEIGHT.search(entry)
        try:
            found[name.strip()] = 1.0 if weight is None else float(weight[1])
        except ValueError:
            found[name.strip()] = 0.0
    return found


def _root(scope: Scope) -> str:
    root: str = scope.get("root_path", "")
    return root.rstrip("/")


def _below(root: str, path: str) -> str:
    """The rest of a path below `root`; a server may give the path without it."""
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def raw_path(scope: Scope) -> str:
    """The path of a request below the mount path, as it was sent: with its percent escapes."""
    sent: bytes | None = scope.get("raw_path")
    path = quote(scope["path"]) if sent is None else sent.partition(b"?")[0].decode("latin-1")
    return _below(_root(scope), path)


def bearer_token(header: bytes | None) -> str | None:
    """The token of an `Authorization: Bearer` header (RFC 9110, 11.6.2, and RFC 6750, 2.1); None without one.

    Other schemes are ignored: a proxy in front of the server may use them.
    """
    if header is None:
        return None
    scheme, _, token = header.decode("latin-1").strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None
