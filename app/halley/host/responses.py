"""HTTP/1.1 responses as bytes."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Final

from halley.transports.head import Header

_STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


def status_line(status: int) -> bytes:
    """Return a response's first line; a status without a name has none in it.

    Raises `RuntimeError` for other numbers than those of statuses (RFC 9110, 15).
    """
    line = _STATUS_LINES.get(status)
    if line is None:
        if not 100 <= status <= 599:
            raise RuntimeError(f"Invalid HTTP status: {status}")
        line = b"HTTP/1.1 %d \r\n" % status
    return line


def head_lines(status: int, headers: Iterable[Header]) -> bytes:
    """Return the lines of a response's head, without the empty one that ends it."""
    lines = [name + b": " + value + b"\r\n" for name, value in headers]
    return status_line(status) + b"".join(lines)


def begin(status: int, headers: Iterable[Header]) -> bytes:
    """Return the part of a response that ends before the value of its Content-Length."""
    return head_lines(status, headers) + b"content-length: "


def response(status: int, headers: Iterable[Header], body: bytes) -> bytes:
    """Return a whole response; its Content-Length is added to `headers`."""
    return b"%b%d\r\n\r\n%b" % (begin(status, headers), len(body), body)
