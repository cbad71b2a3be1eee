"""NATS' protocol on one connection to a server, as it is spoken by clients.

Source: docs.nats.io, "NATS Protocol": INFO, MSG, HMSG, PING, PONG, +OK and -ERR come from a server; `Wire` answers
PING, and gives on what the others say.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from time import monotonic
from typing import Any, Final

import orjson

_CRLF: Final = b"\r\n"
_H: Final = ord("H")
_LINE_BYTES: Final = 65_536
"""The longest line: INFO names all servers of a cluster."""

_MESSAGE_BYTES: Final = 134_217_728
"""More than `max_payload` can be at a server (64 MiB), with headers."""

_TURN_S = 0.005
"""After which the event loop gets a turn, if messages come faster than they are handled: it reads 8 MiB at a time."""

_EACH_BYTES: Final = 512
"""What a message takes besides its headers and its data."""

_STATUS_AT: Final = len("NATS/1.0 ")
_STATUS_END: Final = len("NATS/1.0 503")


class Message:
    """A message that a server has delivered; `head` has its headers as they were sent, b"" without any.

    `subject` and `reply` have a character for each byte (Latin-1): a stranger may have put any into them.
    """

    __slots__ = ("data", "head", "reply", "subject")

    def __init__(self, subject: str, reply: str, head: bytes, data: bytes) -> None:
        self.subject, self.reply, self.head, self.data = subject, reply, head, data

    @property
    def nbytes(self) -> int:
        """About how much memory it takes."""
        return len(self.data) + len(self.head) + _EACH_BYTES

    @property
    def status(self) -> str:
        """The status of a message that the server itself has made, such as "503"; "" for all others."""
        return self.head.partition(_CRLF)[0][_STATUS_AT:_STATUS_END].decode("ascii", "replace")

    def header(self, name: str) -> str:
        """The first header of that name, in this spelling; "" without one."""
        for line in self.head.split(_CRLF)[1:]:
            key, _, value = line.partition(b":")
            if key == name.encode():
                return value.strip().decode("utf-8", "replace")
        return ""


def json_object(data: bytes) -> dict[str, Any]:
    """The JSON object that a stranger may have sent; {} if it is none."""
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


class ProtocolError(Exception):
    """What a server has sent is not NATS' protocol."""


def _too_early(_sid: bytes, _message: Message) -> None:
    raise ProtocolError


