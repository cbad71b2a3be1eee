"""HTTP/1.1 responses as bytes.

`date` is the line of a response's Date, or empty where it has none (`timeouts.ServerContext`).
"""

from __future__ import annotations

from collections.abc import Iterable
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

from halley.transports.head import Header, header_lines

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


def date_line(wall_s: float) -> bytes:
    """Return the line of a response that was made at this time, in seconds since 1970 (RFC 9110, 6.6.1)."""
    return b"date: %b\r\n" % formatdate(wall_s, usegmt=True).encode()


def dated(whole: bytes, date: bytes) -> bytes:
    """Return a response, of which `whole` is all, with this line behind its first one."""
    end = whole.index(b"\n") + 1
    return b"".join((whole[:end], date, whole[end:]))


def head_lines(status: int, headers: Iterable[Header], date: bytes) -> bytes:
    """Return the lines of a response's head, without the empty one that ends it."""
    return status_line(status) + date + header_lines(headers)


def response(status: int, headers: Iterable[Header], body: bytes, date: bytes, *, is_head: bool = False) -> bytes:
    """Return a whole response; its Content-Length is added to `headers`. One to HEAD has no body (RFC 9110, 9.3.2)."""
    lines = head_lines(status, headers, date)
    return b"%bcontent-length: %d\r\n\r\n%b" % (lines, len(body), b"" if is_head else body)


LENGTH_LINES: Final = [b"content-length: %d\r\n" % nbytes for nbytes in range(1_024)]
"""Those of usual responses."""


def length_line(nbytes: int) -> bytes:
    """Return the line of a body's length."""
    return LENGTH_LINES[nbytes] if nbytes < len(LENGTH_LINES) else b"content-length: %d\r\n" % nbytes
