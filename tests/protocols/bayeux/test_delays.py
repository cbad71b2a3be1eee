"""Which deliveries count as delays: those to clients that have a poll here, or come back in their interval."""

import pytest
from support.bayeux import House

from halley.broker.flow import GRACE_S
from halley.protocols.bayeux.outcomes import Transport


def subscribed(house):
    """Return a peer that is subscribed to /a, and whose poll has just been answered."""
    peer = house.join()
    peer.subscribe("/a")
    return peer


def delays_s(house):
    """Return how many delays were counted, and their sum in seconds."""
    delays = house.broker.flows["bayeux"].delays
    return len(delays), round(delays.total_us / 1e6, 3)


def test_an_event_for_a_held_poll_counts(house):
    """However long the poll was held before; the delay is that of the event."""
    peer = subscribed(house)
    peer.connect()
    house.pass_time(20)
    house.publish("/a", 1)
    assert delays_s(house) == (1, 0.0)


@pytest.mark.parametrize("transport", [Transport.LONG_POLLING, Transport.CALLBACK_POLLING])
def test_an_event_counts_from_its_publication_if_the_poll_is_back_in_time(house, transport):
    """The way to the client and back is part of what polling costs."""
    peer = subscribed(house)
    house.pass_time(0.25)
    house.publish("/a", 1)
    house.pass_time(0.5)
    assert peer.connect(transport=transport).events == [("/a", 1)]
    assert delays_s(house) == (1, 0.5)


@pytest.mark.parametrize("transport", [Transport.LONG_POLLING, Transport.CALLBACK_POLLING])
def test_an_event_that_waited_for_an_absent_client_does_not_count(house, transport):
    """A client that polls when it likes says nothing about the server; when it polls in time again, it counts again."""
    peer = subscribed(house)
    house.publish("/a", 1)
    house.pass_time(GRACE_S + 4)
    assert peer.connect(transport=transport).events == [("/a", 1)]
    assert delays_s(house) == (0, 0.0)
    assert house.broker.flows["bayeux"].delivered == 1
    house.publish("/a", 2)
    house.pass_time(0.125)
    assert peer.connect(transport=transport).events == [("/a", 2)]
    assert delays_s(house) == (1, 0.125)


def test_an_event_that_leaves_with_another_reply_counts_for_a_client_that_polls_alone(house):
    """A publish is no poll: a client that publishes every second and never polls is absent."""
    peer = subscribed(house)
    for _ in range(3):
        house.publish("/a", 1)
        house.pass_time(0.75)
        assert ("/a", 1) in peer.publish("/b", 0).events
    assert delays_s(house) == (1, 0.75)


@pytest.mark.parametrize(("interval_s", "after_s", "count"), [(3, 3.5, 1), (3, 4.5, 0)])
def test_the_interval_is_part_of_what_the_server_does(interval_s, after_s, count):
    """A client that obeys the advice to wait between two polls is not absent meanwhile."""
    house = House(interval_s=interval_s)
    peer = subscribed(house)
    house.publish("/a", 1)
    house.pass_time(after_s)
    assert peer.connect().events == [("/a", 1)]
    assert delays_s(house) == (count, after_s * count)


def test_so_is_the_interval_of_another_tab_of_a_browser(house):
    """While one tab has the held poll, the other is asked to come every two seconds."""
    jar = []
    first = house.join(jar=jar)
    assert first.connect().is_held
    second = house.join(jar=jar)
    second.subscribe("/a")
    assert second.connect().only["advice"]["interval"] == 2_000
    house.publish("/a", 1)
    house.pass_time(2.5)
    assert second.connect().events == [("/a", 1)]
    assert delays_s(house) == (1, 2.5)


def test_a_client_whose_held_poll_has_died_is_absent(house):
    """Nothing can be written to it until it has noticed that."""
    peer = subscribed(house)
    peer.connect().hang_up()
    house.publish("/a", 1)
    house.pass_time(GRACE_S + 1)
    assert peer.connect().events == [("/a", 1)]
    assert delays_s(house) == (0, 0.0)
