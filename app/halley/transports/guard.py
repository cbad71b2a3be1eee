"""The guard: the checks of a request before its messages are looked at.

They cover methods, Host, Origin, Referer and CORS, sizes and encodings. Answers are fixed texts that repeat nothing of
the request.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from halley.broker.remembered import remembered
from halley.settings import Settings, is_loopback
from halley.transports.head import UNCACHED, Head, Header

_ALLOWED_HEADERS = (
    b"accept, authorization, cache-control, content-type, idempotency-key, last-event-id, pragma, traceparent, "
    b"tracestate, x-requested-with"
)
_PREFLIGHT = ((b"access-control-allow-methods", b"POST, GET"), (b"access-control-allow-headers", _ALLOWED_HEADERS))
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{0,5}))?")
_ORIGIN = re.compile(rb"[a-z][a-z0-9+.-]*://([^/?#@\\]+)(?=[/?#]|\Z)", re.IGNORECASE)
"""The origin of a URL, and its host; a URL with a user has none here, nor one that browsers and Python split apart."""
_LAST_PORT = 65_535
_DEFAULT_PORTS = {"http": 80, "https": 443}

TEXT_HEADERS: tuple[Header, ...] = ((b"content-type", b"text/plain; charset=utf-8"), *UNCACHED)
"""The headers of a response that consists of an error text."""


class Rejection(Exception):
    """A request that is answered with an HTTP `status` and one fixed sentence, without reaching an engine.

    `closes`: the connection is to be closed, where the rest of the request must not be read. `limit` is the name
    of the setting that was exceeded, or empty.
    """

    def __init__(
        self, status: int, text: str, *, closes: bool = False, headers: Iterable[Header] = (), limit: str = ""
    ) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.closes = closes
        self.headers = tuple(headers)
        self.limit = limit

    def add_headers(self, headers: Iterable[Header]) -> None:
        """Add those of these headers to its response that it does not have."""
        own = self.headers
        self.headers = (*own, *[header for header in headers if header not in own])


class Guard:
    """Decides by a listener's settings which requests are served."""

    def __init__(self, settings: Settings, *, accepts_nameless: bool = False) -> None:
        """Make a guard; with `accepts_nameless` it accepts an empty Host, which no browser sends."""
        self.is_loopback = is_loopback(settings.host)
        self.is_private = self.is_loopback and not settings.proxies  # only programs of this machine can connect
        self._accepts_nameless = accepts_nameless
        self._hosts = frozenset(name.lower() for name in settings.hosts)
        self._origins = frozenset(origin.lower() for origin in settings.cors.origins)
        self.takes_gzip = settings.gzip_bodies
        self.body_bytes = settings.limits.body_bytes
        self._length_digits = len(str(self.body_bytes))  # what has fewer is within the limit
        self._query_bytes = settings.limits.query_bytes
        self._serves_hidden_pages = settings.bayeux.callback_polling_without_referer
        self.serves = remembered(300_000)(self._is_our_host)
        """Whether a Host header names this server."""
        self._cors_of = remembered(300_000)(self._judge_origin)
        self._preflight = (*_PREFLIGHT, (b"access-control-max-age", b"%d" % settings.cors.max_age_s))

    @property
    def serves_other_origins(self) -> bool:
        """Whether pages of any other site may send requests to this server."""
        return self.is_private or bool(self._origins)

    def check_names(self, headers: Sequence[Header], head: Head) -> None:
        """Check `check_host`, the host of a target in absolute form, and one Origin at most. Raises `Rejection`.

        `headers` are all of the request, with repeated ones.
        """
        target = head.target
        if len(head.fields) == len(headers) and target[:1] == b"/" and self.serves(head.fields.get(b"host", b"?")):
            return
        hosts, origins = [], []
        for name, value in headers:
            if name == b"host":
                hosts.append(value)
            elif name == b"origin":
                origins.append(value)
        self.check_host(*hosts)
        if target[:1] not in (b"/", b"*", b""):  # RFC 9112, 3.2.2: servers go by this host, some by Host
            named = _ORIGIN.match(target)
            self.check_host(b"?" if named is None else named[1])
        if len(origins) > 1:  # one server would go by the first, another by the last
            raise Rejection(403, "origin not allowed")

    def check_host(self, *hosts: bytes) -> None:
        """Check that there is exactly one Host header and that it names this server. Raises `Rejection`.

        This stops a page whose own name was made to point to 127.0.0.1 (DNS rebinding).
        """
        if len(hosts) != 1:
            raise Rejection(400, "expected exactly one Host header", closes=True)
        if not self.serves(hosts[0]):
            raise Rejection(400, "this Host is not served here")

    def check(self, head: Head, methods: tuple[str, ...]) -> tuple[Header, ...]:
        """Check all but the Host of a request; return CORS headers for any response to it. Raises `Rejection`."""
        if head.method not in methods:
            *others, last = methods
            raise Rejection(
                405, f"method not allowed; expected {', '.join(others)} or {last}", headers=(_allow(methods),)
            )
        cors = self.check_fields(head.fields, head.scheme, 400 if head.method == "OPTIONS" else 403)
        if len(head.query_string) > self._query_bytes:
            raise Rejection(414, "query too long", headers=cors, limit="query_bytes")
        return cors

    def check_fields(self, fields: dict[bytes, bytes], scheme: str, denied: int = 403) -> tuple[Header, ...]:
        """Check the origin of a request, and what its headers say of its body and of upgrades.

        Returns the CORS headers for any response to it. Raises `Rejection`, for a wrong origin with status `denied`.
        """
        cors = self._check_origin(fields, scheme, denied) if b"origin" in fields else ()
        length = fields.get(b"content-length", b"0")
        if b"content-encoding" in fields and fields[b"content-encoding"].strip().lower() not in (b"identity", b""):
            raise Rejection(415, "content encoding not supported", closes=True, headers=cors)
        if not length.isdigit():
            raise Rejection(400, "bad Content-Length", closes=True, headers=cors)
        if len(length) >= self._length_digits and (len(length) > 18 or int(length) > self.body_bytes):
            raise Rejection(413, "request body too large", closes=True, headers=cors, limit="body_bytes")
        if b"upgrade" in fields and fields[b"upgrade"].lower() == b"websocket":
            text = "this request opens no WebSocket; use GET, with Connection: Upgrade, on a path that accepts them"
            raise Rejection(400, text, closes=True, headers=cors)
        return cors

    def check_origin(self, head: Head) -> tuple[Header, ...]:
        """Check that the page that sends the request, if a page does, may do so.

        Returns the CORS headers for any response to it. Raises `Rejection`.
        """
        if b"origin" not in head.fields:  # curl, robots and a page of this server send none
            return ()
        return self._check_origin(head.fields, head.scheme, 400 if head.method == "OPTIONS" else 403)

    def check_script(self, head: Head, headers: Iterable[Header]) -> None:
        """Check that the page whose script element sends the request, if one does, may do so. Raises `Rejection`.

        Such requests have no Origin. `Sec-Fetch-Site`, which browsers send to https and to loopback, says whether the
        page is of another origin, and Referer of which; a page can hide its Referer, but cannot change either.
        `headers` are all of the request: each of the two must be the only one of its name, as for Origin.
        """
        deciding = [name for name, _ in headers if name in (b"referer", b"sec-fetch-site")]
        if len(deciding) != len(set(deciding)):  # a proxy may have checked the one that this server does not go by
            raise Rejection(403, "origin not allowed")
        fields = head.fields
        site = fields.get(b"sec-fetch-site", b"none").lower()
        if b"origin" in fields or site == b"same-origin":  # `check_origin` has decided, or there is nothing to decide
            return
        referer = fields.get(b"referer", b"")
        if not referer:
            is_allowed = site == b"none" or self._serves_hidden_pages
        elif (origin := _ORIGIN.match(referer)) is None:
            is_allowed = False
        else:
            is_allowed = self._cors_of((origin[0], fields.get(b"host", b""), head.scheme)) is not None
        if not is_allowed:
            raise Rejection(403, "origin not allowed")

    def preflight(self, cors: tuple[Header, ...], methods: tuple[str, ...]) -> tuple[Header, ...]:
        """The headers of a response to OPTIONS."""
        return (*cors, *self._preflight) if cors else (_allow(methods),)

    def _is_our_host(self, host: bytes) -> bool:
        if not host:
            return self._accepts_nameless
        name, _ = _split(host.decode("latin-1"))
        if not name:
            return False
        return name in self._hosts or (is_loopback(name) if self.is_loopback else not self._hosts)

    def _check_origin(self, fields: dict[bytes, bytes], scheme: str, denied: int) -> tuple[Header, ...]:
        cors = self._cors_of((fields[b"origin"], fields.get(b"host", b""), scheme))
        if cors is None:
            raise Rejection(denied, "origin not allowed")
        return cors

    def _judge_origin(self, asked: tuple[bytes, bytes, str]) -> tuple[Header, ...] | None:
        origin, host, scheme = asked
        if not self._allows_origin(origin.decode("latin-1").lower(), host.decode("latin-1"), scheme):
            return None
        return (
            (b"access-control-allow-origin", origin),
            (b"access-control-allow-credentials", b"true"),
            (b"vary", b"Origin"),
        )

    def _allows_origin(self, origin: str, host: str, scheme: str) -> bool:
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
        if scheme == "https":  # http may be https before a proxy that is not listed; https is certain
            is_same_site = is_same_site and parts.scheme == "https"
        return is_same_site or (self.is_private and is_loopback(parts.hostname))


