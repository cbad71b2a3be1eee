"""Connects: which are held, how a hold ends, and what happens to two at the same time (A7, A32-A37, B2, B5-B7)."""

import pytest
from support.bayeux import House
from support.bayeux_peers import Peer

from halley.protocols.bayeux.outcomes import Transport

TYPES = "301:long-polling,callback-polling:connection_types_unsupported"


def test_first_connect_is_answered_at_once(house):
    """A session's first connect is answered immediately, requested or not (A37, B2, E10)."""
    peer = Peer(house)
    peer.handshake()
    only = peer.connect().only
    assert (only["successful"], only["clientId"]) == (True, peer.id)


def test_later_connects_are_held_to_the_end(house):
    """The next connect is held for `hold_s` and then answered successfully, without other messages (A34, A37, E10)."""
    peer = house.join()
    held = peer.connect()
    house.pass_time(24.9)
    assert held.is_held
    house.pass_time(0.1)
    assert held.only == {"id": "2", "channel": "/meta/connect", "successful": True, "clientId": peer.id}


@pytest.mark.parametrize(
    ("timeout_ms", "held_s"), [(1_000, 1.0), (1_500.5, 1.5005), (3_600_000, 25.0), (1e308, 25.0), (25_001, 25.0)]
)
def test_client_chooses_the_timeout(house, timeout_ms, held_s):
    """The client's `advice.timeout` is honoured up to the server's own (A35, S17)."""
    peer = house.join()
    held = peer.connect(advice={"timeout": timeout_ms})
    house.pass_time(held_s - 0.01)
    assert held.is_held
    house.pass_time(0.02)
    assert held.only["successful"] is True


@pytest.mark.parametrize("timeout_ms", [0, 0.0, -1, -1e308, -(2**63)])
def test_timeout_of_nothing(house, timeout_ms):
    """A connect with a timeout of 0 or less is answered immediately (A35)."""
    assert house.join().connect(advice={"timeout": timeout_ms}).only["successful"] is True


def test_zero_hold_means_no_hold():
    """With a hold of 0 s connects are never held (B2)."""
    peer = House(hold_s=0).join()
    assert peer.connect().only["successful"] is True


def test_event_ends_the_hold(house):
    """An event ends the hold immediately; the reply is sent first, then the event (A34, B7)."""
    peer = house.join()
    peer.subscribe("/a")
    held = peer.connect()
    house.pass_time(3)
    house.publish("/a", {"x": 1})
    reply, event = held.messages
    assert (reply["channel"], reply["successful"]) == ("/meta/connect", True)
    assert event == {"channel": "/a", "data": {"x": 1}}


def test_events_of_one_turn_ride_together(house):
    """However many events are published in one turn of the loop, a held connect is answered once with all (B7, B8)."""
    peer = house.join()
    peer.subscribe("/a")
    held = peer.connect()
    house.publish("/a", *range(50))
    assert held.events == [("/a", number) for number in range(50)]


def test_waiting_events_prevent_the_hold(house):
    """A connect is answered immediately if events are waiting (B2)."""
    peer = house.join()
    peer.subscribe("/a")
    house.publish("/a", 1, 2)
    assert peer.connect().events == [("/a", 1), ("/a", 2)]
    assert peer.connect().is_held


def test_open_batch_delays_events(house):
    """While a program has a batch open, events neither end a hold nor prevent one (B2, B7, B27)."""
    peer = house.join()
    peer.subscribe("/a")
    first = peer.connect()
    peer.session.open_batches += 1
    house.publish("/a", 1)
    assert first.is_held
    second = peer.connect()
    assert second.is_held
    peer.session.open_batches -= 1
    house.broker.mark_ready(peer.session)
    house.turn()
    assert second.events == [("/a", 1)]


def test_open_batch_does_not_ride_on_other_replies(house):
    """While a program has a batch open, its events are not sent on a publish reply either (B7)."""
    peer = house.join()
    peer.subscribe("/a")
    peer.session.open_batches += 1
    assert peer.publish("/a", 1).events == []


