"""Lazy events wait for others or for their time: they end no hold, prevent none, and nothing overtakes them (E58)."""

from __future__ import annotations

import pytest
from support.bayeux import START_S, WALL_S, House
from support.bayeux_sockets import SOCKET_HANDSHAKE, SocketPeer, socket_connect
from support.messages import publish, subscribe

from halley.broker.events import Event
from halley.embed.server_session import ServerSession
from halley.protocols.bayeux.outcomes import Transport
from halley.protocols.bayeux.socket import Sockets
from halley.settings import Lazy

SOCKETS = ("long-polling", "websocket")
LAZY = {"ext": {"lazy": True}}


def listening(house, *channels, **wishes):
    """Return a peer that is subscribed to these channels, and its held connect."""
    peer = house.join(**wishes)
    peer.subscribe(*(channels or ("/**",)))
    return peer, held(peer)


def held(peer):
    """Return a connect of that peer, which is held."""
    connect = peer.connect()
    assert connect.is_held
    return connect


def say(house, channel, data, **more):
    assert house.send(publish(channel, data, **more)).only["successful"] is True


def test_a_lazy_publish_waits_until_its_time_is_over(house):
    """By `ext.lazy` of its publisher, for `bayeux.lazy_s`; the held connect is answered then."""
    _, connect = listening(house)
    say(house, "/a", 1, **LAZY)
    house.pass_time(4.99)
    assert connect.is_held
    house.pass_time(0.02)
    assert connect.events == [("/a", 1)]


def test_what_is_not_lazy_takes_it_along_in_order(house):
    """Lazy events leave before what came after them."""
    _, connect = listening(house)
    say(house, "/a", 1, **LAZY)
    say(house, "/b", 2, **LAZY)
    say(house, "/a", 3)
    assert connect.events == [("/a", 1), ("/b", 2), ("/a", 3)]


@pytest.mark.parametrize(
    ("channel", "waits_s"),
    [("/lazy", 5), ("/lazy/below", 0), ("/slow/a", 2), ("/slow/a/b", 2), ("/slow", 0), ("/slow/now", 0), ("/other", 0)],
)
def test_a_rule_makes_a_channel_lazy(channel, waits_s):
    """A plain channel's rule is not for those below it, a pattern's for all that it matches; the first rule decides."""
    rules = (Lazy("/slow/now", 0), Lazy("/lazy"), Lazy("/slow/**", 2), Lazy("/slow/now", 7))
    house = House(lazy=rules)
    _, connect = listening(house)
    say(house, channel, 1)
    if waits_s:
        house.pass_time(waits_s - 0.01)
        assert connect.is_held
        house.pass_time(0.02)
    assert connect.events == [(channel, 1)]


def test_the_shortest_time_counts_for_all():
    """E58: of two times the shorter one brings both events, whichever came first."""
    for order in (("/short", "/long"), ("/long", "/short")):
        house = House(lazy=(Lazy("/short", 1), Lazy("/long", 9)))
        _, connect = listening(house)
        for channel in order:
            say(house, channel, 0)
        house.pass_time(0.99)
        assert connect.is_held
        house.pass_time(0.02)
        assert connect.events == [(channel, 0) for channel in order]


def test_a_queue_of_lazy_events_prevents_no_hold():
    """The next connect is held, until the first of them has waited for its time, counted from its publication."""
    house = House(lazy=(Lazy("/a", 3),))
    peer, connect = listening(house)
    connect.hang_up()
    say(house, "/a", 1)
    house.pass_time(2)
    connect = held(peer)
    house.pass_time(0.99)
    assert connect.is_held
    house.pass_time(0.02)
    assert connect.events == [("/a", 1)]


def test_what_is_over_time_is_answered_at_once():
    """Time goes on while no connect is held."""
    house = House(lazy=(Lazy("/a", 3),))
    peer, connect = listening(house)
    connect.hang_up()
    say(house, "/a", 1)
    house.pass_time(3.01)
    assert peer.connect().events == [("/a", 1)]


