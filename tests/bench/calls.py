"""Counts the calls of Halley's functions that one publish takes until all have it, and the publisher its answer.

So one sees how many there are, of how many functions in how many files, and how deep they are in each other. A server
and its clients are on one event loop, with sockets between them. Of the clients nothing counts, since only code of the
package `halley` does: on the event loop and in the history's thread. The sweeper and what it does at intervals are off.
Four clients receive: two held polls, a WebSocket of Bayeux and a stream of events.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from bench.figures import columns
from bench.rounds import disk
from support.bayeux_sockets import BayeuxWire, socket_connect
from support.messages import HANDSHAKE, connect, subscribe
from support.wire import DEADLINE_S, Wire, post, request, until

import halley
from halley import is_compiled, telemetry
from halley.bench.load import BenchFailed
from halley.bench.measurement import Phase, Watch
from halley.embed import Halley
from halley.host.listener import bind
from halley.host.process import HalleyServer
from halley.host.timeouts import ServerContext
from halley.server.folder_log import FolderLog
from halley.settings import Drain, History, Log, Settings

FIRST, REPEATED = "first of its connection", "repeated"
"""Which request on its connection a publish is: as curl sends it, or like the one before."""

_CHANNEL = "/chat/lobby"
_BODIES = {
    f"/events{_CHANNEL}": '"%s"',
    "/bayeux": f'{{"channel":"{_CHANNEL}","data":"%s"}}',
}
"""By the path that a publish is sent to."""

_RECORDED = "recorded"
_KINDS = f"not {_RECORDED}", _RECORDED

_WARM_UP, _ROUNDS = 5, 3
_WRITER_S = 60.0
_NEVER_S = 1e9
_CODE = str(Path(halley.__file__).parent) + os.sep


@dataclass(frozen=True, slots=True)
class Way:
    """What one publish has called: `files` has the number of calls by file, in the order of the first call in each."""

    calls: int
    functions: int
    depth: int
    files: Mapping[str, int]

    def as_json(self) -> dict[str, Any]:
        """Return the figures as they are saved and compared."""
        return {
            "calls": self.calls,
            "functions": self.functions,
            "files": len(self.files),
            "depth": self.depth,
            "calls_of_file": {**self.files},
        }


@dataclass(frozen=True, slots=True)
class Ways:
    """The ways of all publishes: by what is published how, and then by `FIRST` and `REPEATED`."""

    of: Mapping[str, Mapping[str, Way]]
    wrong: Sequence[str] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the ways as they are saved and compared."""
        ways = {row: {which: way.as_json() for which, way in of.items()} for row, of in self.of.items()}
        return {"verb": "calls", "load": {}, "ways": ways}


def calls_table(found: Ways, *, is_list: bool = False) -> str:
    """Return the figures as two tables; with `is_list`, also the files of each way, with the calls in each."""
    lines = []
    for which in (FIRST, REPEATED):
        rows = [[f"a publish, {which}", "calls", "functions", "files", "depth"]]
        for row, of in found.of.items():
            way = of[which]
            rows.append([row, *(f"{each:,}" for each in (way.calls, way.functions, len(way.files), way.depth))])
        lines += columns(rows)
    if is_list:
        for row, of in found.of.items():
            for which, way in of.items():
                lines += [f"{row}, {which}:", *columns([[file, f"{calls:,}"] for file, calls in way.files.items()])]
    return "\n".join(lines)


async def measure_calls(watch: Watch = lambda _: None) -> Ways:
    """Publish in each way to servers without and with a history, and count. Raises `BenchFailed`."""
    if is_compiled():
        raise BenchFailed("calls of compiled functions cannot be counted: use a Python for which Halley is pure")
    telemetry.configure(Log(level="error"))
    return await asyncio.create_task(_measured(watch))  # else the functions of Halley that wait for this would count


async def _measured(watch: Watch) -> Ways:
    found: dict[tuple[str, str], Mapping[str, Way]] = {}
    for kind in _KINDS:
        with tempfile.TemporaryDirectory(prefix="halley-bench-", dir=disk()) as folder, _tracing() as trace:
            async with _serving(folder, is_recorded=kind == _RECORDED) as (server, port):
                publishes = await _Publishes.begin(server, port, trace)
                for path in _BODIES:
                    found[path, kind] = {FIRST: await publishes.first(path), REPEATED: await publishes.repeated(path)}
                    watch(Phase("counting", len(found), len(_BODIES) * len(_KINDS), "ways"))
                await publishes.end()
    return Ways({f"POST {path}, {kind}": found[path, kind] for path in _BODIES for kind in _KINDS})


class _Trace:
    """The calls of Halley's functions between `begin` and `end`, on the threads that began after it was installed."""

    def __init__(self) -> None:
        self._is_counting = False
        self._below: dict[int, int] = {}  # the depth of what runs the event loop, by thread
        self._called: list[tuple[CodeType, int]] = []  # appending is safe in two threads, adding to a number is not

    def begin(self) -> None:
        """Forget what was counted, and count on this thread and on others."""
        self._called.clear()
        self._below = {threading.get_ident(): _depth(sys._getframe())}
        self._is_counting = True
        sys.setprofile(self.note)

    def leave(self) -> None:
        """Count no longer on this thread."""
        sys.setprofile(None)

    def end(self) -> None:
        """Count no longer on any thread."""
        self._is_counting = False

    def note(self, frame: FrameType, event: str, _: object) -> None:
        """Count a call, if it is one, as `sys.setprofile` has it."""
        if self._is_counting and event == "call" and frame.f_code.co_filename.startswith(_CODE):
            below = self._below.get(threading.get_ident(), 0)
            self._called.append((frame.f_code, _depth(frame) - below))

    def way(self) -> Way:
        """What was counted."""
        files = Counter(code.co_filename.removeprefix(_CODE) for code, _ in self._called)
        functions = {code for code, _ in self._called}
        return Way(len(self._called), len(functions), max((depth for _, depth in self._called), default=0), files)


