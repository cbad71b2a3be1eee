"""The program whose instructions are counted: `python -m bench.instructions_load`, a server with all its clients.

Connections, engines and broker are those of a real server; only the kernel is missing. A client passes its bytes to
the server's protocol object, and keeps what that writes. Counts must be the same each time, so nothing here depends on
the time: the clock moves only between two turns of the event loop, no sweeper runs, and no garbage is collected while
instructions are counted. Each load has a process of its own, forked from one that has imported everything.

`instructions.py` runs it, under valgrind with the library of marks, or without both to profile a load.
"""

from __future__ import annotations

import asyncio
import cProfile
import ctypes
import gc
import json
import os
import pstats
import re
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, islice
from operator import getitem
from typing import Any, Protocol, cast

# Halley's modules import the clock by its name, so it is replaced before they do. Asking it must not cost more than
# asking the real one, so it is no function in Python.
_NOW_S = [1_000.0]
time.monotonic = cast("Callable[[], float]", partial(getitem, _NOW_S, 0))

import uvloop  # noqa: E402
from bench import http_loads, socket_loads  # noqa: E402
from bench.stand_in_stream import begin_front  # noqa: E402
from bench.websocket_load import BINARY, frame  # noqa: E402

from halley import telemetry  # noqa: E402
from halley.bench.requests import Requests  # noqa: E402
from halley.broker.commits import PublishResult  # noqa: E402
from halley.broker.errors import Refusal  # noqa: E402
from halley.broker.events import Event, EventRange  # noqa: E402
from halley.cluster.applied import StreamState  # noqa: E402
from halley.cluster.arrivals import EventFactory  # noqa: E402
from halley.cluster.frames import pack, row_of, unpack  # noqa: E402
from halley.embed import Halley  # noqa: E402
from halley.host.process import HalleyServer  # noqa: E402
from halley.host.timeouts import ServerContext  # noqa: E402
from halley.protocols.shapes import ARGS  # noqa: E402
from halley.server.folder_log import FolderLog  # noqa: E402
from halley.settings import History, Log, Nt4, Settings  # noqa: E402

_TURN_S = 0.02
"""Seconds between the turns in which clients send; more than the period of a NetworkTables subscriber."""

_NEVER_S = 1e9
"""Seconds between sweeps: the first request that is served by ASGI starts the sweeper."""

_WARM_UP_ROUNDS = 3
"""Rounds before the one that is counted: then the interpreter has specialized its bytecode, and caches are filled."""

_PROFILED_ROUNDS, _PROFILED_LINES = 30, 40
_SWITCH_S = 1.0  # else the number of times that threads pass the interpreter to each other would depend on time

_WRITER_S = 60.0  # for what takes milliseconds, but under valgrind and on a busy machine

_HOST = "127.0.0.1:8080"
_REQUESTS = Requests(_HOST, "/bayeux", token=None, browser_headers=False)  # those of `halley bench`
_DATA_BYTES, _DUE_NS, _TIME_US = 20, 10**18, 10**15
_CLIENT_ID = re.compile(rb'"clientId":"([^"]+)"')
_COOKIE = re.compile(rb"set-cookie: ([^;\r]+)")
_STREAM = b"content-type: text/event-stream"
_SUCCESSFUL, _DATA = b'"successful":true', b'"mark":'  # in a reply; in the data of an event

Turn = Sequence[tuple[Callable[[Any], object], Any]]
"""What is sent in one turn of the event loop: for each piece the function that takes it, and the piece itself."""


# A server and its clients