def test_the_end_of_a_hold_takes_lazy_events_along():
    """Nothing waits for longer than a poll lasts."""
    house = House(lazy=(Lazy("/a", 60),), hold_s=10)
    _, connect = listening(house)
    house.pass_time(9)
    say(house, "/a", 1)
    house.pass_time(1.01)
    assert connect.events == [("/a", 1)]


def test_the_reply_to_a_publish_takes_them_along(house):
    """Every reply that takes the queue along does; the hold goes on."""
    peer, connect = listening(house)
    say(house, "/a", 1, **LAZY)
    assert peer.publish("/b", 2).events == [("/a", 1), ("/b", 2)]
    assert connect.is_held
    say(house, "/a", 3, **LAZY)
    house.pass_time(5.01)
    assert connect.events == [("/a", 3)]


def test_one_that_is_not_lazy_behind_them_is_found_wherever_it_is(house):
    """What returned to the queue is looked at again, also if a lazy event came meanwhile."""
    peer, connect = listening(house)
    connect.hang_up()
    say(house, "/a", 1, **LAZY)
    say(house, "/a", 2)
    lost = peer.publish("/service/x", 0, stalled=True)
    assert lost.events == [("/a", 1), ("/a", 2)]
    connect = held(peer)
    say(house, "/a", 3, **LAZY)
    assert connect.is_held
    lost.unwritten()
    assert connect.events == [("/a", 1), ("/a", 2), ("/a", 3)]


@pytest.mark.parametrize("transport", [Transport.LONG_POLLING, Transport.CALLBACK_POLLING])
def test_with_acks_they_join_the_batch_of_the_next_reply(house, transport):
    """A queue of lazy ones is held as well; what a lost reply had is sent again at once."""
    peer, connect = listening(house, ext={"ack": True}, transport=transport)
    say(house, "/a", 1, **LAZY)
    assert connect.is_held
    say(house, "/a", 2)
    assert connect.events == [("/a", 1), ("/a", 2)]
    batch = connect.replies[0]["ext"]["ack"]
    say(house, "/a", 3, **LAZY)
    connect = peer.connect(ext={"ack": batch})
    assert connect.is_held
    house.pass_time(5.01)
    assert connect.events == [("/a", 3)]
    assert peer.connect(ext={"ack": batch}).events == [("/a", 3)]


def test_a_full_queue_is_emptied_early():
    """Lazy events do not end a session that reads."""
    house = House(limits={"queue_events": 3})
    _, connect = listening(house)
    for number in range(4):
        say(house, "/a", number, **LAZY)
    assert connect.events == [("/a", 0), ("/a", 1), ("/a", 2)]


def test_what_a_program_sends_to_one_session_is_lazy_only_if_it_says_so():
    """E58: `deliver(data)` is immediate on a lazy channel too."""
    house = House(lazy=(Lazy("/a", 2),))
    peer, connect = listening(house)
    session = ServerSession(peer.session, house.engine)
    event = Event("a", b"1")
    event.time_us = int((house.now + WALL_S - START_S) * 1_000_000)
    house.engine.sessions.laziness.mark(event)
    house.broker.deliver(peer.session, event, house.now)
    house.turn()
    house.pass_time(1.99)
    assert connect.is_held
    house.pass_time(0.02)
    assert connect.events == [("/a", 1)]
    connect = held(peer)
    assert session.deliver("/a", 2) is True
    house.turn()
    assert connect.events == [("/a", 2)]


@pytest.mark.parametrize("lazy", [False, 1, "true", None, {}])
def test_any_other_value_means_not_lazy(house, lazy):
    """An unknown `ext` is ignored."""
    _, connect = listening(house)
    say(house, "/a", 1, ext={"lazy": lazy})
    assert connect.events == [("/a", 1)]