def _depth(frame: FrameType | None) -> int:
    """How many of Halley's functions are in each other at a frame."""
    depth = 0
    while frame is not None:
        depth += frame.f_code.co_filename.startswith(_CODE)
        frame = frame.f_back
    return depth


@contextmanager
def _tracing() -> Iterator[_Trace]:
    """Have threads that begin within the block be traced."""
    trace = _Trace()
    threading.setprofile(trace.note)
    try:
        yield trace
    finally:
        threading.setprofile(None)


@asynccontextmanager
async def _serving(folder: str, *, is_recorded: bool) -> AsyncIterator[tuple[Halley, int]]:
    """Serve on this event loop, and on a free port, within the block; without a sweeper."""
    settings = Settings(
        port=0,
        sweep_s=_NEVER_S,
        data_dir=folder,
        history=History(enabled=is_recorded, free_bytes=0),
        drain=Drain(spread_s=0),
    )
    composed = Halley(settings)
    server = HalleyServer(composed.server, ServerContext(settings.limits, composed.server.broker.hits))
    socket = bind(settings.host, settings.port, "--port")
    running = asyncio.create_task(server.serve([socket]))
    try:
        await until(lambda: server.started)
        yield composed, socket.getsockname()[1]
    finally:
        server.begin_shutdown(is_forced=True)
        await running


class _Publishes:
    """The clients of a server: four that receive, and one that publishes, one event after another."""

    def __init__(self, server: Halley, port: int, trace: _Trace) -> None:
        self._server = server
        self._port = port
        self._trace = trace
        self._polls: dict[str, Wire] = {}  # by session
        self._receivers: list[Wire] = []
        self._number = 0

    @classmethod
    async def begin(cls, server: Halley, port: int, trace: _Trace) -> _Publishes:
        """Open all that receive. Raises `BenchFailed`."""
        made = cls(server, port, trace)
        for _ in range(2):
            poll = await Wire.open(port)
            client_id = (await poll.post(HANDSHAKE)).messages[0]["clientId"]
            await poll.post(connect(client_id), subscribe(client_id, _CHANNEL))
            made._polls[client_id] = poll
        socket = await BayeuxWire.over(await Wire.open(port))
        await socket.handshake()
        await socket.ask(socket_connect(socket.client_id, advice={"timeout": 0}))
        await socket.ask(subscribe(socket.client_id, _CHANNEL))
        await socket.hold()
        stream = await Wire.open(port)
        await stream.send(request("GET", f"/events{_CHANNEL}", b""))
        head = await stream.reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head:
            raise BenchFailed(f"a stream was refused: {head!r}")
        made._receivers = [*made._polls.values(), socket.wire, stream]
        return made

    async def end(self) -> None:
        """Close the connections of all that receive."""
        for wire in self._receivers:
            await wire.close()

    async def first(self, path: str) -> Way:
        """Count a publish that is the first request of its connection. Raises `BenchFailed`."""
        return await self._least(path, None)

    async def repeated(self, path: str) -> Way:
        """Count a publish like others before on its connection. Raises `BenchFailed`."""
        wire = await Wire.open(self._port)
        try:
            return await self._least(path, wire)
        finally:
            await wire.close()

    async def _least(self, path: str, wire: Wire | None) -> Way:
        """Count publishes; in one of them the history's thread may also look whether its files are all there."""
        for _ in range(_WARM_UP):
            await self._publish(path, wire)
        ways = [await self._publish(path, wire) for _ in range(_ROUNDS)]
        return min(ways, key=lambda way: way.calls)

    async def _publish(self, path: str, kept: Wire | None) -> Way:
        await self._hold()
        self._number += 1
        text = f"hello {self._number:06}"
        body = (_BODIES[path] % text).encode()
        curls = {"user_agent": "curl/7.88.1", "accept": "*/*", "content_type": "application/x-www-form-urlencoded"}
        data = request("POST", path, body, **curls)
        received = [asyncio.create_task(each.reader.readuntil(text.encode())) for each in self._receivers]
        self._trace.begin()
        wire = kept or await Wire.open(self._port)
        answer = await wire.request(data)
        try:
            async with asyncio.timeout(DEADLINE_S):
                await asyncio.gather(*received)
        except (TimeoutError, asyncio.IncompleteReadError):
            raise BenchFailed("not every receiver has got the event") from None
        self._trace.leave()
        self._settle()
        if answer.status != 200 or b'"successful":false' in answer.body:
            raise BenchFailed(f"a publish was refused: {answer.text}")
        if kept is None:
            await wire.close()
        return self._trace.way()

    async def _hold(self) -> None:
        """Send a poll of each session, and wait until the server holds them all."""
        sessions = self._server.server.engine.sessions
        held = sessions.holds + len(self._polls)
        for client_id, wire in self._polls.items():
            await wire.send(post(json.dumps([connect(client_id)]).encode()))
        await until(lambda: sessions.holds == held)

    def _settle(self) -> None:
        """End the count when the history's thread waits for the next event again: it is what ends it."""
        if not self._server.server.settings.history.enabled:
            self._trace.end()
            return
        archive = self._server.server.history.archive
        assert isinstance(archive, FolderLog)
        if not archive.history.writer._done(self._trace.end, _WRITER_S):
            raise BenchFailed("the history's thread does not end its work")
