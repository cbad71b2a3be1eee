"""Bayeux over a WebSocket, and by POST where there is none.

Behind a proxy that knows no WebSockets the upgrade is refused, or the WebSocket is silent or closed before the first
reply: then the session goes on by POST, and a WebSocket is tried again after a while. A session can change between the
two at any time. It is bound to the cookie of its browser, so both send the same.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Mapping
from http import HTTPStatus
from typing import Any

import httpx
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.frames import CloseCode
from websockets.protocol import State

from halley.client.errors import ClientError, OutcomeUnknown, Refused, Unreachable
from halley.client.messages import JSON
from halley.client.websocket import WebSocketClient
from halley.client.wire import Wire, authorities, messages_of, reason_of

_PROOF_S = 5.0
"""Within this time a WebSocket is opened, and brings its first reply, which no server holds; else it is blocked."""

_BLOCKED_S, _BUSY_S = 600.0, 5.0
"""For how long no WebSocket is tried where POST is answered, after it was blocked, or refused for now (`_BUSY`)."""

_LOST_S = 10.0
"""Instead of `_BLOCKED_S` after a WebSocket that has worked, twice as long each time: a network that is lost while one
opens looks like a proxy that blocks it."""

_BUSY = HTTPStatus.INTERNAL_SERVER_ERROR
"""From this status on a server is busy or leaves, or a proxy has none: it will take WebSockets again."""

_FRAME_BYTES = 60_000
"""What is longer goes by POST: CometD's servers close the connection for a message of more than 65,536 bytes."""

_CLOSE_S = 1.0
"""For the closing handshake, of which nothing depends: a session ends by a message, or goes on."""

_UNREAD = {CloseCode.PROTOCOL_ERROR, CloseCode.UNSUPPORTED_DATA, CloseCode.INVALID_DATA, CloseCode.MESSAGE_TOO_BIG}
"""Codes for a frame of which a server has done nothing. A POST of the same messages is refused without closing."""


class _Unread(OutcomeUnknown):
    """The server has closed the WebSocket for what a frame is like."""


