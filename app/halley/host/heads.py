"""The head of a request: what the parser accepts, and is refused or understood otherwise here.

httptools' parser takes some heads that other programs take for another request, or for none. Where a proxy in front of
the server is such a program, requests could be smuggled past it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import unquote

import httptools

from halley.settings import Limits
from halley.transports.guard import Rejection
from halley.transports.head import Head, Header

_PLAIN_TARGET = re.compile(rb"/[A-Za-z0-9/._~-]*")
_SPACED_LINE = re.compile(rb"(?<![!-~])[!-~]+(?:  +[!-~]+ +| [!-~]+  +)HTTP/[0-9.]+\r\n")
_OTHER_PROTOCOL = re.compile(rb"(?<![!-~])[!-~]+ [!-~]+ (?:RTSP|ICE)/[0-9.]+\r\n")
_HTTP_VERSION = re.compile(rb" HTTP/[0-9]\.[0-9]\Z")
_HUGE_LENGTH = re.compile(rb"^content-length:[ \t]*[0-9]{19,}[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)

NOT_IN_TRAILERS: Final = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"),
        *(b"content-length", b"expect", b"host"),
    )
)
"""What frames a message or is about the connection: the parser goes by such a trailer as by a header."""


def parser_for(connection: object) -> httptools.HttpRequestParser:
    """Return a parser that calls the connection, before a request; what follows the last one is parsed as well.

    It takes any version, which `check_line` looks at.
    """
    parser = httptools.HttpRequestParser(connection)
    parser.set_dangerous_leniencies(lenient_data_after_close=True, lenient_version=True)
    return parser


def version_of(parser: Any) -> str:
    """Return the version by which a request is served; a later one of HTTP/1 is served as 1.1 (RFC 9110, 2.5)."""
    return "1.0" if parser.get_http_version() == "1.0" else "1.1"


def check_line(window: bytes, version: str, *, is_first: bool) -> None:
    """Check that a request line has two spaces, and HTTP/1.x behind the second one (RFC 9112, 3).

    `window` has the request's head, which begins it if `is_first`. Where a request begins behind another one is not
    known, so there any line counts that could be one. Raises `Rejection`.
    """
    if is_first:
        line = window.lstrip(b"\r\n").partition(b"\r\n")[0]
        is_sound = line.count(b" ") == 2 and _HTTP_VERSION.search(line) is not None
    else:
        is_sound = not (_SPACED_LINE.search(window) or _OTHER_PROTOCOL.search(window))
    if not is_sound or version[0] == "0":
        raise Rejection(HTTPStatus.BAD_REQUEST, "bad request")
    if version[0] != "1":
        raise Rejection(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "expected HTTP/1.1")


def check_head(url: bytes, headers: Sequence[Header], version: str, fed_bytes: int, limits: Limits) -> None:
    """Check the limits of a head, and how its body is framed. Raises `Rejection`.

    `fed_bytes` are those of the head, and may include bytes behind it: where they are too many, it is counted exactly.
    """
    if len(headers) > limits.headers:
        raise _too_large("too many headers", "headers")
    if fed_bytes > limits.head_bytes:
        head_bytes = len(url) + sum(len(name) + len(value) + 4 for name, value in headers)
        if head_bytes > limits.head_bytes:
            raise _too_large("request head too large", "head_bytes")
    if b"?" in url and len(url.partition(b"?")[2]) > limits.query_bytes:
        raise Rejection(HTTPStatus.REQUEST_URI_TOO_LONG, "query too long", limit="query_bytes")
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    # A proxy may read such framing differently, which lets requests be smuggled (RFC 9112, 6.1).
    if codings and (version == "1.0" or len(codings) != 1 or codings[0].strip().lower() != b"chunked"):
        raise Rejection(HTTPStatus.BAD_REQUEST, "transfer encoding not supported")


def check_fed(fed_bytes: int, headers: int, limits: Limits) -> None:
    """Check what was received of a head whose end has not come. Raises `Rejection`."""
    if fed_bytes > limits.head_bytes:
        raise _too_large("request head too large", "head_bytes")
    if headers > limits.headers:
        raise _too_large("too many headers", "headers")


def body_too_large() -> Rejection:
    """Return the refusal of a body that is longer than `limits.body_bytes`."""
    return Rejection(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "request body too large", limit="body_bytes")


def cannot_parse(piece: bytes, *, is_in_head: bool) -> Rejection:
    """Return the refusal of a piece at which the parser has stopped."""
    if is_in_head and _HUGE_LENGTH.search(piece):  # a number too large for the parser
        return body_too_large()
    return Rejection(HTTPStatus.BAD_REQUEST, "bad request")


def offers_websocket(parser: Any, headers: Sequence[Header]) -> bool:
    """Whether a request would become a WebSocket, maybe among other protocols (RFC 9110, 7.8: a list)."""
    offered = b",".join([value for name, value in headers if name == b"upgrade"]).lower()
    if offered == b"websocket":
        return True
    return parser.get_method() == b"GET" and b"websocket" in [name.strip() for name in offered.split(b",")]


def head_again(parser: Any, url: bytes, headers: Sequence[Header], *, keeps_upgrade: bool) -> bytes:
    """Return the bytes of a head that is to be parsed again, as it is or without what asks for an upgrade."""
    lines = [b"%b %b HTTP/%b" % (parser.get_method(), url, parser.get_http_version().encode())]
    lines += [b"%b: %b" % header for header in headers if keeps_upgrade or header[0] != b"connection"]
    if not (keeps_upgrade or parser.should_keep_alive()):
        lines.append(b"connection: close")
    return b"\r\n".join((*lines, b"\r\n"))


def head_at(method: str, target: bytes, fields: dict[bytes, bytes], source: tuple[str, str], port: int) -> Head:
    """Return the head of a request that was received; `source` are the client's address and scheme.

    Raises `httptools.HttpParserError` for a target that is not a URL.
    """
    path, query = target, b""
    if not _PLAIN_TARGET.fullmatch(target):
        url: Any = httptools.parse_url(target)  # whose path and query may be None
        path, query = url.path or b"/", url.query or b""  # RFC 9110, 4.2.3
    text = path.decode("ascii")
    address, scheme = source
    return Head(method, unquote(text) if "%" in text else text, query, fields, address, scheme, port, target)


def origin_form(target: bytes) -> bytes:
    """Return the path and query of a request target that may be in absolute form (RFC 9112, 3.2).

    Raises `httptools.HttpParserError` for one that is not a URL.
    """
    if target.startswith(b"/"):
        return target
    url: Any = httptools.parse_url(target)  # whose path and query may be None
    return (url.path or b"/") + (b"?%b" % url.query if url.query else b"")


def _too_large(text: str, limit: str) -> Rejection:
    return Rejection(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, text, limit=limit)
