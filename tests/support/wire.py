"""HTTP by hand: sends any bytes, reads whole responses, and can leave whenever a test wants it to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Callable

DEADLINE_S = 10.0
"""For anything that a test waits for; reaching it is a failure, never a pause."""


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something to become true."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)


@dataclass
class Response:
    """One HTTP response. `headers` by lower-case name; of several with one name the last counts, but for cookies."""

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
        """The messages that answer others."""
        return [message for message in self.messages if "data" not in message]

    @property
    def called(self) -> tuple[str, list[dict[str, Any]]]:
        """What a JSONP body calls: the function's name, and the messages it gets."""
        name, _, argument = self.text.removeprefix("/**/").removesuffix(");").partition("(")
        return name, json.loads(argument)

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()


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
        """Connect; a small receive buffer makes a slow reader, which takes little before a test reads.

        `source` is another address of this machine to come from, like 127.0.0.2.
        """
        sock = socket.socket()
        if source:
            sock.bind((source, 0))
        if receive_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        except OSError:
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

    async def read(self) -> Response:
        """The next whole response. Raises `asyncio.IncompleteReadError` if the server closed without one."""
        async with asyncio.timeout(DEADLINE_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            status_line, *lines = head.decode("latin-1").rstrip().split("\r\n")
            pairs = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
            headers = dict(pairs)
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        cookies = [value for name, value in pairs if name == "set-cookie"]
        return Response(int(status_line.split()[1]), headers, cookies, body, head)

    async def request(self, data: bytes) -> Response:
        """Send bytes and read the answer."""
        await self.send(data)
        return await self.read()

    async def post(self, *messages: Any, path: str = "/bayeux", **headers: str) -> Response:
        """Send Bayeux messages as JSON and read the answer."""
        return await self.request(post(json.dumps(messages).encode(), path=path, **headers))

    async def get(self, *messages: Any, callback: str = "cb", path: str = "/bayeux", **headers: str) -> Response:
        """Send Bayeux messages by JSONP and read the answer."""
        target = f"{path}?jsonp={quote(callback)}&message={quote(json.dumps(messages))}"
        return await self.request(request("GET", target, b"", **headers))

    async def rest(self) -> bytes:
        """All that still comes until the server closes the connection, or resets it."""
        came = b""
        async with asyncio.timeout(DEADLINE_S):
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                while data := await self.reader.read(65_536):
                    came += data
        return came

    def half_close(self) -> None:
        """Say that nothing more will be sent, and go on reading."""
        self.writer.get_extra_info("socket").shutdown(socket.SHUT_WR)  # also where TLS has no word for it

    async def is_closed(self) -> bool:
        """Wait for the server to close the connection; True unless it sends something first."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                return await self.reader.read(1) == b""
            except (ConnectionError, ssl.SSLError):
                return True

    def reset(self) -> None:
        """Leave with a TCP reset, as a crashed peer does."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def close(self) -> None:
        """Leave in good order."""
        self.writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):  # whatever was not read is no fault of the server's
            await self.writer.wait_closed()


def request(method: str, target: str, body: bytes = b"", **headers: str) -> bytes:
    """An HTTP/1.1 request. Header names take `_` for `-`; a value of "" leaves a default header out."""
    named = {"host": "127.0.0.1"} | {name.replace("_", "-").lower(): value for name, value in headers.items()}
    if body or method == "POST":
        named.setdefault("content-length", str(len(body)))
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items() if value)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def head(*lines: str, body: bytes = b"") -> bytes:
    """A request whose head is exactly these lines, however wrong."""
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def chunked(*chunks: bytes, path: str = "/bayeux", **headers: str) -> bytes:
    """A POST in chunks, without Content-Length."""
    framed = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in [*chunks, b""])
    return post(b"", path=path, content_length="", transfer_encoding="chunked", **headers) + framed


def post(body: bytes, *, path: str = "/bayeux", **headers: str) -> bytes:
    """A POST; JSON unless `content_type` says otherwise."""
    return request("POST", path, body, **{"content_type": "application/json", **headers})