@pytest.mark.parametrize("connection_type", [None, "websocket", "", "LONG-POLLING", 7, ["long-polling"], {}])
def test_unknown_connection_type(house, connection_type):
    """A connect without a known connection type fails; the session lives on and its next connect is held (A7, A32)."""
    peer = house.join()
    only = peer.send(peer.message("/meta/connect", connectionType=connection_type)).only
    assert (only["successful"], only["error"]) == (False, TYPES)
    assert peer.connect().is_held


def test_session_may_change_its_transport(house):
    """A session that began by long-polling can continue by callback-polling, and change back (B1)."""
    peer = house.join()
    peer.transport = Transport.CALLBACK_POLLING
    assert peer.connect().is_held
    peer.transport = Transport.LONG_POLLING
    assert peer.connect().is_held


def test_newer_connect_replaces_the_held_one(house):
    """A second connect is held; the first gets its own successful reply without events (B5, S18)."""
    peer = house.join()
    first = peer.connect(id="first")
    second = peer.connect(id="second")
    assert (first.status, first.only["id"], first.only["successful"]) == (200, "first", True)
    assert second.is_held


def test_events_go_to_the_newer_connect(house):
    """After a replacement events are sent to the newer connect, once (B5, E17)."""
    peer = house.join()
    peer.subscribe("/a")
    first, second = peer.connect(), peer.connect()
    house.publish("/a", 1)
    assert (first.events, second.events) == ([], [("/a", 1)])
    assert "multiple-clients" not in str(second.messages)


def test_replaced_connect_with_cometds_status():
    """The status of a replaced connect can be CometD's; its body is then empty (B5, A69)."""
    house = House(superseded_status=500)
    peer = house.join()
    first = peer.connect()
    second = peer.connect()
    assert (first.status, first.reply.body()) == (500, b"")
    assert second.is_held


def test_a_connect_that_is_not_held_replaces_too(house):
    """A connect that does not want to be held also ends the held one, so that no two replies race (B5)."""
    peer = house.join()
    first = peer.connect()
    second = peer.connect(advice={"timeout": 0})
    assert (len(first.messages), second.only["successful"]) == (1, True)
    assert house.engine.sessions.holds == 0


def test_no_stale_wake_up(house):
    """The deadline of a replaced hold does not end the newer one (B6)."""
    peer = house.join()
    peer.connect()
    house.pass_time(20)
    second = peer.connect()
    house.pass_time(24)
    assert second.is_held
    house.pass_time(1)
    assert second.only["successful"] is True


def test_shorter_hold_after_a_longer_one(house):
    """A newer connect with a nearer deadline is answered at its own time (B6)."""
    peer = house.join()
    peer.connect()
    second = peer.connect(advice={"timeout": 2_000})
    house.pass_time(2)
    assert second.only["successful"] is True


def test_half_written_connect_is_aborted(house):
    """A connect that arrives while the previous reply is half written aborts that reply and gets its events."""
    peer = house.join()
    peer.subscribe("/a")
    first = peer.connect(stalled=True)
    house.publish("/a", 1)
    assert not first.is_held
    second = peer.connect()
    assert first.is_aborted
    assert second.events == [("/a", 1)]
    first.unwritten()
    assert peer.connect().is_held
    assert peer.heard == [("/a", 1)]


def test_heartbeats_are_told(house):
    """Programs are notified when a session's connect is held and when it is released (B27)."""
    told = []
    house.hooks.suspended.append(lambda session: told.append("suspended"))
    house.hooks.resumed.append(lambda session: told.append("resumed"))
    peer = house.join()
    held = peer.connect()
    assert told == ["suspended"]
    held.hang_up()
    peer.connect()
    peer.disconnect()
    assert told == ["suspended", "resumed"] * 2


def test_hold_of_one_session(house):
    """A program can set one session's hold, which its next connects use (B27, E24)."""
    peer, other = house.join(), house.join()
    peer.session.hold_s = 5.0
    held, others = peer.connect(), other.connect()
    house.pass_time(5)
    assert held.only["successful"] is True
    assert others.is_held
