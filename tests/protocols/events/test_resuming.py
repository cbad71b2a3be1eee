"""In any sequence of events, a reader that comes back with its last id gets each event once and in order.

A run is a random sequence of publishes, group commits, refusals, late pages, readers that stop and go on, cut
connections and removals; the same seed makes the same run. The model is the list of committed events: what a reader got
is compared with it from its first position on, less what a gap has told.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from support.broker import waiting_bytes
from support.memory_log import MemoryLog
from support.streams import EventSource

from halley.broker.broker import Broker
from halley.broker.events import Event
from halley.broker.names import matches
from halley.broker.policy import ANONYMOUS, DefaultRules
from halley.broker.ports import Durability
from halley.protocols.bayeux.names import NameLimits, to_pattern
from halley.protocols.contract import Close
from halley.protocols.events.messages import SSE, WITH_POSITION_EVENTS
from halley.protocols.events.protocol import Events, StartPosition
from halley.protocols.events.stream import Streams
from halley.settings import Events as Options
from halley.settings import History, Limits
from halley.transports.head import Head

if TYPE_CHECKING:
    from collections.abc import Callable

    from halley.broker.ports import Page, Query

RUNS, STEPS, BUNDLES = 400, 80, 5
TOPICS = ["a", "b", "w/x", "w/y/z", "n"]
KEEPINGS = {"b": Durability.ASYNC, "w/y/z": Durability.ASYNC, "n": Durability.NONE}
ASKED = [("/a",), ("/b",), ("/w/**",), ("/**",), ("/a", "/w/*", "/n"), ("/w/**", "/**")]
HEAD = Head("GET", "/events", b"", {}, "192.0.2.1", "http")


class Link:
    """The connection of one reader: keeps what was written to it."""

    kind = "kept"
    subprotocol = ""
    backlog_bytes = 0

    def __init__(self) -> None:
        self.written = b""
        self.end: str | None = None

    @staticmethod
    def text(message: bytes) -> bytes:
        return message

    binary = text

    def write(self, outcome: list[bytes] | Close) -> None:
        assert self.end is None, "written behind the end"
        if isinstance(outcome, Close):
            self.end, outcome = outcome.reason, outcome.frames
        self.written += b"".join(outcome)

    def take(self) -> bytes:
        taken, self.written = self.written, b""
        return taken


class House:
    """A broker with a history in memory and its streams; pages of the history come when a test says so.

    What they have is what the history has then, or had when they were asked for, if `reads_early` says so.
    """

    def __init__(self, *, tail_bytes: int = 1_000_000, page_events: int = 300, queue_events: int = 1_000) -> None:
        self.now = 1_000.0
        self.pages: list[tuple[Callable[[], Page], Any]] = []
        self.reads_early: Callable[[], bool] = lambda: False
        history = History(tail_bytes=tail_bytes, page_events=page_events)
        self.broker = Broker(Limits(queue_events=queue_events), history)
        self.log = MemoryLog(self.broker)
        self.faults: list[Exception] = []
        streams = Streams(
            self.broker,
            Options(),
            DefaultRules(True, True),
            lambda reading, _limit_s, resume: self.pages.append((self._page_of(reading.query), resume)),
            lambda query, _reader: self.log.read(query),
            lambda _what, error: self.faults.append(error),
        )
        self.events = Events(streams)

    def open(self, names: tuple[str, ...], after: int | None = None, form: Any = SSE, log: str | None = None) -> Any:
        """Open a stream, and return it with its link, to which its first message was written."""
        link = Link()
        patterns = tuple(to_pattern(name, NameLimits(255, 32)) for name in names)
        stream, first = self.events.open_stream(
            StartPosition(patterns, after, log), link, form, ANONYMOUS, HEAD, self.now
        )
        link.written += first
        return stream, link

    def publish(self, topic: str, payload: bytes = b"1") -> Event:
        event = Event(topic, payload)
        self.broker.publish(event, self.now)
        return event

    def turn(self) -> None:
        self.broker.flush(self.now)

    def read(self, at: int = 0) -> None:
        """Let a page come that a stream waits for."""
        page, resume = self.pages.pop(at)
        resume(page(), None, self.now)

    def _page_of(self, query: Query) -> Callable[[], Page]:
        if not self.reads_early():
            return lambda: self.log.page(query)
        page = self.log.page(query)
        return lambda: page

    def settle(self) -> None:
        """Turn and read until nothing is left to do."""
        self.turn()
        while self.pages or self.broker.ready or self.broker.ready_later:
            if self.pages:
                self.read()
            self.turn()


class Reader:
    """A reader that keeps the last id as browsers do, and comes back with it.

    `has` are the positions of what it got, `told` those that gaps have told, `began` where it came in first.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.names = world.random.choice(ASKED)
        self.patterns = [to_pattern(name, NameLimits(255, 32)) for name in self.names]
        self.has: list[int] = []
        self.told: set[int] = set()
        head = world.house.broker.commits.tail.head
        after = world.random.choice([None, 0, world.random.randint(0, head)])
        self.began = head if after is None else after
        self.is_paused = False
        self.connect(after)

    def connect(self, after: int | None) -> None:
        self.source = EventSource("" if after is None else str(after))
        form = self.world.random.choice([SSE, WITH_POSITION_EVENTS[SSE]])
        self.stream, self.link = self.world.house.open(self.names, after, form)
        self.is_paused = False
        self.told_here: set[int] = set()
        self.look()

    def look(self) -> None:
        """Read what was written so far."""
        for kind, last_id, told in self.source.feed(self.link.take()):
            if kind == "end":
                assert told == {"reason": "slow_consumer"}  # of what is not recorded
            elif kind == "position":
                assert told == {"position": int(last_id)}
                assert not self.has or told["position"] >= self.has[-1], "an id that goes back"
            elif kind == "gap":
                assert told["reason"] in ("expired", "lost"), told
                gap = set(range(told["from"], told["to"] + 1))
                assert not gap & self.told_here, "told twice on one connection"
                self.told_here |= gap
                self.told |= gap
            elif told["position"] is not None:
                assert told["position"] not in self.told_here, "got after it was told to be missing"
                assert str(told["position"]) == last_id
                assert not self.has or told["position"] > self.has[-1], "out of order, or twice"
                self.has.append(told["position"])

    def act(self) -> None:
        self.world.random.choice([self.look, self.pause, self.cut, self.wait])()

    def wait(self) -> None:
        """Get a sign of life in the next turn, if nothing else comes."""
        if self.stream.closed is None:
            self.world.house.events.streams.due(self.stream, self.world.house.now)

    def pause(self) -> None:
        """Stop reading, or go on."""
        self.is_paused = not self.is_paused
        if self.is_paused:
            self.stream.paused()
        else:
            self.stream.resumed(self.world.house.now)

    def cut(self) -> None:
        """Lose the connection, with some of what was written to it, and come back."""
        written = self.link.take()
        self.link.written = written[: self.world.random.randint(0, len(written))]
        self.look()
        self.stream.lost(self.world.house.now)
        self.connect(int(self.source.last_id) if self.source.last_id else None)

    def finish(self) -> None:
        """Read to the head: from then on nothing may be missing that no gap has told."""
        if self.is_paused:
            self.pause()
        self.world.house.settle()
        if self.link.end is not None:
            self.cut()
            self.world.house.settle()
        self.look()
        events = self.world.house.log.events
        wanted = [event for event in events[self.began :] if any(matches(each, event.topic) for each in self.patterns)]
        missing = {event.position for event in wanted} - set(self.has)
        assert missing <= self.told, f"lost: {sorted(missing - self.told)}"
        assert set(self.has) <= {event.position for event in wanted}, "got what it has not asked for"


