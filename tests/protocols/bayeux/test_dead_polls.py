"""No event is lost when a poll's socket dies, before, during or after its reply (B15, E29)."""

import pytest
from support.bayeux import House

from halley.protocols.bayeux.outcomes import Transport


@pytest.fixture
def peer(house):
    """A client that has subscribed to `/a`."""
    peer = house.join()
    peer.subscribe("/a")
    return peer


def test_gone_during_a_hold(house, peer):
    """After a client vanished during a hold, its next connect gets the events published since, in order (B15)."""
    peer.connect().hang_up()
    house.publish("/a", 1, 2)
    assert peer.connect().events == [("/a", 1), ("/a", 2)]


def test_gone_is_noticed_at_once(house, peer):
    """A hold whose socket died is no longer answered, and its slot is free (B15)."""
    held = peer.connect()
    held.hang_up()
    house.publish("/a", 1)
    assert held.reply is None
    assert house.engine.sessions.holds == 0


def test_gone_after_the_answer_was_made(house, peer):
    """If a socket dies after its hold was answered, the reply's fate decides about its events."""
    held = peer.connect(stalled=True)
    house.publish("/a", 1)
    held.hang_up()
    held.unwritten()
    assert peer.connect().events == [("/a", 1)]


def test_gone_of_a_replaced_hold(house, peer):
    """The death of an older poll's socket does not affect the newer poll (B6)."""
    first = peer.connect()
    second = peer.connect()
    first.hang_up()
    assert second.is_held
    house.publish("/a", 1)
    assert second.events == [("/a", 1)]


def test_gone_twice(house, peer):
    """A socket's death that is reported twice counts once."""
    held = peer.connect()
    held.hang_up()
    held.hang_up()
    assert house.engine.sessions.holds == 0


def test_unwritten_connect(house, peer):
    """Events whose reply was not written are sent again with the next connect, first and in order."""
    held = peer.connect(stalled=True)
    house.publish("/a", 1, 2)
    house.publish("/a", 3)
    held.unwritten()
    house.publish("/a", 4)
    assert peer.connect().events == [("/a", n) for n in (1, 2, 3, 4)]
    assert peer.connect().is_held


def test_unwritten_publish_reply(house, peer):
    """Events that were sent on another reply that was not written are sent again too."""
    peer.publish("/a", 1, stalled=True).unwritten()
    house.publish("/a", 2)
    assert peer.connect().events == [("/a", 1), ("/a", 2)]


def test_unwritten_wakes_the_held_connect(house, peer):
    """Events that are put back while a connect is held are sent on it immediately."""
    sent = peer.publish("/a", 1, stalled=True)
    held = peer.connect()
    house.publish("/a", 2)
    assert held.is_held
    sent.unwritten()
    assert held.events == [("/a", 1), ("/a", 2)]


def test_written_wakes_the_held_connect(house, peer):
    """Later events are sent on the held connect as soon as the previous reply with events is written."""
    sent = peer.publish("/a", 1, stalled=True)
    held = peer.connect()
    house.publish("/a", 2)
    sent.written()
    assert held.events == [("/a", 2)]
    assert peer.heard == [("/a", 1), ("/a", 2)]


def test_one_unsettled_reply(house, peer):
    """While a reply with events is on its way, no other response takes events."""
    sent = peer.publish("/a", 1, stalled=True)
    assert peer.publish("/a", 2).events == []
    assert peer.connect(advice={"timeout": 0}).events == []
    held = peer.connect()
    house.pass_time(25)
    assert held.events == []
    sent.written()
    assert peer.connect().events == [("/a", 2)]


def test_reply_without_events_unsettles_nothing(house, peer):
    """A reply that carries no events does not prevent another response from taking events."""
    house.join().publish("/b", 1, stalled=True)
    peer.publish("/b", 1, stalled=True)
    house.publish("/a", 1)
    assert peer.publish("/b", 1).events == [("/a", 1)]