def check_same_site(head: Head) -> None:
    """Check that no page of another site sends the request, even one that may use Bayeux. Raises `Rejection`."""
    if b"origin" in head.fields:
        origin, host = (head.fields[name].decode("latin-1").lower() for name in (b"origin", b"host"))
        if origin != f"{head.scheme}://{host}":
            raise Rejection(403, "not allowed for pages of other origins")


def check_framing(http_version: str, headers: Iterable[Header]) -> None:
    """Check that a request of HTTP/1.0 has no Transfer-Encoding, which proxies of that version pass on unread.

    Raises `Rejection` (RFC 9112, 6.1). Halley's own host has checked this; other servers may not.
    """
    if http_version == "1.0" and any(name == b"transfer-encoding" for name, _ in headers):
        raise Rejection(400, "transfer encoding not supported", closes=True)


def _split(host: str) -> tuple[str, int | None]:
    """The name and port of a Host header; the name is empty if the header is invalid (RFC 9112, 3.2)."""
    match = _HOST.fullmatch(host.lower())
    if match is None or int(match[2] or 0) > _LAST_PORT:
        return "", None
    return match[1].strip("[]"), int(match[2]) if match[2] else None


def _allow(methods: tuple[str, ...]) -> Header:
    return (b"allow", ", ".join(methods).encode())