class World:
    """A house with a random delay of its disk and its readers, and random losses."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.house = House(
            tail_bytes=random.choice([0, 4_000, 1_000_000]),
            page_events=random.choice([1, 3, 300]),
            queue_events=random.choice([2, 5, 1_000]),
        )
        self.house.reads_early = lambda: random.random() < 0.5
        self.log = self.house.log
        self.log.keepings = KEEPINGS
        self.log.short = random.choice([2, 7, 1_000])
        self.readers: list[Reader] = []

    def run(self) -> None:
        for _ in range(STEPS):
            acts = [self.publish, self.commit, self.refuse, self.remove, self.lose, self.read, self.turn, self.reader]
            self.random.choices(acts, [30, 20, 2, 1, 1, 30, 20, 20])[0]()
            assert self.house.broker.waiting.value == waiting_bytes(self.house.broker)
        self.log.commit(now=self.house.now)
        for reader in self.readers:
            reader.finish()
        assert self.house.faults == []

    def publish(self) -> None:
        for _ in range(self.random.choice([1, 1, 1, 2, 9])):
            self.house.publish(self.random.choice(TOPICS), b'"%b"' % (b"x" * self.random.choice([1, 1, 20_000])))

    def commit(self) -> None:
        self.log.commit(self.random.choice([1, 2, 5, None]), self.house.now)

    def refuse(self) -> None:
        self.log.refuse(self.random.choice([1, 2]), self.house.now)

    def remove(self) -> None:
        """Let retention remove events, also while a page is being read."""
        self.log.remove_before(self.random.randint(self.log.start_of(None), len(self.log.events) + 1))

    def lose(self) -> None:
        """Damage a range of the log, which only those notice who read it from the disk."""
        head = len(self.log.events)
        if head > 3 and not self.log.gaps:
            first = self.random.randint(1, head - 2)
            self.log.gaps.append((first, first + self.random.randint(0, 2)))

    def read(self) -> None:
        if self.house.pages:
            self.house.read(self.random.randrange(len(self.house.pages)))

    def turn(self) -> None:
        self.house.turn()

    def reader(self) -> None:
        if len(self.readers) < 3:
            self.readers.append(Reader(self))
        else:
            self.random.choice(self.readers).act()


@pytest.mark.parametrize("bundle", range(BUNDLES))
def test_nothing_is_lost_doubled_or_out_of_order(bundle):
    """Over live events, commits, pages, removals and cuts, at any position."""
    for seed in range(bundle * RUNS // BUNDLES, (bundle + 1) * RUNS // BUNDLES):
        try:
            World(seed).run()
        except BaseException as fault:
            fault.add_note(f"seed {seed}")
            raise
