"""What happens to peers that do not read (W53, S32)."""

from __future__ import annotations

import pytest
from support.values import FakeValues
from support.wamp_peers import Peer, World

from halley.broker.events import Event
from halley.broker.flow import GRACE_S
from halley.settings import Limits

GONE = [6, {"message": "slow_consumer"}, "wamp.close.killed"]


def is_sent_away(peer: Peer) -> bool:
    """Whether a peer received the GOODBYE of a slow consumer, nothing else, and was closed."""
    return list(peer.heard) == [GONE] and peer.closed == (1008, "slow_consumer")


@pytest.mark.parametrize("subprotocol", ["wamp.2.json", "wamp.2.cbor.batched"])
@pytest.mark.parametrize(
    ("limits", "limit", "size", "fit"),
    [(Limits(queue_events=5), "queue_events", 1, 5), (Limits(queue_bytes=5_000), "queue_bytes", 900, 5)],
)
def test_overflow(subprotocol: str, limits: Limits, limit: str, size: int, fit: int) -> None:
    """W53: a paused peer over the limit of events or bytes gets GOODBYE and 1008; other peers get every event."""
    world = World(limits=limits)
    slow, quick, publisher = world.joined(subprotocol=subprotocol), world.joined(), world.joined()
    quick.subscribe("wamp.session.on_leave")
    for peer in (slow, quick):
        peer.subscribe("a")
    slow.engine.paused()
    for number in range(fit):
        publisher.publish("a", ["x" * size, number])
    assert slow.closed is None
    assert slow.hears_nothing()
    publisher.publish("a", ["x" * size, fit])
    assert is_sent_away(slow)
    assert world.broker.hits[limit] == world.broker.overflows == 1
    assert world.broker.closed["slow_consumer"] == 1
    publisher.publish("a", ["last"])
    heard = [event[4] for event in quick.events()]
    assert heard.pop(-2)[0] == slow.number
    assert [each[-1] for each in heard] == [*range(fit + 1), "last"]


def test_an_overflow_asks_for_a_turn() -> None:
    """W53: a slow consumer is closed in the next turn, also if nobody else has anything to hear or to be answered."""
    world = World(limits=Limits(queue_events=1))
    slow = world.joined()
    slow.subscribe("a")
    slow.engine.paused()
    world.broker.publish(Event("a", b"1"), world.now)
    world.turn()
    turns: list[float] = []
    world.broker.wake = lambda: turns.append(world.now)
    world.broker.publish(Event("a", b"2"), world.now)
    assert turns == [world.now]
    world.turn()
    assert is_sent_away(slow)


def test_overflow_within_one_turn() -> None:
    """W53: many events of one turn beyond the limit cause one GOODBYE."""
    world = World(limits=Limits(queue_events=5))
    slow, publisher = world.joined(), world.joined()
    slow.subscribe("a")
    slow.engine.paused()
    for number in range(1, 20):
        publisher.say([16, number, {}, "a"], turn=False)
    world.turn()
    assert is_sent_away(slow)
    assert len(world.broker.sessions) == 1


def test_who_reads_is_not_sent_away() -> None:
    """W53: a peer that reads gets a burst of one turn even if it exceeds `queue_events`."""
    world = World(limits=Limits(queue_events=5))
    peer, publisher = world.joined(), world.joined()
    peer.subscribe("a")
    for number in range(1, 101):
        publisher.say([16, number, {}, "a", [number]], turn=False)
    world.turn()
    assert peer.closed is None
    assert [event[4][0] for event in peer.events()] == list(range(1, 101))


def test_one_turn_has_a_bound_for_everyone() -> None:
    """A peer that reads is closed too if one turn's events exceed `queue_bytes` by far."""
    world = World(limits=Limits(queue_bytes=5_000))
    peer, publisher = world.joined(), world.joined()
    peer.subscribe("a")
    for number in range(1, 101):
        publisher.say([16, number, {}, "a", ["x" * 900]], turn=False)
    world.turn()
    assert peer.closed == (1008, "slow_consumer")
    assert len(peer.heard) <= 16


def test_resuming_in_time() -> None:
    """W53: a peer that reads again before its queue is full loses nothing, and has the whole queue again."""
    world = World(limits=Limits(queue_events=5))
    peer, publisher = world.joined(), world.joined()
    peer.subscribe("a")
    for start in (0, 5):
        peer.engine.paused()
        for number in range(start, start + 5):
            publisher.publish("a", [number])
        peer.engine.resumed(world.now)
        world.turn()
    assert [event[4][0] for event in peer.events()] == list(range(10))


