"""The acknowledge extension, as cometd.js speaks it (B17, E61)."""

import pytest
from support.bayeux import House
from support.bayeux_peers import handshake

from halley.protocols.bayeux.outcomes import Transport


@pytest.fixture
def peer(house):
    """A client with acknowledgements that has subscribed to `/a` and received its first connect reply, batch 1."""
    return joined(house)


def joined(house):
    peer = house.join(ext={"ack": True})
    peer.subscribe("/a")
    return peer


def poll(peer, batch, **more):
    """Send a connect that acknowledges everything up to `batch`."""
    return peer.connect(ext={"ack": batch}, **more)


def test_handshake_agrees(house):
    """`ext.ack: true` is answered by `ext.ack: true` (B17)."""
    assert house.send(handshake(ext={"ack": True})).only["ext"] == {"ack": True}


@pytest.mark.parametrize("wish", [False, None, 0, 1, "true", {}, []])
def test_not_asked_for(house, wish):
    """Any value but `true` does not switch it on, and then no reply has it (B17)."""
    peer = house.join(ext={"ack": wish})
    assert "ext" not in poll(peer, 1, advice={"timeout": 0}).only


def test_each_connect_reply_closes_a_batch(house, peer):
    """Every connect reply has the next number from 1, an empty one too (B17)."""
    held = poll(peer, 1)
    house.pass_time(25)
    assert held.only["ext"] == {"ack": 2}
    assert poll(peer, 2, advice={"timeout": 0}).only["ext"] == {"ack": 3}


def test_first_batch(house):
    """The first connect reply closes batch 1 (B17)."""
    peer = house.join(ext={"ack": True})
    assert peer.session.acks.batch == 1


def test_delivery_by_connect_only(house, peer):
    """Events are sent on connect replies only (B17)."""
    held = poll(peer, 1)
    assert peer.publish("/a", 1).events == []
    assert held.events == [("/a", 1)]


def test_acknowledged_events_are_free(house, peer):
    """Acknowledged events are not sent again, and the connect is held (B17)."""
    held = poll(peer, 1)
    house.publish("/a", 1)
    assert held.replies[0]["ext"] == {"ack": 2}
    assert poll(peer, 2).is_held
    assert peer.heard == [("/a", 1)]


def test_unacknowledged_events_are_sent_again(house, peer):
    """A client that repeats its number gets all events again, under a new number, before newer events (B17, E61)."""
    poll(peer, 1)
    house.publish("/a", 1, 2)
    again = poll(peer, 1)
    assert again.replies[0]["ext"] == {"ack": 3}
    assert again.events == [("/a", 1), ("/a", 2)]
    house.publish("/a", 3)
    third = poll(peer, 1)
    assert third.events == [("/a", 1), ("/a", 2), ("/a", 3)]
    assert poll(peer, third.replies[0]["ext"]["ack"]).is_held


def test_any_number_an_event_had_frees_it(house, peer):
    """Events that were sent again under a new number can also be acknowledged by their first number (B17)."""
    poll(peer, 1)
    house.publish("/a", 1)
    assert poll(peer, 1).replies[0]["ext"] == {"ack": 3}
    house.publish("/a", 2)
    assert poll(peer, 2).events == [("/a", 2)]


def test_lost_answer(house, peer):
    """A reply that was written to a dead socket is sent again, though the server noticed nothing (E61)."""
    poll(peer, 1)
    house.publish("/a", 1)
    house.publish("/a", 2)
    assert poll(peer, 1).events == [("/a", 1), ("/a", 2)]


def test_unwritten_moves_nothing(house, peer):
    """With acknowledgements the events of an unwritten reply stay unacknowledged, and are sent once."""
    held = poll(peer, 1, stalled=True)
    house.publish("/a", 1)
    held.unwritten()
    assert house.engine.sessions.put_back == 0
    assert poll(peer, 1).events == [("/a", 1)]


def test_half_written_batch(house, peer):
    """A connect that overtakes a half written batch gets all its events under the next number (B17)."""
    first = poll(peer, 1, stalled=True)
    house.publish("/a", 1)
    second = poll(peer, 1)
    assert first.is_aborted
    assert second.replies[0]["ext"] == {"ack": 3}
    assert second.events == [("/a", 1)]
    assert poll(peer, 3).is_held


