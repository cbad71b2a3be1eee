"""A keep-alive connection to the server, with just enough HTTP/1.1 to find the end of each response.

Written for speed: a response that is received in one piece costs one search, one cached head and one slice. Bodies are
not parsed.
"""

from __future__ import annotations

import asyncio
import re
from functools import lru_cache
from typing import cast

CHUNKED = -1

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,15})", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_STATUS = re.compile(rb"HTTP/1\.1 (\d\d\d)")


class NotHttp(Exception):
    """Received bytes are not a response, or the end of the response cannot be determined."""


@lru_cache(maxsize=4_096)  # servers send the same few heads all the time
def framing(head: bytes) -> tuple[int, int]:
    """Return the status of a response and the length of its body in bytes, or `CHUNKED`. Raises `NotHttp`."""
    status = _STATUS.match(head)
    if status is None:
        raise NotHttp("no HTTP/1.1 response")
    if length := _LENGTH.search(head):
        return int(status[1]), int(length[1])
    if _CHUNKED.search(head):
        return int(status[1]), CHUNKED
    raise NotHttp("a response without a length")


def unchunk(data: bytes, start: int) -> tuple[bytes, int] | None:
    """Return the chunked body that begins at `start`, and its end; None if it is incomplete. Raises `NotHttp`."""
    chunks: list[bytes] = []
    while (line_end := data.find(b"\r\n", start)) >= 0:
        try:
            size = int(data[start:line_end].partition(b";")[0], 16)
        except ValueError:
            raise NotHttp("a chunk without a size") from None
        start = line_end + 2
        if len(data) < start + size + 2:
            return None
        chunks.append(data[start : start + size])
        start += size + 2
        if size == 0:
            return b"".join(chunks), start
    return None


class Connection(asyncio.Protocol):
    """A connection that sends one request at a time; subclasses handle the responses."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, which subclasses write their requests to."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Collect received bytes, and call `answered` with each complete response."""
        if self._rest:
            data = self._rest + data
        head_end = data.find(b"\r\n\r\n")
        if head_end < 0:
            self._rest = data
            return
        try:
            head = data[:head_end]
            status, length = framing(head)
            if length == CHUNKED:
                found = unchunk(data, head_end + 4)
                if found is None:
                    self._rest = data
                    return
                body, end = found
            else:
                end = head_end + 4 + length
                if len(data) < end:
                    self._rest = data
                    return
                body = data[head_end + 4 : end]
        except NotHttp as error:
            self.failed(error)
            self.transport.abort()
            return
        self._rest = data[end:]
        self.answered(status, head, body)

    def answered(self, status: int, head: bytes, body: bytes) -> None:
        """Handle the response to the current request."""
        raise NotImplementedError

    def failed(self, error: Exception) -> None:
        """Handle received bytes that are not HTTP; the connection is closed afterwards."""
        raise NotImplementedError
