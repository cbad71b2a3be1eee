"""HTTP by hand: sends any bytes, reads whole responses, and can drop the connection at any time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import ssl
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEADLINE_S = 30.0
"""The time in seconds within which anything that a test waits for must happen; else the test fails."""


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)


@contextlib.contextmanager
def nobody_on(port: int = 0) -> Iterator[int]:
    """Within the block nothing listens on a port, a free one by default, and the system gives it to nobody else."""
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", port))
        yield kept.getsockname()[1]


@dataclass
class Response:
    """One HTTP response. `headers` are by lower-case name; of several with one name the last is kept.

    `head` has the bytes of its head but for Date, so that two responses can be compared.
    """

    status: int
    headers: dict[str, str]
    set_cookies: list[str]
    body: bytes
    head: bytes = b""

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The body as Bayeux messages."""
        messages: list[dict[str, Any]] = json.loads(self.body)
        return messages

    @property
    def data(self) -> list[Any]:
        """The data of the events among the messages."""
        return [message["data"] for message in self.messages if "data" in message]

    @property
    def replies(self) -> list[dict[str, Any]]:
        """The messages that are replies to others."""
        return [message for message in self.messages if "data" not in message]

    @property
    def called(self) -> tuple[str, list[dict[str, Any]]]:
        """The call in a JSONP body: the function's name, and the messages that are its argument."""
        name, _, argument = self.text.removeprefix("/**/").removesuffix(");").partition("(")
        return name, json.loads(argument)

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()


_CLOSE_S = 1.0
_DATE = re.compile(rb"(?<=\n)date: [A-Z][^\r]{20,30} GMT\r\n")


class Wire:
    """One TCP connection to a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(
        cls,
        port: int,
        *,
        receive_buffer_bytes: int | None = None,
        source: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> Wire:
        """Connect. With a small receive buffer little arrives before the test reads, as with a slow reader.

        `source` is another address of this machine to connect from, such as 127.0.0.2.
        """
        sock = socket.socket()
        if source:
            sock.bind((source, 0))
        if receive_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        except BaseException:  # also when it is cancelled
            sock.close()
            raise
        limit = 4_194_304 if receive_buffer_bytes is None else 16_384
        name = None if tls is None else "localhost"
        return cls(*await asyncio.open_connection(sock=sock, limit=limit, ssl=tls, server_hostname=name))

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(data)
        async with asyncio.timeout(DEADLINE_S):
            await self.writer.drain()

    async def read(self, *, is_head: bool = False) -> Response:
        """Return the next response, to HEAD or to another method.

        Raises `asyncio.IncompleteReadError` if the connection is closed first.
        """
        async with asyncio.timeout(DEADLINE_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            status_line, *lines = head.decode("latin-1").rstrip().split("\r\n")
            pairs = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
            headers = dict(pairs)
            body = await self.reader.readexactly(0 if is_head else int(headers.get("content-length", "0")))
        cookies = [value for name, value in pairs if name == "set-cookie"]
        return Response(int(status_line.split()[1]), headers, cookies, body, undated(head))

    async def request(self, data: bytes) -> Response:
        """Send bytes and return the response."""
        await self.send(data)
        return await self.read(is_head=data.startswith(b"HEAD "))

    async def post(self, *messages: Any, path: str = "/bayeux", **headers: str) -> Response:
        """Send Bayeux messages as JSON and return the response."""
        return await self.request(post(json.dumps(messages).encode(), path=path, **headers))

    async def get(self, *messages: Any, callback: str = "cb", path: str = "/bayeux", **headers: str) -> Response:
        """Send Bayeux messages by JSONP and return the response."""
        target = f"{path}?jsonp={quote(callback)}&message={quote(json.dumps(messages))}"
        return await self.request(request("GET", target, b"", **headers))

    async def rest(self) -> bytes:
        """Return all further bytes until the server closes or resets the connection."""
        came = b""
        async with asyncio.timeout(DEADLINE_S):
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                while data := await self.reader.read(65_536):
                    came += data
        return came

    def half_close(self) -> None:
        """Close the connection for sending, but not for reading."""
        self.writer.get_extra_info("socket").shutdown(socket.SHUT_WR)  # TLS itself cannot close only one direction

    async def is_closed(self) -> bool:
        """Wait for the server to close the connection; True unless it sends something first."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                return await self.reader.read(1) == b""
            except (ConnectionError, ssl.SSLError):
                return True

    def reset(self) -> None:
        """Close the connection with a TCP reset, as a crashed peer does."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def close(self) -> None:
        """Close the connection in the regular way."""
        self.writer.close()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self.writer.wait_closed()
        except TimeoutError:  # with TLS, as long as there are bytes that were not read
            self.writer.transport.abort()
        except (ConnectionError, ssl.SSLError):  # there were such bytes
            pass


def undated(responses: bytes) -> bytes:
    """Return responses without the lines that say when each was made."""
    return _DATE.sub(b"", responses)


def request(method: str, target: str, body: bytes = b"", **headers: str) -> bytes:
    """Return an HTTP/1.1 request. Header names have `_` for `-`; a value of "" omits a default header."""
    named = {"host": "127.0.0.1"} | {name.replace("_", "-").lower(): value for name, value in headers.items()}
    if body or method == "POST":
        named.setdefault("content-length", str(len(body)))
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items() if value)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def head(*lines: str, body: bytes = b"") -> bytes:
    """Return a request whose head is exactly these lines, even if they are invalid."""
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def chunked(*chunks: bytes, path: str = "/bayeux", **headers: str) -> bytes:
    """Return a POST in chunks, without Content-Length."""
    framed = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in [*chunks, b""])
    return post(b"", path=path, content_length="", transfer_encoding="chunked", **headers) + framed


def post(body: bytes, *, path: str = "/bayeux", **headers: str) -> bytes:
    """Return a POST; its body is JSON unless `content_type` is given."""
    return request("POST", path, body, **{"content_type": "application/json", **headers})