class _Wire(asyncio.Transport):
    """The transport of a connection without a kernel: `written` is what the server has written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 5_000), "sockname": ("127.0.0.1", 8_080)})
        self.written: list[bytes] = []
        self.write = self.written.append  # type: ignore[assignment,method-assign]  # costs nothing that is ours
        self.protocol: Any = None

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Pass received bytes to another protocol object from now on."""
        self.protocol = protocol

    def is_closing(self) -> bool:
        """Whether the server has closed the connection."""
        return self.protocol is None

    def close(self) -> None:
        """Tell the protocol object in the next turn that the connection is lost."""
        if self.protocol is not None:
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)
            self.protocol = None

    abort = close

    def get_write_buffer_size(self) -> int:
        """Return 0: everything is read immediately."""
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing."""

    def pause_reading(self) -> None:
        """Do nothing: what was sent is received."""

    def resume_reading(self) -> None:
        """Do nothing."""


class Receiver(Protocol):
    """A client, or another receiver of what a load is about."""

    def take(self) -> bytes:
        """Return what was received since the last call."""


class Client:
    """A client, with one connection."""

    def __init__(self, server: HalleyServer) -> None:
        config: Any = server.config
        self._wire = _Wire()
        self._wire.protocol = config.http_protocol_class(config=config, server_state=server.server_state, app_state={})
        self._wire.protocol.connection_made(self._wire)

    @property
    def send(self) -> Callable[[bytes], object]:
        """The function that takes the client's bytes."""
        received: Callable[[bytes], object] = self._wire.protocol.data_received
        return received

    def take(self) -> bytes:
        """Return what was received since the last call."""
        received = b"".join(self._wire.written)
        self._wire.written.clear()
        return received

    def close(self) -> None:
        """Close the connection."""
        self._wire.close()

    def listen(self, received: Callable[[], object]) -> None:
        """Call `received` from now on when the server has written."""

        def write(data: Any) -> None:
            self._wire.written.append(data)
            received()

        self._wire.write = write  # type: ignore[method-assign]

    async def ask(self, data: bytes) -> bytes:
        """Send bytes, and return what is received for them."""
        self.send(data)
        await _turns()
        return self.take()


class Session(Client):
    """A client with a Bayeux session, by long-polling."""

    _id = ""
    _cookie = b""

    async def open(self, *channels: int) -> None:
        """Handshake; with channels, also subscribe, and have a poll held."""
        answer = await self.ask(_REQUESTS.handshake())
        self._id, self._cookie = _found(_CLIENT_ID, answer).decode(), _found(_COOKIE, answer)
        if channels:
            await self.subscribe(*channels)
            assert _SUCCESSFUL in await self.ask(self.poll())  # the first is answered immediately
            assert not await self.ask(self.poll())

    async def subscribe(self, *channels: int, patterns: int = 0) -> None:
        """Subscribe to channels, and to patterns of the first one (`Requests.subscribe`)."""
        answer = await self.ask(_REQUESTS.subscribe(self._id, self._cookie, channels, patterns))
        assert _SUCCESSFUL in answer, answer

    def poll(self) -> bytes:
        """Return a request that is held."""
        return _REQUESTS.connect(self._id, self._cookie, is_held=True)

    def publish(self, channel: int, batch: int = 1) -> bytes:
        """Return a request that publishes to a channel `batch` times."""
        template = _REQUESTS.publish_template(self._id, self._cookie, _DATA_BYTES, batch)
        return template % tuple(each for number in range(batch) for each in (channel, _DUE_NS, channel, number))


class Simulation:
    """A server without a kernel, and its clients."""

    def __init__(self, **changed: Any) -> None:
        """Make a server with the default settings, except for those that are `changed`; without a history."""
        settings = replace(Settings(history=History(enabled=False), sweep_s=_NEVER_S), **changed)
        self._has_history = settings.history.enabled
        self.halley = Halley(settings)
        self.clients: list[Client] = []
        server = self.halley.server
        self._host = HalleyServer(server, ServerContext(settings.limits, server.broker.hits))
        self._host.config.load()
        server.lifecycle.open()

    def connect(self) -> Client:
        """Open a connection."""
        return Client(self._host)

    async def session(self, *channels: int) -> Session:
        """Open a Bayeux session."""
        client = Session(self._host)
        await client.open(*channels)
        await self.settle()  # the server records that a session was opened
        self.clients.append(client)
        return client

    async def settle(self) -> None:
        """Return when what was sent is answered, and the history's writer, if there is one, waits for its next batch.

        So batches are the same however fast the writer is, and all its work is in the round that it is for.
        """
        await _turns()
        if self._has_history:
            archive = self.halley.server.history.archive
            assert isinstance(archive, FolderLog)
            await archive.flush()
            assert archive.history.written(_WRITER_S)

    async def web_socket(self, path: str, subprotocol: str, *messages: bytes) -> Client:
        """Open a WebSocket; send some frames, to each of which there is an answer."""
        client = self.connect()
        answer = await client.ask(
            f"GET {path} HTTP/1.1\r\nHost: {_HOST}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            f"Sec-WebSocket-Protocol: {subprotocol}\r\n\r\n".encode()
        )
        assert answer.startswith(b"HTTP/1.1 101 "), answer
        for message in messages:
            assert await client.ask(message), message
        self.clients.append(client)
        return client


