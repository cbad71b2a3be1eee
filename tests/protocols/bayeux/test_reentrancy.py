"""Hooks that act on the session they are called for (E49, E56): state stays consistent, and events arrive once."""

import pytest
from support.bayeux import House
from support.bayeux_peers import handshake

from halley.broker.events import Event


@pytest.fixture
def told(house):
    """The calls of `session_closed`, as (session id, reason)."""
    told = []
    house.hooks.session_closed.append(lambda session, reason: told.append((session.id, reason)))
    return told


def dismiss(house):
    return lambda session, *_: house.engine.sessions.leave(session, house.now, by_client=False)


def test_dismissed_when_suspended(house, told):
    """A session that is dismissed the moment its connect is held is answered once and ends once."""
    house.hooks.suspended.append(dismiss(house))
    peer = house.join()
    held = peer.connect()
    assert [message["channel"] for message in held.messages] == ["/meta/connect", "/meta/disconnect"]
    assert told == [(peer.id, "dismissed")]


def test_dismissed_when_its_queue_is_full():
    """A session that is dismissed the moment a full queue ends its hold gets nothing more, and nothing waits for it."""
    house = House(limits={"queue_events": 1})
    house.hooks.resumed.append(dismiss(house))
    peer = house.join()
    peer.subscribe("/a")
    peer.connect()
    house.publish("/a", 1, 2, 3)
    assert not peer.is_known
    assert house.broker.waiting.value == 0


@pytest.mark.parametrize("how", ["event", "lapse", "replaced", "lost", "drain", "disconnect"])
def test_dismissed_when_resumed(house, told, how):
    """A session that is dismissed the moment its hold ends is closed once, whatever ended the hold."""
    house.hooks.resumed.append(dismiss(house))
    peer = house.join()
    peer.subscribe("/a")
    held = peer.connect()
    if how == "event":
        house.publish("/a", 1)
    elif how == "lapse":
        house.pass_time(25)
    elif how == "replaced":
        peer.connect()
    elif how == "lost":
        held.hang_up()
    elif how == "drain":
        (session,) = house.engine.sessions.drain()
        house.engine.sessions.drain_session(session, house.now)
    else:
        peer.disconnect()
    house.turn()
    assert len(told) == 1
    assert not peer.is_known


def test_replaced_by_a_connect_that_finds_no_session(house, told):
    """If the end of the older hold closes the session, the newer connect is unsuccessful."""
    house.hooks.resumed.append(dismiss(house))
    peer = house.join()
    peer.connect()
    newer = peer.connect()
    assert newer.only["successful"] is False
    assert newer.only["error"] == "402::session_unknown"


def test_dismissed_when_subscribed(house, told):
    """A session that is dismissed at its first subscription leaves no subscription of the request in the index."""
    house.hooks.subscribed.append(dismiss(house))
    peer = house.join()
    peer.subscribe("/a", "/b", "/c/*")
    assert told == [(peer.id, "dismissed")]
    assert house.broker.index.subscriptions == {}


def test_dismissed_when_a_channel_is_made(house, told):
    """A session that is dismissed when its channel is created leaves no subscription in the index."""
    peer = house.join()
    session = peer.session
    house.hooks.channel_created.append(lambda channel: house.engine.sessions.leave(session, house.now, by_client=False))
    peer.subscribe("/a")
    assert told == [(peer.id, "dismissed")]
    assert house.broker.index.subscriptions == {}


def test_dismissed_when_unsubscribed(house, told):
    """A session that is dismissed when it unsubscribes is closed once."""
    house.hooks.unsubscribed.append(dismiss(house))
    peer = house.join()
    peer.subscribe("/a", "/b")
    peer.unsubscribe("/a", "/b")
    assert told == [(peer.id, "dismissed")]


def test_dismissed_when_opened(house, told):
    """A session that is dismissed while it is opened does not exist; its client learns this from its handshake."""
    house.hooks.session_opened.append(dismiss(house))
    answer = house.send(handshake()).only
    assert (answer["successful"], answer["advice"]["reconnect"]) == (False, "none")
    assert len(told) == 1
    assert house.broker.sessions == {}


def test_delivered_when_suspended(house):
    """An event that a program delivers the moment a connect is held ends that hold."""
    house.hooks.suspended.append(lambda session: house.engine.sessions.deliver(session, "/a", 1, None, house.now))
    peer = house.join()
    assert peer.connect().events == [("/a", 1)]


def test_delivered_when_resumed(house):
    """An event that a program delivers the moment a hold ends is sent with that same reply."""
    house.hooks.resumed.append(lambda session: house.engine.sessions.deliver(session, "/last", 2, None, house.now))
    peer = house.join()
    peer.subscribe("/a")
    held = peer.connect()
    house.publish("/a", 1)
    assert held.events == [("/a", 1), ("/last", 2)]


def test_published_when_a_session_ends(house):
    """An event about a session's end is delivered to the others immediately, and not to the session itself."""
    house.hooks.session_closed.append(
        lambda session, reason: house.broker.publish(Event("left", b'"%b"' % reason.encode()), house.now)
    )
    peer, other = house.join(), house.join()
    for each in (peer, other):
        each.subscribe("/left")
        each.connect()
    peer.disconnect()
    assert peer.heard == []
    assert other.heard == [("/left", "disconnected")]


def test_published_when_a_session_overflows():
    """With a publish from within a delivery, the other subscribers get both events."""
    house = House(limits={"queue_events": 2})
    house.hooks.session_closed.append(lambda session, reason: house.broker.publish(Event("b", b"0"), house.now))
    slow, quick = house.join(), house.join()
    for peer in (slow, quick):
        peer.subscribe("/a", "/b")
    house.publish("/a", 1, 2)
    quick.connect()
    house.publish("/a", 3)
    assert not slow.is_known
    quick.connect()
    assert sorted(data for _, data in quick.heard) == [0, 1, 2, 3]


def test_subscribed_by_a_listener(house):
    """A listener can change who gets the event that it sees: subscribers are looked up after it (B21, E54)."""
    peer, other = house.join(), house.join()
    peer.subscribe("/a")
    (pattern,) = peer.session.subscriptions

    def swap(session, message):
        house.broker.unsubscribe(peer.session, pattern)
        house.broker.subscribe(other.session, pattern)

    house.listen("/a", swap)
    house.publish("/a", 1)
    assert other.connect().events == [("/a", 1)]
    assert peer.connect().is_held


def test_listener_of_news_that_raises(house):
    """If a listener of session events raises, the other listeners are called and the message is served."""
    heard = []

    def boom(*_):
        raise RuntimeError

    for listeners in (house.hooks.session_opened, house.hooks.subscribed, house.hooks.session_closed):
        listeners.extend([boom, lambda *news: heard.append(len(news))])
    peer = house.join()
    peer.subscribe("/a")
    peer.disconnect()
    assert heard == [1, 2, 2]
    assert len(house.reported) == 3


def test_listener_of_news_that_removes_itself(house):
    """If a listener of session events removes itself, the other listeners are called."""
    heard = []

    def once(session):
        heard.append("once")
        house.hooks.session_opened.remove(once)

    house.hooks.session_opened.extend([once, lambda session: heard.append("always")])
    house.join()
    house.join()
    assert heard == ["once", "always", "always"]
