"""When a session ends by itself (A36, B10, B11, B16, E19-E31)."""

from support.bayeux import House
from support.bayeux_peers import Peer

HANDSHAKE = {"reconnect": "handshake", "interval": 0, "timeout": 25_000}


def test_never_connected(house):
    """A session that is only handshaken goes after `max_interval_s` (A36, E23)."""
    peer = Peer(house)
    peer.handshake()
    house.pass_time(9.9)
    assert peer.is_known
    house.pass_time(0.1)
    assert not peer.is_known


def test_not_reconnected(house):
    """A session whose next connect does not come goes after `max_interval_s` (A36, B10)."""
    peer = house.join()
    house.pass_time(9.9)
    assert peer.is_known
    house.pass_time(0.1)
    assert not peer.is_known
    assert peer.connect().only["error"] == "402::session_unknown"


def test_clock_stands_during_a_hold(house):
    """While its connect is held a session does not expire, and starts afresh afterwards (B10)."""
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
    """After a dead poll a client waits its interval before it connects again: it is still known then (B10, A39)."""
    house = House(interval_s=30.0)
    peer = house.join()
    held = peer.connect()
    held.hang_up()
    house.pass_time(35)
    assert peer.is_known
    house.pass_time(5.1)
    assert not peer.is_known


def test_vanished_unnoticed(house):
    """A client whose death nobody noticed goes after hold and `max_interval_s` (B15, E29)."""
    peer = house.join()
    peer.connect(stalled=True)
    house.pass_time(34.9)
    assert peer.is_known
    house.pass_time(0.1)
    assert not peer.is_known


def test_reader_that_never_reads(house):
    """A client that does not read its answer expires; settling that answer later is harmless (B16, E30)."""
    peer = house.join()
    peer.subscribe("/a")
    stuck = peer.connect(stalled=True)
    house.publish("/a", "x" * 60_000)
    house.pass_time(10)
    assert not peer.is_known
    stuck.unwritten()
    assert house.broker.sessions == {}


def test_failed_write_starts_the_clock_too(house):
    """A reply that was not written leaves the session its usual time (B10)."""
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
    """A message of a client that announced to sleep takes nothing from its time (B4, B10)."""
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
    """A message that may not speak for a session does not keep it alive (B10, S12)."""
    victim, thief = house.join(jar=[]), house.join(jar=[])
    victim.publish("/a", 1)
    house.pass_time(9)
    thief.send(victim.message("/a") | {"data": 1})
    house.pass_time(1)
    assert not victim.is_known


def test_session_of_its_own_patience(house):
    """A program may give one session another `max_interval_s` (B27, E32)."""
    peer, other = house.join(), house.join()
    peer.session.max_interval_s = 60.0
    for each in (peer, other):
        each.connect(advice={"timeout": 0})
    house.pass_time(59.9)
    assert (peer.is_known, other.is_known) == (True, False)
    house.pass_time(0.2)
    assert not peer.is_known


def test_expiry_takes_everything(house):
    """An expired session leaves no subscription, no queue and no deadline (A55, B10)."""
    peer = house.join()
    session = peer.session
    peer.subscribe("/a", "/b/**")
    house.publish("/a", 1)
    house.pass_time(10)
    assert house.broker.index.subscriptions == {}
    assert (len(session.outbox), session.outbox.nbytes) == (0, 0)
    assert house.broker.closed == {"expired": 1}


def test_comes_back_just_in_time(house):
    """A connect that arrives before the sweeper does is served, however late (B10)."""
    peer = house.join()
    house.now += 11
    assert peer.connect().is_held


def test_setting():
    """`max_interval_s` is a setting (A36)."""
    house = House(max_interval_s=1.0)
    peer = house.join()
    house.pass_time(1)
    assert not peer.is_known


def test_many_at_once(house):
    """A thousand sessions without a connect are all gone at their time (E65, S23)."""
    for _ in range(1_000):
        Peer(house).handshake()
    house.pass_time(10)
    assert house.broker.sessions == {}
    assert house.broker.closed == {"expired": 1_000}