def test_overtaken_connect_carries_nothing(house, peer):
    """A held connect that is overtaken closes no batch, so that nothing is acknowledged too early (B17)."""
    first = poll(peer, 1)
    second = poll(peer, 1)
    assert first.events == []
    assert "ext" not in first.only
    house.publish("/a", 1)
    assert second.replies[0]["ext"] == {"ack": 2}


@pytest.mark.parametrize("batch", [-1, 0, -(2**63)])
def test_new_client_frees_nothing(house, peer, batch):
    """A number below the first batch frees nothing (B17)."""
    poll(peer, 1)
    house.publish("/a", 1)
    assert poll(peer, batch).events == [("/a", 1)]


@pytest.mark.parametrize("batch", [None, "2", True, 2.0, [2], {"batch": 2}])
def test_what_is_no_number_frees_nothing(house, peer, batch):
    """A value that is not a whole number frees nothing and is not an error (B17, A12)."""
    poll(peer, 1)
    house.publish("/a", 1)
    assert poll(peer, batch).events == [("/a", 1)]


def test_number_of_the_future(house, peer):
    """A number beyond the newest batch frees the events that were sent, and none that are sent later (B17)."""
    poll(peer, 1)
    house.publish("/a", 1)
    held = poll(peer, 2**63 - 1)
    house.publish("/a", 2)
    assert held.events == [("/a", 2)]
    assert poll(peer, 2).events == [("/a", 2)]


def test_older_batches_are_freed_together(house, peer):
    """A number frees all batches up to it (B17)."""
    poll(peer, 1)
    house.publish("/a", 1)
    poll(peer, 2)
    house.publish("/a", 2)
    assert poll(peer, 3).is_held


def test_events_before_the_first_connect(house):
    """Events that are delivered while the session is being opened are part of batch 1 (B17, CometD #521)."""
    house.hooks.session_opened.append(lambda session: house.engine.sessions.deliver(session, "/w", 1, None, house.now))
    peer = house.join(ext={"ack": True})
    assert peer.heard == [("/w", 1)]
    assert poll(peer, 0).events == [("/w", 1)]
    assert poll(peer, 2).is_held


def test_by_jsonp(house):
    """The extension works by callback-polling (B17, A66)."""
    peer = house.join(ext={"ack": True}, transport=Transport.CALLBACK_POLLING)
    peer.subscribe("/a")
    poll(peer, 1)
    house.publish("/a", 1)
    assert poll(peer, 1).events == [("/a", 1)]


def test_in_a_batch_of_messages(house, peer):
    """A connect in a batch frees and closes batches like any other (B17, A53)."""
    house.publish("/a", 1)
    sent = peer.send(peer.poll(ext={"ack": 1}), peer.message("/a") | {"data": 2})
    assert sent.replies[0]["ext"] == {"ack": 2}
    assert sent.events == [("/a", 1), ("/a", 2)]


def test_refused_connect_frees_nothing(house, peer):
    """A connect that is refused acknowledges nothing (B17)."""
    poll(peer, 1)
    house.publish("/a", 1)
    poll(peer, 2, connectionType="x")
    assert poll(peer, 1).events == [("/a", 1)]


def test_gone_hold(house, peer):
    """Events published after a hold's socket died are sent with the next connect, until acknowledged (B15, B17)."""
    poll(peer, 1).hang_up()
    house.publish("/a", 1)
    assert poll(peer, 1).events == [("/a", 1)]
    assert poll(peer, 2).is_held


def test_unacknowledged_events_are_bounded():
    """A client that never acknowledges cannot make the server keep more than the bound (B17)."""
    house = House(limits={"queue_events": 3})
    peer = joined(house)
    for number in range(3):
        poll(peer, 0)
        house.publish("/a", number)
    assert peer.is_known
    house.publish("/a", 4)
    assert not peer.is_known
    assert house.broker.closed == {"slow_consumer": 1}


def test_acknowledged_events_make_room():
    """A client that acknowledges can go on without limit (B17)."""
    house = House(limits={"queue_events": 3})
    peer = joined(house)
    for number in range(20):
        poll(peer, number + 1)
        house.publish("/a", number)
    assert [data for _, data in peer.heard] == list(range(20))
    poll(peer, 21)
    assert peer.session.outbox.nbytes == 0


def test_end_frees_all(house, peer):
    """A session that ends with unacknowledged events leaves nothing behind (A55)."""
    session = peer.session
    poll(peer, 1)
    house.publish("/a", 1)
    house.pass_time(10)
    assert not peer.is_known
    assert session.outbox.nbytes == 0
