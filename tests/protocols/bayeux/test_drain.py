"""Shutting down: held connects are answered, and clients return in their own time (B30, E33)."""

from support.bayeux_peers import handshake

RETRY = {"reconnect": "retry", "interval": 0, "timeout": 25_000}


def release_all(house):
    for session in house.engine.sessions.drain():
        house.engine.sessions.drain_session(session, house.now)
    house.turn()


def test_held_connects_are_released(house):
    """Held connects are answered 200 with retry advice, and their connections are to be closed (B30, E33)."""
    peers = [house.join() for _ in range(3)]
    held = [peer.connect() for peer in peers]
    release_all(house)
    for exchange in held:
        assert (exchange.status, exchange.only["successful"], exchange.only["advice"]) == (200, True, RETRY)
        assert exchange.reply.is_last
    assert house.engine.sessions.holds == 0


def test_only_held_sessions_are_listed(house):
    """`drain` returns the sessions whose connects are held."""
    held, idle = house.join(), house.join()
    held.connect()
    assert [session.id for session in house.engine.sessions.drain()] == [held.id]
    assert idle.is_known


def test_release_of_one_that_is_not_held(house):
    """Releasing a session whose hold has ended in the meantime has no effect."""
    peer = house.join()
    held = peer.connect()
    (session,) = house.engine.sessions.drain()
    held.hang_up()
    house.engine.sessions.drain_session(session, house.now)
    house.turn()
    assert held.reply is None


def test_new_connects_are_not_held(house):
    """While the server is shutting down, connects are answered immediately with the waiting events."""
    peer = house.join()
    peer.subscribe("/a")
    house.engine.sessions.drain()
    house.publish("/a", 1)
    sent = peer.connect()
    assert sent.events == [("/a", 1)]
    assert sent.replies[0]["advice"] == RETRY
    assert sent.reply.is_last
    assert peer.connect().only["advice"] == RETRY


def test_clients_are_spread_out(house):
    """Each client gets a different interval, so that they do not all return at the same time."""
    intervals = iter([0.25, 1.5])
    house.engine.replies.advisor.drain_interval = lambda: next(intervals)
    peers = [house.join(), house.join()]
    held = [peer.connect() for peer in peers]
    release_all(house)
    assert [exchange.only["advice"]["interval"] for exchange in held] == [250, 1_500]


def test_handshakes_are_turned_away(house):
    """A handshake gets 503, so that a load balancer tries another server."""
    house.engine.sessions.drain()
    sent = house.send(handshake())
    assert (sent.status, sent.reply.is_last) == (503, True)
    assert house.broker.sessions == {}


def test_other_messages_are_served(house):
    """Publishes and other messages are served until the end, and their connections are closed."""
    peer = house.join()
    house.engine.sessions.drain()
    sent = peer.publish("/a", 1)
    assert (sent.only["successful"], sent.reply.is_last) == (True, True)


def test_what_waits_rides_on_the_release(house):
    """A release carries the events that are waiting in the same turn."""
    peer = house.join()
    held = peer.connect()
    house.engine.sessions.deliver(peer.session, "/a", 1, None, house.now)
    release_all(house)
    assert held.events == [("/a", 1)]
