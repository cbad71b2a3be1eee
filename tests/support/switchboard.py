"""A small engine behind real transports: it echoes messages, and obeys some of them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

import uvicorn

from halley.broker.sessions import Outputs
from halley.protocols.contract import Close, WireProtocol
from halley.protocols.wamp.serializers import Format
from halley.server.composition import Server
from halley.server.protocols import PROTOCOLS, wamp
from halley.transports.wamp import WampEndpoint
from support import authority
from support.server import brisk, serving
from support.wire import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from halley.broker.broker import Broker
    from halley.protocols.contract import Context, Link, Part
    from halley.server.protocols import Common, Compose
    from halley.settings import Settings

BYE, CLOSE, FLOOD, SILENT, BREAK = b'"bye"', b'"close"', b'"flood"', b'"silent"', b'"break"'
FLOOD_FRAMES, FLOOD_BYTES = 1_000, 10_000
REASON = "told to " + "é" * 100


class Scripted:
    """The engine of one connection, which notes what happens to it."""

    def __init__(self, broker: Broker, link: Link, context: Context) -> None:
        self.broker = broker
        self.link = link
        self.is_ready = False
        self._outputs: list[list[bytes] | Close] = []
        self.format = Format.of(link)
        self.context = context
        self.received: list[bytes] = []
        self.flow: list[str] = []
        self.lost_times = 0

    def split(self, data: bytes, now: float, *, is_binary: bool) -> tuple[bytes, ...]:
        """Return the message; one of the wrong kind is a violation, as in WAMP's engine."""
        if is_binary is self.format.serializer.is_binary:
            return (data,)
        kind = "binary" if is_binary else "text"
        self.say(Close([self.format.frame(b'"aborted"')], 1002, f"a {kind} message with {self.format.subprotocol}"))
        return ()

    def receive(self, data: bytes, now: float) -> None:
        """Obey the message, or echo it."""
        self.received.append(data)
        written = self.format.frame
        if data == BREAK:
            raise RuntimeError("a fault of ours")
        if data == CLOSE:
            self.say(Close([written(BYE)], 1008, REASON))
        elif data == FLOOD:
            self.say([written(b'"%b"' % (b"x" * FLOOD_BYTES))] * FLOOD_FRAMES)
        elif data != SILENT:
            self.say([written(data)])

    def paused(self) -> None:
        """Note the call."""
        self.flow.append("paused")

    def resumed(self, now: float) -> None:
        """Note the call."""
        self.flow.append("resumed")

    def lost(self, now: float) -> None:
        """Count the call."""
        self.lost_times += 1

    def say(self, outcome: list[bytes] | Close) -> None:
        """Have an outcome written at the end of the turn."""
        self._outputs.append(outcome)
        self.broker.mark_ready(self)

    def flush(self, now: float) -> Outputs:
        """Return what is to be written."""
        outputs, self._outputs = self._outputs, []
        return tuple((self.link, output) for output in outputs)


class Board(WireProtocol):
    """A `WireProtocol`; `engines` are all that it has made."""

    name = "wamp"

    def __init__(self) -> None:
        self.engines: list[Scripted] = []
        self.broker: Broker

    def connect(self, link: Link, context: Context, now: float) -> Scripted:
        """See `WireProtocol`."""
        engine = Scripted(self.broker, link, context)
        self.engines.append(engine)
        return engine

    @property
    def last(self) -> Scripted:
        """The engine of the latest connection."""
        return self.engines[-1]


def protocols(board: Board) -> list[Compose]:
    """All protocols, of which WAMP is served by this board."""

    def compose(common: Common) -> Sequence[Part]:
        board.broker = common.broker
        note = common.session_log.request_refused
        return board, WampEndpoint(board, common.guard, note, common.settings, common.broker)

    return [compose if each is wamp else each for each in PROTOCOLS]


@asynccontextmanager
async def speaking(*, tls: bool = False, **changed: Any) -> AsyncIterator[Any]:
    """Serve in Halley's own host within the block, with the board `served.board`."""
    board = Board()
    changed["wamp"] = {"kill_s": 0.05} | changed.get("wamp", {})
    if tls:
        changed["tls"] = {"cert": str(authority.folder() / "cert.pem"), "key": str(authority.folder() / "key.pem")}
    async with serving(brisk(**changed), protocols=protocols(board)) as served:
        cast(Any, served).board = board
        yield served
    _end_polls(served.house)
    assert [engine.lost_times for engine in board.engines] == [1] * len(board.engines), "not lost exactly once"


def _end_polls(house: Server) -> None:
    """Let time pass until the polls that a test has left open are ended."""
    next(part for part in house.parts if isinstance(part, WampEndpoint)).sweep(monotonic() + 1_000)


class Plain:
    """The same house in uvicorn's own host."""

    def __init__(self, house: Server, board: Board, port: int) -> None:
        self.house = house
        self.board = board
        self.port = port

    async def until(self, condition: Any) -> None:
        """Wait until a condition is true."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await asyncio.sleep(0.005)


@asynccontextmanager
async def speaking_plainly(settings: Settings | None = None, **changed: Any) -> AsyncIterator[Plain]:
    """Serve within the block in uvicorn's own host, with its WebSocket implementation."""
    board = Board()
    house = Server(settings or brisk(**changed), protocols(board))
    config = uvicorn.Config(house, host="127.0.0.1", port=0, log_config=None, timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not server.started:
                await asyncio.sleep(0.005)
        yield Plain(house, board, server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        async with asyncio.timeout(DEADLINE_S):
            await running
    _end_polls(house)
    assert [engine.lost_times for engine in board.engines] == [1] * len(board.engines), "not lost exactly once"
