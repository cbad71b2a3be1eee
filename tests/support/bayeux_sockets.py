"""Bayeux over a WebSocket by hand: over a real connection, and over a link of a test that can be stalled and cut."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from halley.protocols.bayeux.socket import Socket, Sockets
from halley.protocols.contract import Close
from support.frames import CLOSE, TEXT, Frame, next_frame, opening, text
from support.messages import HANDSHAKE, JSON, connect

if TYPE_CHECKING:
    from support.bayeux import House
    from support.server import Served
    from support.wire import Response, Wire

SOCKET_HANDSHAKE: JSON = {**HANDSHAKE, "id": "h", "supportedConnectionTypes": ["websocket", "long-polling"]}


def socket_connect(client_id: str, **fields: Any) -> JSON:
    """Return a connect as clients send it over a WebSocket."""
    return connect(client_id, connectionType="websocket", **fields)


class BayeuxWire:
    """A client's WebSocket to a real server; `opened` is the server's answer to the request that opened it."""

    def __init__(self, wire: Wire, opened: Response) -> None:
        self.wire = wire
        self.opened = opened
        self.client_id = ""

    @classmethod
    async def open(cls, served: Served, path: str = "/bayeux", **headers: str) -> BayeuxWire:
        """Open a WebSocket."""
        return await cls.over(await served.wire(), path, **headers)

    @classmethod
    async def over(cls, wire: Wire, path: str = "/bayeux", **headers: str) -> BayeuxWire:
        """Open a WebSocket on a connection."""
        opened = await wire.request(opening(path, protocol="", **headers))
        assert opened.status == 101, opened
        return cls(wire, opened)

    @classmethod
    async def join(cls, served: Served, *channels: str, **handshake: Any) -> BayeuxWire:
        """Open a WebSocket, and have a session that has connected once and is subscribed to these channels."""
        socket = await cls.open(served)
        await socket.handshake(**handshake)
        await socket.ask(socket_connect(socket.client_id, id="c", advice={"timeout": 0}))
        for channel in channels:
            await socket.ask({"channel": "/meta/subscribe", "clientId": socket.client_id, "subscription": channel})
        return socket

    async def handshake(self, **fields: Any) -> JSON:
        """Handshake; return the reply."""
        (reply,) = await self.ask(SOCKET_HANDSHAKE | fields)
        self.client_id = reply.get("clientId", "")
        return reply

    async def say(self, *messages: Any) -> None:
        """Send messages as one array."""
        await self.wire.send(text(json.dumps(messages).encode()))

    async def hear(self) -> list[JSON]:
        """Return the messages of the next frame."""
        frame = await next_frame(self.wire)
        assert frame.opcode == TEXT, frame
        messages: list[JSON] = json.loads(frame.data)
        return messages

    async def ask(self, *messages: Any) -> list[JSON]:
        """Send messages as one array, and return those of the next frame."""
        await self.say(*messages)
        return await self.hear()

    async def hold(self, message_id: str = "held") -> None:
        """Send a connect, which is held when the server has answered what follows it."""
        await self.say(socket_connect(self.client_id, id=message_id))
        assert await self.ask() == []

    async def close_frame(self) -> Frame:
        """Return the next frame, which closes the WebSocket."""
        frame = await next_frame(self.wire)
        assert frame.opcode == CLOSE, frame
        return frame


class StandInLink:
    """A link whose peer reads only while it is not `stalled`: of what is written then, nothing has left."""

    kind = "stand-in"
    subprotocol = ""

    def __init__(self) -> None:
        self.left: list[list[JSON]] = []  # the messages of each frame that has left
        self.waiting: list[bytes] = []
        self.closed: Close | None = None
        self.is_stalled = False
        self.engine: Socket

    @staticmethod
    def text(message: bytes) -> bytes:
        """Return the message: nothing is framed here."""
        return message

    binary = text

    @property
    def backlog_bytes(self) -> int:
        """The bytes that wait."""
        return sum(map(len, self.waiting))

    def write(self, output: list[bytes] | Close) -> None:
        """Take frames, as an event loop's transport does."""
        assert self.closed is None, "written after the end"
        if isinstance(output, Close):
            self.closed = output
            output = output.frames
        if self.is_stalled and output:
            was_empty = not self.waiting
            self.waiting += output
            if was_empty:
                self.engine.paused()
        else:
            self.left += map(json.loads, output)


class SocketPeer:
    """A client of a `House` by a WebSocket that a test stalls and cuts; `sockets` are those of one engine."""

    def __init__(self, house: House, sockets: Sockets, cookies: tuple[str, ...] = ()) -> None:
        self.house = house
        self.link = StandInLink()
        self.engine = self.link.engine = Socket(sockets, self.link, None, house.now, cookies)  # type: ignore[arg-type]
        self.is_cut = False

    def say(self, *messages: Any) -> None:
        """Send messages as one array, and end the turn."""
        for batch in self.engine.split(json.dumps(messages).encode(), self.house.now, is_binary=False):
            self.engine.receive(batch, self.house.now)
        self.house.turn()

    def stall(self) -> None:
        """Read nothing more for now."""
        self.link.is_stalled = True

    def read_on(self) -> None:
        """Read all that was written, and go on."""
        self.link.is_stalled = False
        waiting, self.link.waiting = self.link.waiting, []
        if waiting:
            self.link.left += map(json.loads, waiting)
            self.engine.resumed(self.house.now)
        self.house.turn()

    def cut(self) -> None:
        """End the connection; what waits on it never leaves."""
        self.is_cut = True
        self.link.waiting.clear()
        self.engine.lost(self.house.now)
        self.house.turn()

    def take(self) -> list[JSON]:
        """Return the messages that have left since the last call, in order."""
        left, self.link.left = self.link.left, []
        return [message for frame in left for message in frame]
