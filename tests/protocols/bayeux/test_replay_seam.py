"""H5 at the engine: in any sequence of events, every client that replays gets each event once and in order.

A run is a random sequence of publishes, group commits, refusals, polls, late pages, lost replies, overflows, seeks,
lost sessions and removals; the same seed makes the same run. What clients must get is defined by a simple model: the
list of committed events (`Client.take`).
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from support.bayeux import House
from support.bayeux_peers import Exchange, Peer
from support.values import FakeValues

from halley.broker.events import Event
from halley.broker.ports import Durability
from halley.protocols.bayeux.names import to_topic
from halley.protocols.bayeux.session import Reply

RUNS, STEPS, BUNDLES = 500, 70, 5

PATTERNS = {"/a": ("/a",), "/b": ("/b",), "/w/**": ("/w/x", "/w/y/z"), "/n": ("/n",), "/v": ("/v",)}
CHANNELS = [channel for channels in PATTERNS.values() for channel in channels]
PATTERN_OF = {channel: pattern for pattern, channels in PATTERNS.items() for channel in channels}
KEEPINGS = {"b": Durability.ASYNC, "w/y/z": Durability.ASYNC, "n": Durability.NONE}


class World:
    """A house with a random delay of its disk and network, and random losses."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.house = House(
            history={"tail_bytes": random.choice([0, 4_000, 1_000_000]), "page_events": random.choice([1, 3, 300])},
            limits={"queue_events": random.choice([2, 5, 1_000])},
        )
        self.log = self.house.log
        self.log.keepings = KEEPINGS
        self.values = FakeValues(self.house.broker, v="double")
        self.log.short = random.choice([2, 7, 1_000])
        self.numbers = iter(range(1_000_000))
        self.clients = [Client(self, has_acks=random.random() < 0.3) for _ in range(random.randint(1, 3))]

    def run(self) -> None:
        for _ in range(STEPS):
            step = self.random.choices(
                [self.publish, self.commit, self.refuse, self.remove, self.pass_time, self.client],
                [30, 20, 2, 1, 2, 50],
            )[0]
            step()
        self.settle()

    def publish(self) -> None:
        channel = self.random.choice(CHANNELS)
        for _ in range(self.random.choice([1, 1, 1, 2, 9])):
            event = Event(to_topic(channel, self.house.engine.bounds), b"%d" % next(self.numbers))
            if channel == "/v":  # never durable, and never shown to sessions that replay
                self.values.put("v", event.payload, self.house.now)
                continue
            self.house.broker.publish(event, self.house.now, source=self.random.choice([None, "p", "q"]))
        self.turn()

    def commit(self) -> None:
        self.log.commit(self.random.choice([1, 2, 5, None]), self.house.now)
        self.turn()

    def refuse(self) -> None:
        self.log.refuse(self.random.choice([1, 2]), self.house.now)
        self.turn()

    def remove(self) -> None:
        """Let retention remove events, unless a page is being read, which can have events that a gap then reports."""
        if not any(client.waits for client in self.clients):
            self.log.remove_before(self.random.randint(self.log.start_of(None), len(self.log.events) + 1))

    def pass_time(self) -> None:
        self.house.pass_time(self.random.choice([1, 9, 24]))

    def client(self) -> None:
        self.random.choice(self.clients).act()

    def turn(self) -> None:
        """Let the loop turn, immediately or only after the next step."""
        if self.random.random() < 0.7:
            self.house.turn()

    def settle(self) -> None:
        """Check that without further faults every client reaches the head and is held there."""
        self.log.commit(now=self.house.now)
        self.house.turn()
        for client in self.clients:
            client.finish()
            for pattern, last in client.last.items():
                assert client.next_after(pattern, last) is None, f"{pattern}: nothing came after {last}"


