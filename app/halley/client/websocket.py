"""What the clients share: one WebSocket, and how several tasks read from it.

There is not a task that reads all the time. A task that waits for something reads for all that wait. So a program that
does not read slows the server down, and does not fill its own memory.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, Self, TypeVar

from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from halley.client.errors import ClientError, Refused
from halley.client.wire import bearer

_ANSWER_S = 10.0
_MESSAGE_BYTES = 16_777_216
_MESSAGES_KEPT = 1_000_000
_WRONG = (ValueError, TypeError, LookupError, RecursionError, OverflowError)
"""What Python raises where a frame is not of the form that it should have."""

Message = TypeVar("Message")


class _Connect(connect):
    """Follows no redirect, as the clients that use HTTP do not: a token is for the server that it was given for."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        """Return the error that the redirect is."""
        return exc


def websocket_url(server: str, path: str) -> str:
    """Return the address of `path` at a server; `http` becomes `ws`, and `https` becomes `wss`."""
    return f"{server.replace('http', 'ws', 1) if server.startswith('http') else server}{path}"


class WebSocketClient(ABC, Generic[Message]):
    """One connection, open from the start of `async with` to its end; a lost one is not restored.

    `token` is sent as `Authorization: Bearer`, `answer_s` is how long a reply may take, in seconds. `options` are those
    of websockets' `connect`. `socket` is its connection, for anything but messages.

    Entering the block raises `OSError`, `TimeoutError`, websockets' `InvalidHandshake`, and `Refused` if the server
    does not speak the protocol. All other methods raise websockets' `ConnectionClosed` once the connection is lost, and
    `ClientError` for a frame that is not of the protocol.
    """

    socket: ClientConnection

    def __init__(
        self,
        url: str,
        subprotocols: Sequence[str],
        *,
        token: str | None = None,
        answer_s: float = _ANSWER_S,
        **options: Any,
    ) -> None:
        self.url = url
        self.answer_s = answer_s
        self._subprotocols = [Subprotocol(each) for each in subprotocols]
        # The server pings; pings from both sides would show no more.
        self._options = {"compression": None, "ping_interval": None, "max_size": _MESSAGE_BYTES, **options}
        if token is not None:
            self._options["additional_headers"] = bearer(token)
        self._turn = asyncio.Lock()
        self._received: deque[Message] = deque()

    async def open(self) -> None:
        """Open the WebSocket and nothing else; `async with` also begins the session."""
        self.socket = await _Connect(self.url, subprotocols=self._subprotocols or None, **self._options)

    async def close(self) -> None:
        """Close the WebSocket with a closing handshake, as the end of `async with` does too."""
        await self.socket.close()

    @abstractmethod
    async def begin(self) -> None:
        """Do what a session begins with; called when `async with` has opened the WebSocket."""

    async def __aenter__(self) -> Self:
        await self.open()
        try:
            if self.socket.subprotocol is None:
                raise Refused(f"the server does not speak {self._subprotocols[0]}")
            async with asyncio.timeout(self.answer_s):
                await self.begin()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def until(self, is_there: Callable[[], bool]) -> None:
        """Read frames until the condition is true; several tasks can wait at the same time."""
        while not is_there():
            async with self._turn:
                if not is_there():  # another task may have read what this one waits for
                    await self._read()

    async def receive(self) -> Message:
        """Return the next message that is not the reply to a request of this client, in the order of arrival."""
        await self.until(lambda: bool(self._received))
        return self._received.popleft()

    def __aiter__(self) -> Self:
        return self

    def _queue(self, message: Message) -> None:
        """Add a message for `receive`. Raises `ClientError` if there are too many."""
        if len(self._received) >= _MESSAGES_KEPT:
            raise ClientError(f"{_MESSAGES_KEPT:,} messages arrived before a reply")
        self._received.append(message)

    async def _read(self) -> None:
        """Wait for one frame and handle it."""
        frame = await self.socket.recv()
        try:
            self._handle(frame)
        except _WRONG as error:
            raise ClientError(f"{self.url} sent what is not {self.socket.subprotocol}") from error

    @abstractmethod
    def _handle(self, frame: str | bytes) -> None:
        """Handle one frame from the server."""