class BayeuxSocket(WebSocketClient[JSON]):
    """One WebSocket. Its frames are arrays of messages; replies have the ids of their requests, in any order."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, (), **options)
        self._replies: dict[str, JSON | None] = {}  # by id: those that a request waits for

    async def begin(self) -> None:
        """Nothing precedes the handshake."""

    async def ask(self, messages: Mapping[str, str]) -> list[JSON]:
        """Send messages in one frame, as JSON text by id, and return their replies. Raises `ClientError`."""
        self._replies |= dict.fromkeys(messages)
        try:
            await self.socket.send(f"[{','.join(messages.values())}]")
            await self.until(lambda: None not in map(self._replies.get, messages))
            return [reply for each in messages if (reply := self._replies[each]) is not None]
        finally:
            for each in messages:
                del self._replies[each]

    async def poll(self, messages: Mapping[str, str]) -> list[JSON]:
        """Do the same as `ask`, and return before the replies the events, which a server sends with those of polls."""
        replies = await self.ask(messages)
        events = [*self._received]
        self._received.clear()
        return events + replies

    def _handle(self, frame: str | bytes) -> None:
        for message in messages_of(frame, self.url):
            message_id = message.get("id")
            if "successful" in message and isinstance(message_id, str) and message_id in self._replies:
                self._replies[message_id] = message
            else:
                self._queue(message)


class SocketWire(Wire):
    """A WebSocket to one server, and HTTP connections for what does not go by it.

    Without `falls_back`, handshakes and polls go by a WebSocket only.
    """

    def __init__(self, url: str, token: str | None, *, falls_back: bool) -> None:
        super().__init__(url, token)
        self._falls_back = falls_back
        self._socket: BayeuxSocket | None = None
        self._is_proven = False  # the WebSocket has brought a reply
        self._avoid_s = 0.0  # for how long no WebSocket is tried, if POST works
        self._avoided_until_s = 0.0
        self._blocked_s = _BLOCKED_S  # from the next time that one is blocked

    @property
    def connection_types(self) -> list[str]:
        """The names of the transports that a handshake offers."""
        return ["websocket", "long-polling"] if self._falls_back else ["websocket"]

    async def open(self, within_s: float) -> bool:
        """Open a WebSocket if there is none and there may be one; True if there is a new one."""
        if self._is_open or asyncio.get_running_loop().time() < self._avoided_until_s:
            return False
        await self._drop()
        request = self._http.build_request("GET", self.url)
        socket = BayeuxSocket(
            str(self.url.copy_with(scheme=self.url.scheme.replace("http", "ws"))),
            ssl=authorities(self.url) or None,
            additional_headers=[each for each in request.headers.items() if each[0] in ("authorization", "cookie")],
            user_agent_header=request.headers["User-Agent"],
            open_timeout=min(_PROOF_S, within_s),
            close_timeout=_CLOSE_S,
        )
        try:
            await socket.open()
        except (OSError, WebSocketException, ImportError) as error:  # a proxy may need a module that is not installed
            if not self._falls_back:
                raise Unreachable(f"cannot connect to {self.name} ({reason_of(error)})") from error
            is_busy = isinstance(error, InvalidStatus) and error.response.status_code >= _BUSY
            self._avoid_s = _BUSY_S if is_busy else self._blocked_s
            return False
        if (response := socket.socket.response) is not None:
            headers = [*response.headers.raw_items()]
            self._http.cookies.extract_cookies(httpx.Response(response.status_code, headers=headers, request=request))
        self._socket, self._is_proven, self.connection_type = socket, False, "websocket"
        return True

    async def poll(self, messages: Mapping[str, str], within_s: float) -> list[JSON]:
        """Send a handshake or connect, and return its reply after the events that came with it. Raises as `post`."""
        if (socket := self._socket) is not None:
            try:
                answer = await self._answer(
                    socket.poll(messages), within_s if self._is_proven else min(within_s, _PROOF_S)
                )
            except ClientError:
                is_over = self._is_proven or not self._falls_back
                await self._drop()
                if is_over:
                    raise
                self._avoid_s = self._blocked_s
            else:
                self._is_proven, self._blocked_s = True, _LOST_S
                return answer
        elif not self._falls_back:
            raise Unreachable(f"no WebSocket to {self.name}")
        answer = await super().post(messages, within_s)
        if self._avoid_s:
            self._avoided_until_s, self._avoid_s = asyncio.get_running_loop().time() + self._avoid_s, 0.0
            self._blocked_s = min(2 * self._blocked_s, _BLOCKED_S)
        return answer

    async def post(self, messages: Mapping[str, str], within_s: float) -> list[JSON]:
        """Send messages, by the WebSocket if there is one, and return what came with their replies; see `Wire`."""
        socket = self._socket
        is_long = sum(len(text.encode()) + 1 for text in messages.values()) >= _FRAME_BYTES
        if socket is None or is_long or not (self._is_open and self._is_proven):
            return await super().post(messages, within_s)
        clock = asyncio.get_running_loop().time
        deadline_s = clock() + within_s
        try:
            return await self._answer(socket.ask(messages), within_s)
        except _Unread:
            return await super().post(messages, deadline_s - clock())

    async def avoid_socket(self) -> bool:
        """Use no WebSocket from now on, see `Wire`. Raises `Refused` if there is no other way."""
        if self._socket is None:
            return False
        await self._drop()
        if not self._falls_back:
            raise Refused(f"{self.name} does not acknowledge events, so it can lose some over a WebSocket")
        self._avoided_until_s = self._avoid_s = math.inf
        return True

    async def close(self) -> None:
        """Close all connections to the server; nothing can be sent after that."""
        await self._drop()
        await super().close()

    @property
    def _is_open(self) -> bool:
        return self._socket is not None and self._socket.socket.state is State.OPEN

    async def _answer(self, answering: Awaitable[list[JSON]], within_s: float) -> list[JSON]:
        """Wait for replies. Raises `OutcomeUnknown`; `_Unread` if the server has closed the connection for a frame."""
        try:
            async with asyncio.timeout(within_s):
                return await answering
        except TimeoutError as error:
            raise OutcomeUnknown(f"no response from {self.name} within {within_s:g} s") from error
        except ConnectionClosed as error:
            kind = _Unread if error.rcvd is not None and error.rcvd.code in _UNREAD else OutcomeUnknown
            raise kind(f"connection to {self.name} lost ({reason_of(error)})") from error

    async def _drop(self) -> None:
        socket, self._socket = self._socket, None
        self.connection_type = super().connection_type
        if socket is not None:
            await socket.close()