def test_settled_twice(house, peer):
    """A second report about a reply has no effect, and no event is sent twice."""
    held = peer.connect(stalled=True)
    house.publish("/a", 1)
    held.written()
    held.unwritten()
    assert peer.connect().is_held
    assert peer.heard == [("/a", 1)]


def test_unwritten_twice(house, peer):
    """A second `unwritten` does not put events back again."""
    held = peer.connect(stalled=True)
    house.publish("/a", 1)
    held.unwritten()
    held.unwritten()
    assert peer.connect().events == [("/a", 1)]


def test_unwritten_then_written(house, peer):
    """A late `written` has no effect on events that were put back."""
    held = peer.connect(stalled=True)
    house.publish("/a", 1)
    held.unwritten()
    house.engine.sessions.settle(held.reply)
    assert peer.connect().events == [("/a", 1)]


def test_poll_dies_again_and_again(house, peer):
    """However often the socket dies, every event arrives once and in order."""
    for number in range(5):
        held = peer.connect(stalled=True)
        house.publish("/a", number)
        held.unwritten()
    peer.connect()
    assert peer.heard == [("/a", number) for number in range(5)]


def test_dead_publish_of_a_client_that_left(house, peer):
    """Events of a session that has ended are not put back."""
    sent = peer.publish("/a", 1, stalled=True)
    session = peer.session
    peer.disconnect()
    sent.unwritten()
    assert len(session.outbox) == 0
    assert house.engine.sessions.put_back == 0


def test_put_back_events_are_counted(house, peer):
    """Telemetry can see how many events had to be put back."""
    held = peer.connect(stalled=True)
    house.publish("/a", 1, 2)
    held.unwritten()
    assert house.engine.sessions.put_back == 2


def test_put_back_events_do_not_overflow():
    """Events that are put back are kept even if newer ones have filled the queue; no reply is too long (P5)."""
    house = House(limits={"queue_events": 3})
    peer = house.join()
    peer.subscribe("/a")
    held = peer.connect(stalled=True)
    house.publish("/a", 1, 2, 3)
    house.publish("/a", 4, 5, 6)
    held.unwritten()
    assert [data for _, data in peer.connect().events] == [1, 2, 3]
    assert [data for _, data in peer.connect().events] == [4, 5, 6]


def test_events_that_come_back_each_time_do_not_add_up():
    """A client whose sockets always die is cut before its outbox holds more than twice the limit."""
    house = House(limits={"queue_events": 3})
    peer = house.join()
    peer.subscribe("/a")
    session = house.broker.sessions[peer.id]
    for _ in range(5):
        held = peer.connect(stalled=True)
        house.publish("/a", 1, 2, 3, 4)
        held.unwritten()
        assert len(session.outbox) <= 6
    assert session.closed == "slow_consumer"


def test_answers_of_services_come_back_too(house):
    """A service's answer is an event like any other: it is sent again if its reply was lost (B28)."""
    house.serve("/service/echo", lambda session, message: message.data)
    peer = house.join()
    peer.publish("/service/echo", "hi", id="9", stalled=True).unwritten()
    assert peer.connect().messages[-1] == {"channel": "/service/echo", "id": "9", "data": "hi"}


def test_jsonp_poll_dies(house):
    """Events of an unwritten reply are sent again by callback-polling too."""
    peer = house.join(transport=Transport.CALLBACK_POLLING)
    peer.subscribe("/a")
    held = peer.connect(stalled=True)
    house.publish("/a", 1)
    held.unwritten()
    assert peer.connect().events == [("/a", 1)]


def test_drained_poll_dies(house, peer):
    """Events of an unwritten reply are sent again also while the server is shutting down."""
    held = peer.connect(stalled=True)
    house.engine.sessions.drain()
    house.publish("/a", 1)
    held.unwritten()
    assert peer.connect().events == [("/a", 1)]


def test_dead_handshake(house):
    """A handshake whose reply was lost leaves a session that expires (E23)."""
    house.send(
        {"channel": "/meta/handshake", "version": "1.0", "supportedConnectionTypes": ["long-polling"]}, stalled=True
    ).unwritten()
    house.pass_time(10)
    assert house.broker.sessions == {}