@pytest.mark.parametrize(("away_s", "count"), [(0.5, 1), (GRACE_S + 4, 0)])
def test_events_that_waited_for_a_peer_that_did_not_read_are_no_delays(away_s: float, count: int) -> None:
    """One that reads again within a second counts; a slow one does not, until it reads again."""
    world = World()
    peer, publisher = world.joined(), world.joined()
    peer.subscribe("a")
    delays = world.broker.flows["wamp"].delays
    peer.engine.paused()
    publisher.publish("a", [1])
    world.pass_time(away_s)
    publisher.publish("a", [2])
    peer.engine.resumed(world.now)
    world.turn()
    assert (len(delays), delays.total_us) == (count, count * away_s * 1e6)
    publisher.publish("a", [3])
    assert len(delays) == count + 1
    assert [event[4][0] for event in peer.events()] == [1, 2, 3]


def test_replies_are_bounded_too() -> None:
    """W53: a peer that sends calls without reading is closed when its unread bytes exceed the limit."""
    world = World(limits=Limits(queue_bytes=5_000))
    peer = world.joined()
    peer.engine.paused()
    peer.backlog_bytes = 4_000
    for number in range(1, 4):
        peer.say([48, number, {}, "wamp.session.count"])
    assert [message[0] for message in peer.heard] == [50] * 3
    peer.backlog_bytes = 5_001
    peer.heard.clear()
    peer.say([48, 4, {}, "wamp.session.count"])
    assert list(peer.heard)[-1] == GONE
    assert peer.closed == (1008, "slow_consumer")
    assert world.broker.hits["queue_bytes"] >= 1


def test_a_stranger_that_does_not_read() -> None:
    """A link without a session is closed without GOODBYE."""
    world = World(limits=Limits(queue_bytes=5_000))
    peer = world.joined()
    peer.say([6, {}, "a"])
    peer.heard.clear()
    peer.engine.paused()
    peer.backlog_bytes = 5_000
    peer.engine.say([6, {}, "b"])
    world.turn()
    assert peer.hear() == [6, {}, "b"]
    assert peer.hears_nothing()
    assert peer.closed == (1008, "slow_consumer")


def test_a_session_that_ends_as_it_overflows() -> None:
    """W10: a session that overflows and loses its connection in the same turn ends once."""
    world = World(limits=Limits(queue_events=1))
    slow, publisher = world.joined(), world.joined()
    slow.subscribe("a")
    slow.engine.paused()
    for number in range(1, 5):
        publisher.say([16, number, {}, "a"], turn=False)
    slow.engine.lost(world.now)
    world.turn()
    assert slow.hears_nothing()
    assert slow.closed is None
    assert world.broker.closed == {"connection_lost": 1}


@pytest.mark.parametrize("subprotocol", ["wamp.2.json", "wamp.2.msgpack.batched"])
def test_values_keep_the_newest(subprotocol: str) -> None:
    """G8: a peer that does not read later gets the last value of each topic, after its other events."""
    world = World(limits=Limits(queue_events=5))
    values = FakeValues(world.broker, a="double", b="double")
    peer, publisher = world.joined(subprotocol=subprotocol), world.joined()
    for uri in ("a", "b", "c"):
        peer.subscribe(uri)
    peer.engine.paused()
    for number in range(100):
        values.put("b" if number == 50 else "a", b"%d" % number, world.now)
        world.turn()
    publisher.publish("c", ["ordinary"])
    assert peer.closed is None
    peer.engine.resumed(world.now)
    world.turn()
    assert [event[4][0] for event in peer.events()] == ["ordinary", 99, 50]
    assert (world.broker.overflows, world.broker.conflated) == (0, 98)


def test_more_topics_than_may_leave_at_once() -> None:
    """More values than one write takes are all sent, without further messages from any peer."""
    world = World(limits=Limits(queue_events=5))
    values = FakeValues(world.broker, **{f"t{number}": "double" for number in range(23)})
    peer = world.joined()
    peer.subscribe("t", match="prefix")
    peer.engine.paused()
    for number in range(23):
        values.put(f"t{number}", b"%d" % number, world.now)
    peer.engine.resumed(world.now)
    world.turn()
    assert [event[4][0] for event in peer.events()] == list(range(23))
    assert world.broker.conflated == 0
