"""Disconnecting, by client and by server (A52, A55, B11-B14)."""

from support.bayeux import House

NONE = {"reconnect": "none", "interval": 0, "timeout": 25_000}
HANDSHAKE = NONE | {"reconnect": "handshake"}


def test_reply(house):
    """The reply to a disconnect has its channel and success (A52, B12)."""
    peer = house.join()
    only = peer.disconnect().only
    assert only == {"id": only["id"], "channel": "/meta/disconnect", "successful": True, "clientId": peer.id}


def test_everything_ends(house):
    """After a disconnect the session, its subscriptions and its deadline are gone (A52, A55)."""
    peer = house.join()
    peer.subscribe("/a", "/b/**")
    peer.disconnect()
    assert not peer.is_known
    assert house.broker.sessions == {}
    assert house.broker.index.subscriptions == {}
    assert len(house.broker.deadlines) == 0


def test_held_connect_is_released(house):
    """At a disconnect the held connect is answered 200 with `reconnect: none` (A52, B12, E26)."""
    peer = house.join()
    held = peer.connect(id="held")
    peer.disconnect()
    assert held.only == {"id": "held", "channel": "/meta/connect", "successful": True, "advice": NONE}


def test_nothing_works_afterwards(house):
    """Every later message of the session gets the error of an unknown session (A55, E28)."""
    peer = house.join()
    peer.disconnect()
    assert peer.connect().only["error"] == "402::session_unknown"
    assert peer.connect().only["advice"] == HANDSHAKE
    assert peer.subscribe("/a").only["error"] == "402::session_unknown"
    assert peer.publish("/a", 1).only["error"] == "402::session_unknown"
    assert peer.disconnect().only["error"] == "402::session_unknown"


def test_nothing_is_delivered_afterwards(house):
    """A session that has disconnected gets nothing, and delivering to it returns False (A55, B14, E23)."""
    peer = house.join()
    peer.subscribe("/a")
    session = peer.session
    held = peer.connect()
    peer.disconnect()
    house.publish("/a", 1)
    assert house.engine.sessions.deliver(session, "/a", 1, None, house.now) is False
    assert held.events == []
    assert len(session.outbox) == 0


def test_disconnect_and_connect_in_one_request(house):
    """A connect in the request that disconnects its session gets `none`, as the client wanted to leave (B11, E27)."""
    peer = house.join()
    first, second = peer.send(peer.message("/meta/disconnect"), peer.poll()).messages
    assert first["successful"] is True
    assert (second["successful"], second["error"], second["advice"]) == (False, "402::session_unknown", NONE)


def test_server_sends_a_client_away(house):
    """If a program ends a session, its held connect gets `reconnect: none` and a `/meta/disconnect` (B13, E34)."""
    peer = house.join()
    held = peer.connect(id="held")
    house.dismiss(peer)
    assert held.messages == [
        {"id": "held", "channel": "/meta/connect", "successful": True, "advice": NONE},
        {"channel": "/meta/disconnect", "successful": True},
    ]
    assert not peer.is_known


def test_server_sends_a_deaf_client_away():
    """A session that does not get its own events is notified of its end too (E34)."""
    house = House(broadcast_to_publisher=False)
    peer = house.join()
    held = peer.connect()
    house.dismiss(peer)
    assert held.messages[-1]["channel"] == "/meta/disconnect"


def test_server_sends_an_absent_client_away(house):
    """A client without a held connect learns of the end from its next connect (B11, B13)."""
    peer = house.join()
    house.dismiss(peer)
    only = peer.connect().only
    assert (only["error"], only["advice"]) == ("402::session_unknown", HANDSHAKE)


def test_last_words_arrive(house):
    """Events that a program delivers just before it ends the session are sent on the held connect (B13)."""
    peer = house.join()
    peer.connect()
    house.engine.sessions.deliver(peer.session, "/bye", "closing time", None, house.now)
    house.dismiss(peer)
    assert peer.heard == [("/bye", "closing time")]


def test_end_is_told_once_with_its_reason(house):
    """Programs are notified once of a session's end and its reason, when its subscriptions no longer exist (B12)."""
    told = []
    house.hooks.session_closed.append(lambda session, reason: told.append((reason, len(session.subscriptions))))
    left, dismissed, expired = house.join(), house.join(), house.join()
    for peer in (left, dismissed, expired):
        peer.subscribe("/a")
        peer.connect()
    left.disconnect()
    house.dismiss(dismissed)
    house.pass_time(60)
    assert told == [("disconnected", 0), ("dismissed", 0), ("expired", 0)]


def test_leaving_twice_is_leaving_once(house):
    """Ending a session that has ended has no effect (B14)."""
    told = []
    house.hooks.session_closed.append(lambda session, reason: told.append(reason))
    peer = house.join()
    session = peer.session
    peer.disconnect()
    house.engine.sessions.leave(session, house.now, by_client=False)
    house.turn()
    assert told == ["disconnected"]