def _found(pattern: re.Pattern[bytes], text: bytes) -> bytes:
    match = pattern.search(text)
    assert match is not None, text
    return match[1]


async def _turns(needed: int = 2) -> None:
    """Let the event loop have the turns that answers to what was sent need."""
    for _ in range(needed):
        await asyncio.sleep(0)


# Loads


@dataclass(frozen=True, slots=True)
class Load:
    """A load of `units`, which are the same in each round.

    `turns` makes what is sent in a round; then the receivers must have received `mark` so many times, by default once a
    unit. `settle` returns when everything that was sent in a turn is answered. `thread` is whose the other thread is
    of the history, if one has work.
    """

    units: int
    turns: Callable[[], list[Turn]]
    receivers: Sequence[Receiver]
    mark: bytes
    marks: int = 0
    settle: Callable[[], Coroutine[Any, Any, None]] = _turns
    thread: str = "writer"

    async def send(self, turns: list[Turn]) -> None:
        """Send what `turns` has made."""
        for turn in turns:
            _NOW_S[0] += _TURN_S
            for send, data in turn:
                send(data)
            await self.settle()

    def check(self) -> None:
        """Check that everything that the last round is for was received."""
        marks = sum(each.take().count(self.mark) for each in self.receivers)
        assert marks == (self.marks or self.units), f"{marks:,} were received"


async def bayeux_fanout() -> Load:
    """Bayeux, one publish to 200 held polls: each delivery, with the next poll."""
    simulation = Simulation()
    subscribers = [await simulation.session(0) for _ in range(200)]
    publisher = await simulation.session()

    def turns() -> list[Turn]:
        return [[(publisher.send, publisher.publish(0))], [(each.send, each.poll()) for each in subscribers]]

    return Load(200, turns, simulation.clients, _DATA)


async def bayeux_one_to_one() -> Load:
    """Bayeux, publishes to one held poll: each, with its delivery and the next poll."""
    simulation = Simulation()
    subscribers = [await simulation.session(channel) for channel in range(100)]
    publishers = [await simulation.session() for _ in range(16)]

    def turns() -> list[Turn]:
        made: list[Turn] = []
        for channel, subscriber in enumerate(subscribers):
            publisher = publishers[channel % len(publishers)]
            made += [[(publisher.send, publisher.publish(channel))], [(subscriber.send, subscriber.poll())]]
        return made

    return Load(100, turns, simulation.clients, _DATA)


async def bayeux_publish() -> Load:
    """Bayeux, publishes without a subscriber: each, acknowledged."""
    return await _publishes(Simulation(), 32, turns=10)


async def bayeux_publish_changed() -> Load:
    """Bayeux, the first publish to a channel since a wildcard was subscribed and unsubscribed: each, acknowledged."""
    simulation = Simulation()
    sessions = [await simulation.session() for _ in range(32)]
    other = simulation.halley.local_session("other")
    other.subscribe("/other/*", print)
    other.subscribe("/other/**", print)

    def made() -> list[Turn]:
        other.subscribe("/**", print)
        other.unsubscribe("/**")
        channels = count()
        return [[(each.send, each.publish(next(channels))) for each in sessions] for _ in range(10)]

    return Load(320, made, simulation.clients, _SUCCESSFUL)


