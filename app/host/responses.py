"""HTTP responses as bytes, for what is answered without ASGI; in lower case and in this order, as uvicorn does."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from app.transports.guard import TEXT_HEADERS

if TYPE_CHECKING:
    from collections.abc import Iterable

    Header = tuple[bytes, bytes]

STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


def begin(status: int, headers: Iterable[Header]) -> bytes:
    """A response up to the value of its Content-Length; that, an empty line and the body complete it."""
    lines = [name + b": " + value + b"\r\n" for name, value in headers]
    return STATUS_LINES[status] + b"".join(lines) + b"content-length: "


def response(status: int, headers: Iterable[Header], body: bytes) -> bytes:
    """A whole response."""
    return b"%b%d\r\n\r\n%b" % (begin(status, headers), len(body), body)


def text_response(status: int, text: str, headers: Iterable[Header]) -> bytes:
    """A response that only says why there is no other, and that the connection ends."""
    return response(status, (*TEXT_HEADERS, *headers, (b"connection", b"close")), text.encode())