class Client:
    """A client that keeps each pattern's last position, and resumes from there in a new session.

    `last` has the position of the last event, or where it began; `reached` those in connect replies.
    """

    def __init__(self, world: World, *, has_acks: bool) -> None:
        self.world, self.has_acks = world, has_acks
        self.last: dict[str, int] = {}
        self.reached: dict[str, int] = {}
        self.seen: set[int] = set()
        self.waits: list[Exchange] = []  # connects whose page is being read
        self.flights: list[Exchange] = []  # replies on their way
        self.begin()

    # Actions

    def act(self) -> None:
        random = self.world.random
        random.choices(
            [self.poll, self.serve, self.arrive, self.lose, self.seek, self.unsubscribe, self.begin],
            [40, 40, 40, 6, 8, 2, 2],
        )[0]()
        self.world.turn()

    def begin(self) -> None:
        """Begin a new session, and subscribe as before, each pattern from the position reached."""
        self.waits.clear()
        self.flights.clear()
        self.polled: list[Exchange] = []
        self.batch = 0
        self.sought: set[str] = set()  # in this session
        self.peer = Peer(self.world.house, ext={"ack": True} if self.has_acks else None)
        self.peer.handshake()
        for pattern in list(self.last):
            self.subscribe(pattern, self.reached.get(pattern, self.last[pattern]))

    def subscribe(self, pattern: str, position: int) -> None:
        log, head = self.world.log, len(self.world.log.events)
        start = log.start_of(None)
        reply = self.peer.subscribe(pattern, ext={"replay": {pattern: position}}).messages[0]
        assert reply["successful"] is (position < 0 or start - 1 <= position <= head)
        if not reply["successful"]:
            assert reply["ext"]["replay_start"] == {pattern: start}
            self.subscribe(pattern, -2)
            return
        self.sought.add(pattern)
        self.last[pattern] = {-1: head, -2: start - 1}.get(position, position)
        self.reached[pattern] = self.last[pattern]

    def seek(self) -> None:
        """Subscribe from any position; replies on their way arrive first, as their events could not be told apart."""
        if not self.is_known():
            return
        self.collect()
        while self.flights:
            self.arrive()
        head = len(self.world.log.events)
        pattern = self.world.random.choice(list(PATTERNS))
        if self.has_acks and pattern in self.sought:  # what it has not acknowledged would come again
            return
        self.subscribe(pattern, self.world.random.choice([-1, -2, self.world.random.randint(0, head)]))
        self.seen = {number for number in self.seen if number not in self.positions(pattern)}

    def unsubscribe(self) -> None:
        """Unsubscribe from a pattern; events that were already taken can still arrive, so they are not checked."""
        if self.last and self.is_known():
            pattern = self.world.random.choice(list(self.last))
            self.peer.unsubscribe(pattern)
            del self.last[pattern], self.reached[pattern]

    def poll(self) -> None:
        """Send a connect, maybe while another waits; not with acks, where it would repeat the events on their way."""
        if not self.is_known():
            self.begin()
        self.collect()
        if self.has_acks and (self.waits or self.flights or self.polled):
            return
        ext = {"ext": {"ack": self.batch}} if self.has_acks else {}
        exchange = self.peer.connect(stalled=True, **ext)
        self.polled.append(exchange)
        if exchange.is_waiting:
            self.waits.append(exchange)

    def serve(self) -> None:
        """Finish reading a page, or let its deadline pass."""
        if self.waits:
            exchange = self.waits.pop(self.world.random.randrange(len(self.waits)))
            assert exchange.wait is not None
            query: Any = exchange.wait.awaitable
            if self.world.random.random() < 0.1:
                exchange.resume(error=TimeoutError())
            else:
                exchange.resume(self.world.log.page(query.query))
            if exchange.is_waiting:
                self.waits.append(exchange)

    def arrive(self) -> None:
        """Let the oldest reply arrive."""
        self.collect()
        if self.flights:
            exchange = self.flights.pop(0)
            exchange.written()
            self.take(exchange)

    def lose(self) -> None:
        """Let the socket of the oldest reply, or of the held connect, die."""
        self.collect()
        if self.flights:
            self.flights.pop(0).unwritten()
        elif self.polled and self.polled[-1].is_held:
            self.polled.pop().hang_up()

    def collect(self) -> None:
        """Collect the replies that have been made; aborted ones never arrive."""
        made = [exchange for exchange in self.polled if isinstance(exchange.reply, Reply)]
        self.polled = [exchange for exchange in self.polled if exchange not in made and not exchange.is_aborted]
        self.flights = [exchange for exchange in [*self.flights, *made] if not exchange.is_aborted]

    def finish(self) -> None:
        """Poll until there are no more events."""
        for _ in range(5_000):
            self.collect()
            if self.flights:
                self.arrive()
            elif self.waits:
                self.serve()
            elif self.polled and self.polled[-1].is_held:
                return
            else:
                self.poll()
            self.world.house.turn()
        raise AssertionError("it never comes to the head")

    def is_known(self) -> bool:
        return self.world.house.session(self.peer.id) is not None

    # Checks

    def take(self, exchange: Exchange) -> None:
        """Check a reply: every event must be the next of its pattern, and no position can be beyond its events."""
        first, *events = exchange.messages
        if not first["successful"]:
            return
        ext = first.get("ext", {})
        if self.has_acks:
            self.batch = max(self.batch, ext.get("ack", 0))
        gaps = ext.get("replay_gap", {})
        for event in events:
            self.hear(event, gaps)
        for pattern, (low, high) in gaps.items():
            if pattern in self.last:
                assert low <= high < self.world.log.start_of(None), "nothing is missing there"
                self.last[pattern] = max(self.last[pattern], high)
        for pattern, position in ext.get("replay", {}).items():
            if pattern in self.last:
                following = self.next_after(pattern, self.last[pattern])
                assert following is None or following > position, "it claims an event that did not come"
                if self.has_acks:  # only one reply is on its way at a time
                    assert position >= self.reached[pattern], "it goes back"
                self.reached[pattern] = max(self.reached[pattern], position)

    def hear(self, event: dict[str, Any], gaps: dict[str, list[int]]) -> None:
        pattern, number = PATTERN_OF[event["channel"]], event["data"]
        if pattern not in self.last:
            return
        position = event.get("ext", {}).get("replay")
        if position is None:
            assert event["channel"] in ("/n", "/b", "/w/y/z", "/v"), "it is not on disk"
        else:
            following = self.next_after(pattern, self.last[pattern])
            low, high = gaps.get(pattern, (0, 0))
            if following is not None and low <= following <= high:  # it has been reported as missing
                following = self.next_after(pattern, high)
            assert position == following, f"{pattern}: after {self.last[pattern]}"
            assert self.world.log.events[position - 1].payload == b"%d" % number
            self.last[pattern] = position
        assert number not in self.seen, "twice"
        self.seen.add(number)

    def next_after(self, pattern: str, position: int) -> int | None:
        """Return the position of a pattern's next committed event, or None."""
        topics = [channel[1:] for channel in PATTERNS[pattern]]
        return next((event.position for event in self.world.log.events[position:] if event.topic in topics), None)

    def positions(self, pattern: str) -> set[int]:
        topics = [channel[1:] for channel in PATTERNS[pattern]]
        return {int(event.payload) for event in self.world.log.events if event.topic in topics}


@pytest.mark.parametrize("bundle", range(BUNDLES))
def test_seam(bundle):
    """No gap, no duplicate, no wrong order and no position too high, in any of a thousand runs (H5, P3)."""
    for seed in range(bundle, RUNS, BUNDLES):
        try:
            World(seed).run()
        except AssertionError as error:
            raise AssertionError(f"with seed {seed}: {error}") from error
