"""HTTP responses as bytes, for requests that are served without ASGI; in the form that uvicorn writes."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus

from app.transports.guard import TEXT_HEADERS

Header = tuple[bytes, bytes]

STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


def begin(status: int, headers: Iterable[Header]) -> bytes:
    """Return the part of a response that ends before the value of its Content-Length."""
    lines = [name + b": " + value + b"\r\n" for name, value in headers]
    return STATUS_LINES[status] + b"".join(lines) + b"content-length: "


def response(status: int, headers: Iterable[Header], body: bytes) -> bytes:
    """Return a whole response."""
    return b"%b%d\r\n\r\n%b" % (begin(status, headers), len(body), body)


def text_response(status: int, text: str, headers: Iterable[Header]) -> bytes:
    """Return an error response with a plain text; it announces that the connection is closed."""
    return response(status, (*TEXT_HEADERS, *headers, (b"connection", b"close")), text.encode())
