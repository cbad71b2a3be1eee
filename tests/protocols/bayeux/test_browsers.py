"""Several tabs of one browser share one held connect (A41, B9, E14-E18)."""

import pytest
from support.bayeux import House

CROWDED = {"reconnect": "retry", "interval": 2_000, "timeout": 25_000, "multiple-clients": True}
RETRY = {"reconnect": "retry", "interval": 0, "timeout": 25_000}


@pytest.fixture
def jar():
    """A browser's cookies."""
    return []


def test_second_tab_polls(house, jar):
    """While one tab is held, the next is answered immediately, with the reason and the time to wait (A41, B9, S18)."""
    first, second = house.join(jar=jar), house.join(jar=jar)
    held = first.connect()
    polled = second.connect()
    assert held.is_held
    assert (polled.only["successful"], polled.only["advice"]) == (True, CROWDED)


def test_each_browser_has_its_own_slot(house):
    """Tabs of different browsers can be held at the same time (B9)."""
    first, second = house.join(jar=[]), house.join(jar=[])
    assert first.connect().is_held
    assert second.connect().is_held


def test_clients_without_cookies_are_browsers_of_their_own(house):
    """Sessions without a bound cookie do not share slots."""
    peers = [house.join() for _ in range(5)]
    assert all(peer.connect().is_held for peer in peers)


def test_second_tab_is_promoted_when_the_first_leaves(house, jar):
    """When the held tab disconnects, another one is held at its next poll and loses `multiple-clients` (B9, E15)."""
    first, second = house.join(jar=jar), house.join(jar=jar)
    first.connect()
    second.connect()
    first.disconnect()
    held = second.connect()
    house.pass_time(25)
    assert held.only["advice"] == RETRY


def test_second_tab_is_promoted_when_the_first_is_closed(house, jar):
    """A held tab whose socket dies frees its slot immediately (B9, B15, E15)."""
    first, second = house.join(jar=jar), house.join(jar=jar)
    held = first.connect()
    assert not second.connect().is_held
    held.hang_up()
    assert second.connect().is_held


def test_slot_is_free_when_a_hold_has_timed_out(house, jar):
    """A hold that ended by its timeout has freed its slot before the next connect is processed (E18)."""
    peer = house.join(jar=jar)
    peer.connect()
    house.pass_time(25)
    assert peer.connect().is_held


def test_slot_is_free_when_events_came(house, jar):
    """A hold that ended because of an event has freed its slot (B9)."""
    first, second = house.join(jar=jar), house.join(jar=jar)
    first.subscribe("/a")
    first.connect()
    house.publish("/a", 1)
    assert second.connect().is_held


def test_replaced_connect_does_not_crowd(house, jar):
    """A connect that replaces its own session's is held, without `multiple-clients` (B5, E17)."""
    peer = house.join(jar=jar)
    peer.connect()
    assert peer.connect().is_held
    third = peer.connect()
    house.pass_time(25)
    assert "multiple-clients" not in str(third.only)


def test_first_connect_is_not_crowded(house, jar):
    """A second tab's first connect gets ordinary advice: it would not have been held in any case (B2, B9)."""
    first, second = house.join(jar=jar), house.join(jar=jar)
    first.connect()
    second.handshake()
    assert second.connect().only["advice"] == RETRY


def test_who_would_not_be_held_anyway_is_not_crowded(house, jar):
    """A connect that would not be held, by its timeout or for its events, gets no `multiple-clients` (B2, B9)."""
    first, second = house.join(jar=jar), house.join(jar=jar)
    first.connect()
    second.subscribe("/a")
    assert second.connect(advice={"timeout": 0}).only["advice"] == RETRY
    house.publish("/a", 1)
    assert "advice" not in second.connect().replies[0]


def test_crowded_tab_gets_its_events(house, jar):
    """A tab that polls gets all its events, in order, at its polls (B9)."""
    first, second = house.join(jar=jar), house.join(jar=jar)
    first.connect()
    second.subscribe("/a")
    for number in range(3):
        house.publish("/a", number)
        second.connect()
        second.connect()
    assert second.heard == [("/a", 0), ("/a", 1), ("/a", 2)]


def test_crowded_tab_lives_between_its_polls(house, jar):
    """A tab that polls at the advised interval does not expire (B9, B10)."""
    first, second = house.join(jar=jar), house.join(jar=jar)
    first.connect(advice={"timeout": 25_000})
    second.connect()
    house.pass_time(2 + 9.9)
    assert second.is_known
    house.pass_time(0.2)
    assert not second.is_known


def test_further_tabs_may_be_refused(jar):
    """With an interval of 0 a further tab gets `reconnect: none`; the first is unaffected (B9, E14)."""
    house = House(browser_interval_s=0)
    first, second = house.join(jar=jar), house.join(jar=jar)
    held = first.connect()
    only = second.connect().only
    assert only["successful"] is False
    assert (only["advice"]["reconnect"], only["advice"]["multiple-clients"]) == ("none", True)
    house.pass_time(25)
    assert held.only["successful"] is True


def test_limit_of_two(jar):
    """With two slots, two tabs are held and the third polls (E16)."""
    house = House(holds_per_browser=2)
    tabs = [house.join(jar=jar) for _ in range(3)]
    assert [tab.connect().is_held for tab in tabs] == [True, True, False]


def test_no_limit(jar):
    """With a limit of -1 every tab is held (E16)."""
    house = House(holds_per_browser=-1)
    assert [house.join(jar=jar).connect().is_held for _ in range(5)] == [True] * 5


def test_limit_of_none(jar):
    """With a limit of 0 no connect is held, with or without a cookie (B9)."""
    house = House(holds_per_browser=0)
    assert house.join(jar=jar).connect().only["advice"] == CROWDED
    assert house.join().connect().only["advice"] == CROWDED


def test_session_that_becomes_bound_during_its_hold(house, jar):
    """A session whose cookie first arrives during a hold frees the slot that it took (B9)."""
    peer = house.join(jar=jar)
    cookie = list(jar)
    peer.session.is_bound = False
    jar.clear()
    held = peer.connect()
    jar[:] = cookie
    peer.subscribe("/a")
    assert peer.session.is_bound
    house.publish("/a", 1)
    assert held.events == [("/a", 1)]
    assert peer.connect().is_held


def test_longer_interval_of_the_client_wins(house, jar):
    """A crowded tab that announced a longer interval keeps it (B4, B9)."""
    first, second = house.join(jar=jar), house.join(jar=jar)
    first.connect()
    advice = second.connect(advice={"timeout": 20_000, "interval": 5_000}).only["advice"]
    assert advice == CROWDED | {"interval": 5_000}


def test_no_slot_is_left_behind(house, jar):
    """However holds end, their slots become free (B9)."""
    first, second, third, fourth = (house.join(jar=jar) for _ in range(4))
    first.connect().hang_up()
    second.connect()
    second.disconnect()
    third.connect()
    third.connect(advice={"timeout": 0})
    fourth.connect()
    house.dismiss(fourth)
    assert house.engine.sessions.holds_by_browser == {}
