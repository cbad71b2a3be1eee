"""Deliveries: to which sessions, once, in order, and with which response (A18, A49-A51, A66, B7, B8)."""

import pytest
from support.bayeux import House
from support.messages import publish

from halley.protocols.bayeux.outcomes import Transport


def test_every_subscriber_gets_it(house):
    """An event is delivered to every subscriber and to no other session (A49)."""
    first, second, other = house.join(), house.join(), house.join()
    first.subscribe("/a")
    second.subscribe("/a")
    other.subscribe("/b")
    held = [peer.connect() for peer in (first, second, other)]
    house.publish("/a", {"n": 1})
    assert [first.heard, second.heard] == [[("/a", {"n": 1})]] * 2
    assert held[2].is_held


def test_one_copy_for_each_session(house):
    """A session with several matching patterns gets one copy (A50, E45)."""
    peer = house.join()
    peer.subscribe("/**", "/a/*", "/a/**", "/a/b")
    assert peer.publish("/a/b", 1).events == [("/a/b", 1)]
    assert peer.connect().is_held


def test_event_is_encoded_once(house):
    """However many sessions receive an event, it is encoded once for all of them."""
    peers = [house.join() for _ in range(3)]
    for peer in peers:
        peer.subscribe("/a")
    held = [peer.connect() for peer in peers]
    house.publish("/a", 1)
    frames = [exchange.reply.parts[-1] for exchange in held]
    assert frames[0] is frames[1] is frames[2]


def test_publisher_hears_itself(house):
    """A publisher that subscribes gets its own event with the reply to its publish (A50, A51)."""
    peer = house.join()
    peer.subscribe("/a")
    reply, event = peer.publish("/a", 1).messages
    assert (reply["successful"], event) == (True, {"channel": "/a", "data": 1})


def test_publisher_need_not_hear_itself():
    """With `broadcast_to_publisher` off a publisher does not get its own events, while the others do (A50, E47)."""
    house = House(broadcast_to_publisher=False)
    peer, other = house.join(), house.join()
    peer.subscribe("/a")
    other.subscribe("/a")
    assert peer.publish("/a", 1).events == []
    assert peer.connect().is_held
    assert other.connect().events == [("/a", 1)]


def test_publisher_may_be_deaf_by_itself(house):
    """`broadcast_to_publisher` can be switched off for one session (E47, B27)."""
    peer, other = house.join(), house.join()
    peer.session.broadcast_to_publisher = False
    for each in (peer, other):
        each.subscribe("/**")
        each.publish("/a", each.id)
        each.connect(advice={"timeout": 0})
    house.publish("/a", "curl")
    peer.connect(advice={"timeout": 0})
    assert peer.heard == [("/a", other.id), ("/a", "curl")]


def test_own_event_does_not_wake_the_held_connect(house):
    """An event that is sent on the publish reply does not end the hold (A51)."""
    peer = house.join()
    peer.subscribe("/a")
    held = peer.connect()
    assert peer.publish("/a", 1).events == [("/a", 1)]
    assert held.is_held


def test_what_waits_rides_on_the_next_reply(house):
    """Waiting events are sent on the next reply of any kind, oldest first and after the replies (A51, B8)."""
    peer = house.join()
    peer.subscribe("/a")
    house.publish("/a", 1, 2)
    sent = peer.publish("/a", 3)
    assert [message.get("data") for message in sent.messages] == [None, 1, 2, 3]
    assert peer.connect().is_held


def test_connect_delivery_only_by_setting():
    """With `connect_delivery_only` events are sent on connect replies only (E40)."""
    house = House(connect_delivery_only=True)
    peer = house.join()
    peer.subscribe("/a")
    assert len(peer.publish("/a", 1).messages) == 1
    assert len(peer.connect().messages) == 2


def test_connect_delivery_only_wakes_the_held_connect():
    """With `connect_delivery_only` the session's own publish ends its hold (E40, B7)."""
    peer = House(connect_delivery_only=True).join()
    peer.subscribe("/a")
    held = peer.connect()
    assert peer.publish("/a", 1).events == []
    assert held.events == [("/a", 1)]