async def bayeux_batch() -> Load:
    """Bayeux, publishes without a subscriber, 20 in a request: each, acknowledged."""
    return await _publishes(Simulation(), 16, turns=2, batch=20)


async def bayeux_durable() -> Load:
    """Bayeux, 100 durable publishes at a time: each, acknowledged."""
    folder = tempfile.mkdtemp()  # in the folder that TMPDIR names, which is removed afterwards
    simulation = Simulation(history=History(free_bytes=0), data_dir=folder)
    return replace(await _publishes(simulation, 100, turns=3), settle=simulation.settle)


async def _publishes(simulation: Simulation, publishers: int, *, turns: int, batch: int = 1) -> Load:
    """Return a load in which all publishers send a request in each turn."""
    sessions = [await simulation.session() for _ in range(publishers)]

    def made() -> list[Turn]:
        return [[(each.send, each.publish(channel, batch)) for each in sessions] for channel in range(turns)]

    return Load(publishers * turns * batch, made, simulation.clients, _SUCCESSFUL)


_WAMP = "/ws", "wamp.2.json"
_TOPIC = "com.halley.bench"
_KEYS = 20_000  # a fifth of the default: they are remembered under valgrind, too


def _wamp(*message: object) -> bytes:
    return frame(json.dumps(message, separators=(",", ":")).encode())


_HELLO = _wamp(1, "realm1", {"roles": {"publisher": {}, "subscriber": {}}})
_SUBSCRIBE = _wamp(32, 1, {}, _TOPIC)


async def wamp_publish() -> Load:
    """WAMP, publishes without a subscriber: each, acknowledged."""
    simulation = Simulation()
    publisher = await simulation.web_socket(*_WAMP, _HELLO)
    return Load(200, _wamp_turns(publisher, 200, acknowledge=True), simulation.clients, b"[17,")


