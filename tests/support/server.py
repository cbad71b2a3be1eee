"""A real server on a free port, in the test's own event loop: real sockets and HTTP, and access to its rooms."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import tempfile
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from halley.embed import Halley
from halley.host.listener import bind, nt4_server, url_of
from halley.host.process import HalleyServer
from halley.host.timeouts import PausableReader, ServerContext, Turns
from halley.host.tls import Certificate
from halley.server.protocols import PROTOCOLS
from halley.settings import LIMITS, Bayeux, Drain, History, Settings
from support import authority
from support.broker import waiting_bytes
from support.messages import HANDSHAKE, connect, subscribe
from support.wire import DEADLINE_S, Wire, post, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping, Sequence

    from halley.server.composition import Server
    from halley.server.protocols import Compose


USUAL = Settings(
    port=0,
    sweep_s=0.02,
    bayeux=Bayeux(max_interval_s=600),  # however slow the machine, no session expires in the middle of a test
    drain=Drain(spread_s=0, grace_s=2),
    history=History(enabled=False),
)


SHORT_WAY, PARSED, RECORDED, TLS = "short-way", "parsed", "durable", "tls"
"""The faces of a server: it remembers heads that may come again; it parses every request; it remembers heads, and has
every event on disk before it is delivered; it remembers heads, with TLS."""

THOROUGHLY = (SHORT_WAY, *(pytest.param(face, marks=pytest.mark.slow) for face in (PARSED, TLS)))
"""The faces for tests that wait for deadlines; all but the first are slow tests."""

_face = SHORT_WAY
_folders: list[str] = []


@contextmanager
def facing(name: str) -> Iterator[None]:
    """Within the block, `brisk` returns settings for servers with that face."""
    global _face  # noqa: PLW0603 - a fixture's, for all tests below it
    before, _face = _face, name
    try:
        yield
    finally:
        _face = before
        while _folders:
            shutil.rmtree(_folders.pop())


def later(turns: Turns, worker: PausableReader) -> bool:
    """Stand for `Turns.run` while others have used up this turn of the loop."""
    turns._waiting.append(worker)
    turns._end()
    return False


def brisk(**changed: Any) -> Settings:
    """Return settings for tests: short deadlines, no spread. Tables are changed as `bayeux={"hold_s": 1}`."""
    settings = replace(USUAL, short_way=_face != PARSED)
    if _face == TLS:
        settings = replace(settings, tls=authority.settings())
    if _face == RECORDED:
        _folders.append(tempfile.mkdtemp(prefix="halley-test-"))
        settings = replace(settings, data_dir=_folders[-1], history=History(free_bytes=0))
    for name, value in changed.items():
        part = getattr(settings, name)
        settings = replace(settings, **{name: replace(part, **value) if isinstance(value, dict) else value})
    return settings


class Served:
    """A running server: its address, its rooms, its log, and the warnings of its libraries."""

    until = staticmethod(until)

    def __init__(self, halley: Halley, server: HalleyServer, watch: ServerContext, url: str) -> None:
        self.halley = halley
        self.server = server
        self.watch = watch
        self.url = url
        self.complaints: list[str] = []
        self.log: list[MutableMapping[str, Any]] = []  # the server's own lines, as dictionaries
        self.bayeux = f"{url}/bayeux"
        self.port = int(url.rpartition(":")[2])
        self.nt4_port = 0  # of NetworkTables' own listener, if there is one
        self.watches = [watch]
        self._wires: list[Wire] = []

    @property
    def house(self) -> Server:
        """The server's rooms."""
        return self.halley.server

    async def wire(self, port: int | None = None, **options: Any) -> Wire:
        """Open a connection, by TLS if the server's port has it; it is closed with the server at the latest.

        With `port`, the connection is to another port of the server, without TLS. `options` are those of `Wire.open`.
        """
        trusts = authority.context() if self.url.startswith("https") and port is None else None
        wire = await Wire.open(port or self.port, tls=trusts, **options)
        self._wires.append(wire)
        return wire

    async def open_session(self, *channels: str, **handshake: Any) -> str:
        """Handshake, connect once and subscribe, on a connection that is then closed; return the clientId."""
        wire = await self.wire()
        client_id: str = (await wire.post(HANDSHAKE | handshake)).messages[0]["clientId"]
        await wire.post(connect(client_id))
        if channels:
            await wire.post(subscribe(client_id, *channels))
        await wire.close()
        return client_id

    async def hold(self, client_id: str, **headers: str) -> Wire:
        """Open a connection on which a connect of that session is held."""
        before = self.house.engine.sessions.holds
        wire = await self.wire()
        await wire.send(post(json.dumps([connect(client_id)]).encode(), **headers))
        await self.until(lambda: self.house.engine.sessions.holds == before + 1)
        return wire

    def books(self) -> tuple[object, ...]:
        """Return what a refused request must not change.

        That is the sessions with their subscriptions and the lengths of their outboxes, the publishes, and the holds.
        """
        broker = self.house.broker
        sessions = {
            session.id: (frozenset(session.subscriptions), len(session.outbox)) for session in broker.sessions.values()
        }
        return sessions, broker.published, self.house.engine.sessions.holds

    def faults(self, what: str) -> list[MutableMapping[str, Any]]:
        """Return the log's lines about faults in one part of the server: request, sweeper, or a hook's name."""
        return [line for line in self.log if line["event"] == "fault" and line["what"] == what]

    def forget(self, wire: Wire) -> None:
        """Do not close that connection later: it is over."""
        self._wires.remove(wire)

    async def hang_up(self) -> None:
        """Close all connections."""
        for wire in self._wires:
            await wire.close()


