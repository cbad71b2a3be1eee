"""When sessions expire (A36, B10, B11, B16, E19-E31)."""

from support.bayeux import House
from support.bayeux_peers import Peer

HANDSHAKE = {"reconnect": "handshake", "interval": 0, "timeout": 25_000}


def test_never_connected(house):
    """A session that never connects expires after `max_interval_s` (A36, E23)."""
    peer = Peer(house)
    peer.handshake()
    house.pass_time(9.9)
    assert peer.is_known
    house.pass_time(0.1)
    assert not peer.is_known


def test_not_reconnected(house):
    """A session without a next connect expires after `max_interval_s` (A36, B10)."""
    peer = house.join()
    house.pass_time(9.9)
    assert peer.is_known
    house.pass_time(0.1)
    assert not peer.is_known
    assert peer.connect().only["error"] == "402::session_unknown"


def test_clock_stands_during_a_hold(house):
    """A session does not expire while its connect is held, and has its full time afterwards (B10)."""
    peer = house.join()
    house.pass_time(9)
    peer.connect()
    house.pass_time(25)
    house.pass_time(9.9)
    assert peer.is_known
    house.pass_time(0.1)
    assert not peer.is_known


def test_polling_goes_on_for_ever(house):
    """A client that polls as advised never expires (B10)."""
    peer = house.join()
    for _ in range(20):
        peer.connect()
        house.pass_time(25 + 9)
    assert peer.is_known


def test_vanished_during_a_hold(house):
    """A client whose held socket died is kept for `max_interval_s` from then (B10, B15)."""
    peer = house.join()
    held = peer.connect()
    house.pass_time(5)
    held.hang_up()
    house.pass_time(9.9)
    assert peer.is_known
    house.pass_time(0.1)
    assert not peer.is_known


def test_vanished_client_is_kept_for_the_interval_it_was_given():
    """A client waits its interval after a dead poll before it reconnects, and its session still exists (B10, A39)."""
    house = House(interval_s=30.0)
    peer = house.join()
    held = peer.connect()
    held.hang_up()
    house.pass_time(35)
    assert peer.is_known
    house.pass_time(5.1)
    assert not peer.is_known


def test_vanished_unnoticed(house):
    """A client whose death is not noticed expires after the hold and `max_interval_s` (B15, E29)."""
    peer = house.join()
    peer.connect(stalled=True)
    house.pass_time(34.9)
    assert peer.is_known
    house.pass_time(0.1)
    assert not peer.is_known


def test_reader_that_never_reads(house):
    """A client that does not read its reply expires; a late report about that reply has no effect (B16, E30)."""
    peer = house.join()
    peer.subscribe("/a")
    stuck = peer.connect(stalled=True)
    house.publish("/a", "x" * 60_000)
    house.pass_time(10)
    assert not peer.is_known
    stuck.unwritten()
    assert house.broker.sessions == {}


def test_failed_write_starts_the_clock_too(house):
    """After a reply that was not written the session has its usual time (B10)."""
    peer = house.join()
    peer.connect(advice={"timeout": 0}, stalled=True).unwritten()
    house.pass_time(9.9)
    assert peer.is_known
    house.pass_time(0.1)
    assert not peer.is_known


def test_other_messages_prolong(house):
    """Any message but a connect keeps a session for another `max_interval_s` (B10, E31)."""
    peer = house.join()
    for _ in range(5):
        house.pass_time(9)
        assert peer.publish("/a", 1).only["successful"] is True
    house.pass_time(9.9)
    assert peer.is_known
    house.pass_time(0.2)
    assert not peer.is_known


def test_other_messages_never_shorten(house):
    """A message of a client that announced a longer interval does not shorten its time (B4, B10)."""
    peer = house.join()
    peer.connect(advice={"timeout": 0, "interval": 40_000})
    peer.publish("/a", 1)
    house.pass_time(49.9)
    assert peer.is_known


def test_other_messages_leave_a_hold_alone(house):
    """A publish during a hold neither ends nor prolongs it (B10)."""
    peer = house.join()
    held = peer.connect()
    house.pass_time(20)
    peer.publish("/a", 1)
    house.pass_time(4.9)
    assert held.is_held
    house.pass_time(0.1)
    assert held.only["successful"] is True


def test_strangers_do_not_prolong(house):
    """A message that is refused for its cookie does not prolong the session (B10, S12)."""
    victim, thief = house.join(jar=[]), house.join(jar=[])
    victim.publish("/a", 1)
    house.pass_time(9)
    thief.send(victim.message("/a") | {"data": 1})
    house.pass_time(1)
    assert not victim.is_known


def test_session_of_its_own_patience(house):
    """A program can set one session's `max_interval_s` (B27, E32)."""
    peer, other = house.join(), house.join()
    peer.session.max_interval_s = 60.0
    for each in (peer, other):
        each.connect(advice={"timeout": 0})
    house.pass_time(59.9)
    assert (peer.is_known, other.is_known) == (True, False)
    house.pass_time(0.2)
    assert not peer.is_known


def test_expiry_takes_everything(house):
    """An expired session leaves no subscription, queue or deadline (A55, B10)."""
    peer = house.join()
    session = peer.session
    peer.subscribe("/a", "/b/**")
    house.publish("/a", 1)
    house.pass_time(10)
    assert house.broker.index.subscriptions == {}
    assert (len(session.outbox), session.outbox.nbytes) == (0, 0)
    assert house.broker.closed == {"expired": 1}


def test_comes_back_just_in_time(house):
    """A late connect is served if it arrives before the sweeper has run (B10)."""
    peer = house.join()
    house.now += 11
    assert peer.connect().is_held


def test_setting():
    """The setting `max_interval_s` is the time after which an unused session expires (A36)."""
    house = House(max_interval_s=1.0)
    peer = house.join()
    house.pass_time(1)
    assert not peer.is_known


def test_many_at_once(house):
    """A thousand sessions without a connect expire at their deadline (E65, S23)."""
    for _ in range(1_000):
        Peer(house).handshake()
    house.pass_time(10)
    assert house.broker.sessions == {}
    assert house.broker.closed == {"expired": 1_000}
