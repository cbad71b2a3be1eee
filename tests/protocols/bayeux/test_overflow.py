"""An outbox that overflows: the session ends, or old values are dropped, and neither is silent (B17, B26, E56)."""

import pytest
from support.bayeux import House
from support.values import FakeValues

HANDSHAKE = {"reconnect": "handshake", "interval": 0, "timeout": 25_000}


@pytest.fixture
def house():
    """A house whose sessions have a queue of three events."""
    return House(limits={"queue_events": 3})


def subscriber(house):
    peer = house.join()
    peer.subscribe("/a")
    return peer


def test_absent_client_is_cut(house):
    """A client with too many waiting events loses its session, and its next connect gets `reconnect: handshake`."""
    peer = subscriber(house)
    house.publish("/a", 1, 2, 3)
    assert peer.is_known
    house.publish("/a", 4)
    assert not peer.is_known
    only = peer.connect().only
    assert (only["error"], only["advice"]) == ("402::session_unknown", HANDSHAKE)


def test_reason_is_told(house):
    """Programs and telemetry are notified of a session's end by overflow, with the reason (B26)."""
    told = []
    house.hooks.session_closed.append(lambda session, reason: told.append((session.id, reason)))
    peer = subscriber(house)
    house.publish("/a", 1, 2, 3, 4)
    assert told == [(peer.id, "slow_consumer")]
    assert house.broker.closed == {"slow_consumer": 1}
    assert house.broker.overflows == 1


def test_others_are_unaffected(house):
    """Subscribers get an event that makes another session's queue overflow."""
    slow, quick = subscriber(house), subscriber(house)
    quick.connect()
    house.publish("/a", 1, 2, 3)
    quick.connect()
    house.publish("/a", 4)
    assert [data for _, data in quick.heard] == [1, 2, 3, 4]
    assert (slow.is_known, quick.is_known) == (False, True)


def test_held_connect_takes_a_burst(house):
    """A burst beyond the limit is sent on the held connect, and the rest waits; nothing is lost."""
    peer = subscriber(house)
    held = peer.connect()
    house.publish("/a", 1, 2, 3, 4, 5)
    assert [data for _, data in held.events] == [1, 2, 3]
    assert [data for _, data in peer.connect().events] == [4, 5]


def test_burst_beyond_even_that(house):
    """A burst that exceeds the held connect and the queue together ends the session."""
    peer = subscriber(house)
    held = peer.connect()
    house.publish("/a", *range(7))
    assert [data for _, data in held.events] == [0, 1, 2]
    assert not peer.is_known


def test_every_delivery_is_counted(house):
    """Each event that a session is given counts as delivered, including one that first made the hold end."""
    peer = subscriber(house)
    peer.connect()
    house.publish("/a", 1, 2, 3, 4, 5)
    peer.connect()
    assert len(peer.heard) == 5
    assert house.broker.delivered == 5


def test_stalled_reader_is_cut(house):
    """A client whose socket accepts no bytes is cut when its queue is full, held or not (B16)."""
    peer = subscriber(house)
    peer.publish("/a", 0, stalled=True)
    held = peer.connect(id="c")
    house.publish("/a", 1, 2, 3, 4)
    assert held.only == {
        "id": "c",
        "channel": "/meta/connect",
        "successful": False,
        "error": "402::session_unknown",
        "advice": HANDSHAKE,
    }
    assert not peer.is_known


def test_bytes_count_too():
    """The queue also has a limit of bytes."""
    house = House(limits={"queue_bytes": 1_024})
    peer = subscriber(house)
    house.publish("/a", "x" * 400, "x" * 400)
    assert peer.is_known
    house.publish("/a", "x" * 400)
    assert not peer.is_known


def test_one_large_event_always_fits():
    """An event larger than the limit is kept if it is the only one: its size was checked on receipt."""
    house = House(limits={"queue_bytes": 1_024})
    peer = subscriber(house)
    house.publish("/a", "x" * 5_000)
    assert peer.connect().events == [("/a", "x" * 5_000)]


def test_client_that_cuts_itself(house):
    """If a batch overflows its sender's queue, the messages after that are refused, and all are answered (A53)."""
    peer = subscriber(house)
    replies = peer.send(*(peer.message("/a") | {"data": n} for n in range(6))).replies
    assert [reply["successful"] for reply in replies] == [True, True, True, True, False, False]
    assert replies[-1]["error"] == "402::session_unknown"


def test_connect_of_a_client_that_cut_itself(house):
    """A connect in such a batch gets `reconnect: handshake`: its client did not want to leave (B11)."""
    peer = subscriber(house)
    sent = peer.send(peer.poll(), *(peer.message("/a") | {"data": n} for n in range(6)))
    assert sent.replies[0]["advice"] == HANDSHAKE


def test_delivery_that_overflows_says_so(house):
    """A delivery that overflows the outbox and ends the session returns False (B14)."""
    peer = subscriber(house)
    session = peer.session
    accepted = [house.engine.sessions.deliver(session, "/b", n, None, house.now) for n in range(5)]
    house.turn()
    assert accepted == [True, True, True, False, False]


def test_taking_makes_room(house):
    """Events that were taken no longer count."""
    peer = subscriber(house)
    for number in range(20):
        house.publish("/a", number)
        peer.connect()
    assert [data for _, data in peer.heard] == list(range(20))
    assert peer.session.outbox.nbytes == 0


def test_values_keep_the_newest(house):
    """A client that polls too rarely for NetworkTables' values gets the newest of each topic (G8)."""
    values = FakeValues(house.broker, a="double", b="double")
    peer = subscriber(house)
    peer.subscribe("/b")
    peer.subscribe("/c")
    for number in range(100):
        values.put("b" if number == 50 else "a", b"%d" % number, house.now)
    house.publish("/c", "ordinary")
    assert [data for _, data in peer.connect().events] == ["ordinary", 99, 50]
    assert (house.broker.overflows, house.broker.conflated) == (0, 98)


def test_values_keep_the_newest_for_who_acknowledges(house):
    """Unacknowledged values are sent again, and the queue is bounded even if nothing is acknowledged (B17)."""
    values = FakeValues(house.broker, a="double")
    peer = house.join(ext={"ack": True})
    peer.subscribe("/a")
    for number in range(100):
        values.put("a", b"%d" % number, house.now)
        if number in (10, 20, 30):
            lost = [data for _, data in peer.connect(ext={"ack": 0}).events]
    assert lost == [10, 20, 30]
    assert peer.is_known
    assert [data for _, data in peer.connect(ext={"ack": 100}).events] == [99]


def test_a_value_of_a_dead_poll_yields_to_a_newer_one(house):
    """A value that did not arrive is sent again, unless a newer one of its topic is set apart."""
    values = FakeValues(house.broker, a="double", b="double")
    peer = subscriber(house)
    peer.subscribe("/b")
    for topic in "ab":
        values.put(topic, b"1", house.now)
    dying = peer.connect(stalled=True)
    assert [data for _, data in dying.events] == [1, 1]
    for number in range(2, 10):
        values.put("a", b"%d" % number, house.now)
    dying.unwritten()
    assert peer.connect().events == [("/b", 1), ("/a", 9)]