class Wire:
    """One connection. `info` is what the server has said of itself last, {} before it has said anything.

    `refusal` is its last -ERR, or why the connection was lost; `unanswered` is how many PINGs it has not answered;
    `is_open` while there is a connection. `take` is called with a subscription's id and each message for it. It is to
    be set when the server has proved who it is: before that messages may be anybody's, and end the connection.

    It has the methods of `asyncio.Protocol`, which is all that event loops ask for: a compiled class that inherits from
    Python's is a slow one.
    """

    def __init__(self, on_error: Callable[[str], None]) -> None:
        """`on_error` is called with the text of each -ERR."""
        self.take: Callable[[bytes, Message], None] = _too_early
        self.info: dict[str, Any] = {}
        self.refusal = ""
        self.unanswered = 0
        self.is_open = False
        self._on_error = on_error
        self._transport: Any = None
        self._parts: list[bytes] = []  # what has arrived of a line or a message that is not complete
        self._nbytes = self._needed = 0  # of these: how many there are, and before how many it cannot be complete
        self._is_late = False  # more has been read than is taken apart
        self._news = asyncio.Event()
        self._may_write = asyncio.Event()
        self._may_write.set()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; `is_open` is true until `connection_lost`."""
        self._transport = transport
        self.is_open = True

    def connection_lost(self, error: Exception | None) -> None:
        """Wake all tasks that wait here; if TLS failed, `refusal` is the reason, unless there is one already."""
        self.is_open = False
        if isinstance(error, ssl.SSLError):  # as when the server does not accept this node's certificate
            self.refusal = self.refusal or str(error)
        self._news.set()
        self._may_write.set()

    def eof_received(self) -> None:
        """Have the transport close (None does): a server that sends no more gets nothing either."""

    def pause_writing(self) -> None:
        """Have `drained` wait until the transport has sent most of what it keeps."""
        self._may_write.clear()

    def resume_writing(self) -> None:
        """Let those who wait in `drained` go on."""
        self._may_write.set()

    def data_received(self, data: bytes) -> None:
        """Take apart what has arrived."""
        if self._parts:
            self._parts.append(data)
            self._nbytes += len(data)
            if self._nbytes < self._needed:
                return
            data = b"".join(self._parts)
        self._is_late = False
        try:
            at = self._read(data)
        except (ProtocolError, ValueError, IndexError):
            self.refusal = "the server does not speak NATS' protocol"
            self.abort()
            return
        self._parts = [data[at:]] if at < len(data) else []
        self._nbytes = len(data) - at
        if self._is_late:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        if self.is_open and not self._transport.is_closing():
            self._transport.resume_reading()
            self.data_received(b"")

    def _read(self, data: bytes) -> int:
        """Handle complete lines and messages, for some ms; return where the first begins that is not handled.

        Raises `ProtocolError`.
        """
        at, size, take, until = 0, len(data), self.take, monotonic() + _TURN_S
        while (end := data.find(_CRLF, at)) >= 0:
            if at and monotonic() > until:
                self._is_late, self._needed = True, 0
                return at
            line = data[at:end]
            if line.startswith((b"MSG ", b"HMSG ")):  # subject, id, reply if there is one, size of headers, of all
                words = line.split(b" ")  # not at any white space: some of it can be in a stranger's subject
                first = end + 2
                last = first + int(words[-1])
                if last - first > _MESSAGE_BYTES or last < first:
                    raise ProtocolError
                if last + 2 > size:
                    self._needed = last + 2 - at
                    return at
                has_head = line[0] == _H
                begin = first + int(words[-2]) if has_head else first
                reply = words[3].decode("latin-1") if len(words) == 5 + has_head else ""
                if not first <= begin <= last or len(words) < 4 + has_head:
                    raise ProtocolError
                take(words[2], Message(words[1].decode("latin-1"), reply, data[first:begin], data[begin:last]))
                at = last + 2
            else:
                self._control(line)
                at = end + 2
        if size - at > _LINE_BYTES:
            raise ProtocolError
        self._needed = 0
        return at

    def _control(self, line: bytes) -> None:
        if line == b"PING":
            self.send(b"PONG\r\n")
        elif line == b"PONG":
            self.unanswered = max(0, self.unanswered - 1)
            self._news.set()
        elif line.startswith(b"INFO "):
            info = orjson.loads(line[5:])
            if not isinstance(info, dict):
                raise ProtocolError
            self.info = info
            self._news.set()
        elif line.startswith(b"-ERR"):
            self.refusal = line[4:].strip(b" '").decode("utf-8", "replace")
            self._on_error(self.refusal)
        elif line != b"+OK":
            raise ProtocolError

    # Out

    @property
    def unsent_bytes(self) -> int:
        """How many bytes wait to be sent."""
        return int(self._transport.get_write_buffer_size()) if self.is_open else 0

    def send(self, data: bytes) -> None:
        """Send lines or messages as they are."""
        if self.is_open:
            self._transport.write(data)

    def ping(self) -> None:
        """Ask the server for a sign of life."""
        self.unanswered += 1
        self.send(b"PING\r\n")

    async def drained(self) -> None:
        """Wait while more waits to be sent than the transport likes to keep."""
        await self._may_write.wait()

    async def greeted(self) -> None:
        """Wait until the server has sent INFO. Raises `ConnectionError` if the connection is lost before."""
        while not self.info:
            await self._next_news()

    async def answered(self) -> None:
        """Wait until the server has answered each PING. Raises `ConnectionError` if the connection is lost before."""
        while self.unanswered:
            await self._next_news()

    async def ended(self) -> None:
        """Wait until there is no connection."""
        while self.is_open:
            self._news.clear()
            await self._news.wait()

    async def _next_news(self) -> None:
        if not self.is_open:
            raise ConnectionResetError(self.refusal or "the server has hung up")
        self._news.clear()
        await self._news.wait()

    async def connect(self, host: str, port: int) -> None:
        """Connect to a server. Raises `OSError`."""
        protocol: Any = self
        await asyncio.get_running_loop().create_connection(lambda: protocol, host, port)

    async def encrypt(self, context: ssl.SSLContext, host: str) -> None:
        """Go on with TLS, if `host` can prove that it is that. Raises `OSError`."""
        if self._nbytes:
            raise ConnectionRefusedError("the server says more than INFO before TLS")
        loop = asyncio.get_running_loop()
        protocol: Any = self
        transport = None
        try:
            transport = await loop.start_tls(self._transport, protocol, context, server_hostname=host)
        finally:
            if transport is None:  # nobody else calls this then
                self.connection_lost(None)
        if transport is None:  # it was aborted from here
            raise ConnectionAbortedError
        self._transport = transport

    def abort(self) -> None:
        """Break the connection at once; what waits to be sent is lost."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """End the connection when all is sent."""
        # After a second close() the TLS of Python 3.11.2 cannot abort.
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