async def wamp_keyed() -> Load:
    """WAMP, publishes with an idempotency key, where as many are known as may be: each, acknowledged."""
    simulation = Simulation(history=History(enabled=False, keys=_KEYS))
    publisher = await simulation.web_socket(*_WAMP, _HELLO)
    keys, numbers = simulation.halley.server.broker.commits.keys, count(1)
    for number in range(_KEYS + _KEYS // 3):  # the oldest third has made room
        keys.remember(None, f"before {number}", PublishResult("a", 0, 0), _NOW_S[0])

    def turns() -> list[Turn]:
        options = {"acknowledge": True, "_idempotency_key": ""}
        made = [_wamp(16, each, options | {"_idempotency_key": f"key {each}"}, _TOPIC) for each in islice(numbers, 200)]
        return [[(publisher.send, each)] for each in made]

    return Load(200, turns, simulation.clients, b"[17,")


async def wamp_fanout() -> Load:
    """WAMP, each publish to 100 WebSockets, 8 publishes at a time: each delivery."""
    return await _wamp_fanout(turns=5, publishes=8)


async def wamp_fanout_single() -> Load:
    """WAMP, each publish to 100 WebSockets, one at a time: each delivery."""
    return await _wamp_fanout(turns=20, publishes=1)


async def _wamp_fanout(turns: int, publishes: int) -> Load:
    simulation = Simulation()
    for _ in range(100):
        await simulation.web_socket(*_WAMP, _HELLO, _SUBSCRIBE)
    publisher = await simulation.web_socket(*_WAMP, _HELLO)
    return Load(100 * turns * publishes, _wamp_turns(publisher, turns, publishes), simulation.clients, b"[36,")


def _wamp_turns(publisher: Client, turns: int, publishes: int = 1, **options: bool) -> Callable[[], list[Turn]]:
    """Return what makes turns with so many publishes."""
    numbers = count(1)

    def turn() -> Turn:
        made = [_wamp(16, next(numbers), options, _TOPIC, [1, "x" * 64]) for _ in range(publishes)]
        return [(publisher.send, b"".join(made))]

    return lambda: [turn() for _ in range(turns)]


async def events_fanout() -> Load:
    """Streams of events, one publish to 200 of them, one at a time: each delivery."""
    simulation = Simulation()
    for _ in range(200):
        stream = simulation.connect()
        assert _STREAM in await stream.ask(f"GET /events/bench/000000 HTTP/1.1\r\nHost: {_HOST}\r\n\r\n".encode())
        simulation.clients.append(stream)
    publisher = await simulation.session()
    turn = [(publisher.send, publisher.publish(0))]
    return Load(1_000, lambda: [turn] * 5, simulation.clients, _DATA)


_NT4 = "v4.1.networktables.first.wpi.edu"
_TIME = frame(b"\x94\xff\x00\x02\x00", BINARY)  # [-1, 0, int, 0]: a request for the server's time
_VALUE = struct.Struct("!BBBQBBd")
_DOUBLE = struct.pack("!Bd", 0xCB, 0.5)


def _nt4(method: str, **params: Any) -> bytes:
    return frame(json.dumps([{"method": method, "params": params}]).encode())


async def nt4() -> Load:
    """NetworkTables, 100 values a period to 20 WebSockets: each value, put and delivered to all."""
    simulation = Simulation(nt4=Nt4(enabled=True))
    publish = _nt4("publish", name="/bench/x", pubuid=1, type="double", properties={})
    publisher = await simulation.web_socket("/nt/publisher", _NT4, publish + _TIME)
    subscribe = _nt4("subscribe", topics=["/bench/x"], subuid=1, options={"all": True, "periodic": 0.01})
    for number in range(20):
        await simulation.web_socket(f"/nt/{number}", _NT4, subscribe)
    times_us = count(1_000_000)

    def values() -> bytes:
        return frame(b"".join(_VALUE.pack(0x94, 1, 0xCF, next(times_us), 1, 0xCB, 0.5) for _ in range(100)), BINARY)

    return Load(1_000, lambda: [[(publisher.send, values())] for _ in range(10)], simulation.clients, _DOUBLE, 20_000)


_RUN, _KEY = "another-0123456789ab", 2**105 + 2**52 + 1
_UNTIL_STORED = 6  # turns until a frame is sent, comes back, counts as stored, and is acknowledged


def _event() -> Event:
    data = b'{"args":[1,"%b"],"kwargs":{}}' % (b"x" * 64)
    event = Event(_TOPIC.replace(".", "/"), data, None, "wamp", "me", "user")
    event.shape = ARGS
    return event


async def cluster() -> Load:
    """Cluster, frames of 10 events of another node to one WebSocket at a front: each delivery."""
    simulation = Simulation()
    await simulation.web_socket(*_WAMP, _HELLO, _SUBSCRIBE)
    commits, applied = simulation.halley.server.broker.commits, StreamState(0, 0)
    arrivals = EventFactory(applied, _KEY, is_front=True)
    numbers = count(1)

    def receive(data: bytes) -> None:
        frame = unpack(data)
        assert applied.admit(applied.sequence + 1, _TIME_US, frame)
        commits.arrived([each for each in arrivals.others(frame) if isinstance(each, EventRange)], _NOW_S[0])

    def data() -> bytes:
        return pack(_RUN, next(numbers), [row_of(_event())] * 10)

    return Load(200, lambda: [[(receive, data())] for _ in range(20)], simulation.clients, b"[36,")


async def cluster_publish() -> Load:
    """Cluster, publishes at a front, 8 in a frame: each, acknowledged when the stream has it."""
    broker, publisher = Simulation().halley.server.broker, _Callback()
    begin_front(broker, _KEY, _TIME_US)

    def publish(event: Event) -> None:
        pending = broker.publish(event, _NOW_S[0], source=event)
        assert pending is not None
        pending.waiters.append(publisher)

    def turns() -> list[Turn]:
        return [[(publish, _event()) for _ in range(8)] for _ in range(20)]

    return Load(160, turns, [publisher], bytes(1), settle=partial(_turns, _UNTIL_STORED))


class _Callback:
    """The callback of a local session, or a waiter; each call is as a byte that was received."""

    def __init__(self) -> None:
        self._calls = 0

    def __call__(self, channel: str, data: Any) -> None:
        self._calls += 1

    def settled(self, event: Event, refusal: Refusal | None, now: float) -> None:
        """Note that an event is stored and delivered."""
        self._calls += refusal is None

    def take(self) -> bytes:
        """Return a byte for each call since the last one."""
        calls, self._calls = self._calls, 0
        return bytes(calls)


async def local() -> Load:
    """Embedded, publishes of a local session to another: each, with its delivery."""
    halley = Simulation().halley
    callback = _Callback()
    halley.local_session("subscriber").subscribe("/bench/x", callback)
    publish = partial(halley.local_session("publisher").publish, "/bench/x")
    return Load(200, lambda: [[(publish, {"pad": "x" * _DATA_BYTES})] for _ in range(200)], [callback], bytes(1))


LOADS: dict[str, Callable[[], Coroutine[Any, Any, Load]]] = {
    "bayeux-fanout": bayeux_fanout,
    "bayeux-one-to-one": bayeux_one_to_one,
    "bayeux-publish": bayeux_publish,
    "bayeux-publish-changed": bayeux_publish_changed,
    "bayeux-batch": bayeux_batch,
    "bayeux-durable": bayeux_durable,
    "bayeux-post": http_loads.bayeux_post(Simulation, Load),
    "bayeux-post-new": http_loads.bayeux_post_new(Simulation, Load),
    "bayeux-socket-fanout": socket_loads.fanout(Simulation, Load),
    "bayeux-socket-publish": socket_loads.publish(Simulation, Load),
    "wamp-publish": wamp_publish,
    "wamp-keyed": wamp_keyed,
    "wamp-fanout": wamp_fanout,
    "wamp-fanout-single": wamp_fanout_single,
    "events-fanout": events_fanout,
    "events-post": http_loads.events_post(Simulation, Load),
    "events-post-new": http_loads.events_post_new(Simulation, Load),
    "history-get": http_loads.history_get(Simulation, Load),
    "nt4": nt4,
    "cluster": cluster,
    "cluster-publish": cluster_publish,
    "local": local,
}


# Counting


def _run(name: str, marks: Any) -> dict[str, Any]:
    """Run a load, one round of it between the two marks, and describe it; without marks, print a profile."""
    loop = uvloop.new_event_loop()
    load = loop.run_until_complete(LOADS[name]())

    def run(begin: Callable[[], object] = int, end: Callable[[], object] = int) -> None:
        turns = load.turns()
        begin()
        loop.run_until_complete(load.send(turns))
        end()
        load.check()

    for _ in range(_WARM_UP_ROUNDS):
        run()
    gc.collect()
    gc.freeze()
    gc.disable()
    if marks is not None:
        run(marks.begin, marks.end)
    else:
        profile = cProfile.Profile()
        for _ in range(_PROFILED_ROUNDS):
            run(profile.enable, profile.disable)
        pstats.Stats(profile).sort_stats("tottime").print_stats(_PROFILED_LINES)
    text = LOADS[name].__doc__
    return {"load": name, "text": text, "units": load.units, "thread": load.thread, "pid": os.getpid()}


def main() -> None:
    """Run the named loads, or all; the first argument is the library of marks, or empty.

    Prints for each load a line of JSON as soon as it was counted, or a profile.
    """
    library, *names = sys.argv[1:]
    for unknown in {*names} - {*LOADS}:
        sys.exit(f"there is no load {unknown!r}, only {', '.join(LOADS)}")
    marks = ctypes.CDLL(library) if library else None
    telemetry.configure(Log(level="error"))
    sys.setswitchinterval(_SWITCH_S)
    names = names or [*LOADS]
    for name in names:
        pid = os.fork()
        if not pid:
            code = 1
            try:
                done = _run(name, marks)
                if marks is not None:
                    print(json.dumps({**done, "of": len(names)}))
                code = 0
            except Exception as error:  # noqa: BLE001 - whatever it is, the process ends here
                traceback.print_exc()
                print(f"{name}: {error!r}", file=sys.stderr)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        if os.waitpid(pid, 0)[1]:
            sys.exit(1)


if __name__ == "__main__":
    main()