def test_a_time_of_zero_means_not_lazy():
    """Neither a rule's nor that of all."""
    house = House(lazy_s=0, lazy=(Lazy("/a"), Lazy("/b", 3)))
    peer, connect = listening(house)
    say(house, "/a", 1, **LAZY)
    assert connect.events == [("/a", 1)]
    connect = held(peer)
    say(house, "/c", 2, **LAZY)
    assert connect.events == [("/c", 2)]
    connect = held(peer)
    say(house, "/b", 3)
    assert connect.is_held


def test_subscribers_are_not_told(house):
    """A lazy event looks like any other."""
    _, connect = listening(house)
    say(house, "/a", 1, **LAZY)
    house.pass_time(5.01)
    assert [each for each in connect.messages if "data" in each] == [{"channel": "/a", "data": 1}]


def test_a_clock_that_is_ahead_makes_them_wait_no_longer(house):
    """In a cluster other nodes stamp events; theirs may be in the future here."""
    peer, connect = listening(house)
    event = Event("a", b"1")
    event.publication, event.time_us = 1, int((WALL_S + 3_600) * 1_000_000)
    house.engine.sessions.laziness.mark(event)
    house.broker.deliver(peer.session, event, house.now)
    house.turn()
    house.pass_time(5.01)
    assert connect.events == [("/a", 1)]


def test_their_wait_is_not_a_delay():
    """Halley's own figure of delays is about events that could have left."""
    house = House(lazy=(Lazy("/a", 2),))
    _, connect = listening(house)
    say(house, "/a", 1)
    house.pass_time(2.01)
    assert connect.events == [("/a", 1)]
    assert house.broker.flows["bayeux"].delays.total_us == 0


def socket_peer(house, *channels):
    """Return a peer with a WebSocket, which is subscribed and has connected once."""
    peer = SocketPeer(house, Sockets(house.engine, lambda *_: None), ())
    peer.say(SOCKET_HANDSHAKE)
    (welcome,) = peer.take()
    peer.client_id = welcome["clientId"]
    peer.say(socket_connect(peer.client_id, id="first"))
    peer.say(subscribe(peer.client_id, *channels))
    peer.take()
    return peer


@pytest.mark.parametrize("is_held", [True, False])
def test_by_a_websocket_they_wait_for_the_same(is_held):
    """Events that are not lazy and replies take them along; else they leave in time. The connect stays held."""
    house = House(connection_types=SOCKETS, lazy=(Lazy("/a", 3),))
    peer = socket_peer(house, "/a", "/b")
    if is_held:
        peer.say(socket_connect(peer.client_id, id="held"))
    house.publish("/a", 1)
    house.pass_time(1)
    assert peer.take() == []
    house.publish("/b", 2)
    assert [each["data"] for each in peer.take()] == [1, 2]
    house.publish("/a", 3)
    peer.say(publish("/b", 4, clientId=peer.client_id, id="p"))
    assert [each.get("data", each.get("id")) for each in peer.take()] == [3, 4, "p"]
    house.publish("/a", 5)
    house.pass_time(2)
    assert peer.take() == []
    if not is_held:
        peer.say(socket_connect(peer.client_id, id="held"))
    assert peer.take() == []
    house.pass_time(1.01)
    assert [each["data"] for each in peer.take()] == [5]
    house.pass_time(30)
    assert [each["id"] for each in peer.take()] == ["held"]


def test_many_lazy_events_are_looked_at_once():
    """A queue of thousands costs no more for each event than one of two."""
    house = House(limits={"queue_events": 3_000}, lazy=(Lazy("/a", 60),))
    laziness, asked = house.engine.sessions.laziness, []
    rule_s = laziness._rule_s
    laziness._rule_s = lambda topic: [asked.append(topic), rule_s(topic)][1]
    peer, connect = listening(house)
    for _ in range(2_000):
        event = Event("a", b"1")
        event.publication, event.time_us = 1, int((house.now + WALL_S) * 1_000_000)
        house.broker.deliver(peer.session, event, house.now)
        house.turn()
    assert connect.is_held
    assert 2_000 <= len(asked) < 2_000 * 6  # the rules are asked for each event that is looked at