_DRAIN_S = 0.05
"""How long a server drains before the test's connections end, which may be WebSockets that do not answer its close."""


@asynccontextmanager
async def serving(
    settings: Settings | None = None,
    register: Callable[[Halley], None] | None = None,
    protocols: Sequence[Compose] = PROTOCOLS,
) -> AsyncIterator[Served]:
    """Serve within the block. `register` gets the embedding API before the server starts.

    At the end of the block the server drains as on SIGTERM. It must leave no task, connection or hold behind, and its
    libraries must not have warned of anything; a test that provokes a warning checks it and clears it.
    """
    settings = settings or brisk()
    halley = Halley(settings, protocols)
    if register is not None:
        register(halley)
    before = asyncio.all_tasks()
    certificate = Certificate(settings.tls) if settings.tls.cert else None
    socket = bind(settings.host, settings.port, "--port")
    url = url_of(socket, "https" if certificate else "http")
    watch = ServerContext(settings.limits, halley.server.broker.hits)
    beside = []
    if halley.server.protocol("nt4") is not None:
        beside.append(nt4_server(halley.server, bind(settings.nt4.host, settings.nt4.port, "--nt4-port")))
    server = HalleyServer(halley.server, watch, certificate, beside)
    served = Served(halley, server, watch, url)
    for side in beside:
        served.nt4_port = int(side.url.rpartition(":")[2])
        served.watches.append(side.shared)
    with capture_logs() as served.log, _listening(served.complaints):
        running = asyncio.create_task(server.serve([socket]))
        try:
            await served.until(lambda: server.started)
            yield served
        finally:
            server.begin_shutdown()
            await asyncio.wait([running], timeout=_DRAIN_S)
            await served.hang_up()
            async with asyncio.timeout(DEADLINE_S):
                await running
        await served.until(lambda: not any(each.connections for each in served.watches))
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    assert not left, f"tasks left behind: {left}"
    for each in served.watches:
        assert not len(each.heads) + len(each.bodies) + len(each.writes), "a deadline runs for the dead"
    assert halley.server.engine.sessions.holds == 0
    broker = halley.server.broker
    assert broker.waiting.value == waiting_bytes(broker), "bytes of events that wait nowhere are counted"
    assert not halley.server.broker.hits.keys() - LIMITS, "a limit that /metrics does not know"
    assert served.complaints == []
    assert served.faults("request") == []


@contextmanager
def _listening(complaints: list[str]) -> Iterator[None]:
    """Collect uvicorn's warnings and the errors that the event loop could report to no caller."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            complaints.append(self.format(record))

    loop, logger, handler = asyncio.get_running_loop(), logging.getLogger("uvicorn.error"), Handler(logging.WARNING)
    loop.set_exception_handler(lambda _, context: complaints.append(str(context)))
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        loop.set_exception_handler(None)