def test_connect_delivery_only_for_one_session(house):
    """`connect_delivery_only` can be switched on for one session (B27)."""
    peer = house.join()
    peer.subscribe("/a")
    peer.session.connect_delivery_only = True
    assert peer.publish("/a", 1).events == []
    assert peer.connect().events == [("/a", 1)]


def test_jsonp_gets_events_on_connects_only(house):
    """By callback-polling events are sent on connect replies only, whatever the setting (A66)."""
    peer = house.join(transport=Transport.CALLBACK_POLLING)
    peer.subscribe("/a")
    held = peer.connect()
    assert peer.publish("/a", 1).events == []
    assert held.events == [("/a", 1)]


def test_whole_life_by_jsonp(house):
    """A session can use callback-polling from handshake to disconnect, and batches keep their order (A31, E8)."""
    peer = house.join(transport=Transport.CALLBACK_POLLING)
    peer.subscribe("/a")
    for first in (1, 3, 5):
        peer.send(*(peer.message("/a") | {"data": number} for number in (first, first + 1)))
    assert [data for _, data in peer.connect().events] == [1, 2, 3, 4, 5, 6]
    peer.unsubscribe("/a")
    house.publish("/a", 7)
    held = peer.connect()
    assert peer.disconnect().only["successful"] is True
    assert held.events == []


def test_subscribed_and_published_in_one_request(house):
    """An event on a channel that the same request subscribes to is in the same response (A44, A51)."""
    peer = house.join()
    sent = peer.send(peer.message("/meta/subscribe", subscription="/a"), peer.message("/a") | {"data": 1})
    assert sent.events == [("/a", 1)]


def test_many_quick_events(house):
    """Five hundred quick events all arrive, once and in order, over many polls (E48)."""
    peer = house.join()
    peer.subscribe("/a")
    for first in range(0, 500, 10):
        peer.connect()
        house.publish("/a", *range(first, first + 3))
        house.publish("/a", *range(first + 3, first + 10))
    peer.connect()
    assert peer.heard == [("/a", number) for number in range(500)]


def test_order_across_channels(house):
    """Events of several channels and publishers are delivered in the order they were published."""
    peer, other = house.join(), house.join()
    peer.subscribe("/**")
    for number in range(5):
        house.publish(f"/a/{number}", number)
        other.publish("/b", number)
    assert [data for _, data in peer.connect().events] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


@pytest.mark.parametrize("data", ["\u2028 \u2029", "<script>", "\\u003c", '"', "😀", "\x7f", {"": "é"}])
def test_data_arrives_unchanged(house, data):
    """No character of data is changed on its way (E3)."""
    peer = house.join()
    peer.subscribe("/a")
    assert peer.publish("/a", data).events == [("/a", data)]


def test_who_comes_later_hears_later_events(house):
    """A subscriber receives what is published after its subscription, and nothing before (A49)."""
    peer = house.join()
    house.publish("/a", 1)
    peer.subscribe("/a")
    house.publish("/a", 2)
    assert peer.connect().events == [("/a", 2)]


def test_delivery_to_one_session(house):
    """A program can deliver to one session, subscribed or not, and no other session gets the event (A20, B27)."""
    peer, other = house.join(), house.join()
    other.subscribe("/a")
    held, others = peer.connect(), other.connect()
    assert house.deliver(peer, "/a", 1) is True
    assert held.messages[-1] == {"channel": "/a", "data": 1}
    assert others.is_held


def test_channel_with_escapes(house):
    """Characters that are escaped internally are sent as Bayeux writes them (A16)."""
    peer = house.join()
    name = "/a!b/~(c)/$@"
    peer.subscribe(name)
    held = peer.connect()
    house.send(publish(name, 1))
    assert held.events == [(name, 1)]


def test_events_of_more_sessions_than_one_turn_flushes(house):
    """If there are more receivers than one turn flushes, 500, all of them get the event."""
    peers = [house.join() for _ in range(502)]
    for peer in peers:
        peer.subscribe("/a")
        peer.connect()
    house.publish("/a", 1)
    assert all(peer.heard == [("/a", 1)] for peer in peers)
