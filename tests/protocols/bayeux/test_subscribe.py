"""Subscribing and unsubscribing (A9, A44-A46, A55)."""

import pytest
from support.bayeux import House

DENIED = "403:denied_by_security_policy:subscribe_denied"


def test_reply_to_one_name(house):
    """A subscription to one name has one reply, with that name (A9, A44)."""
    peer = house.join()
    only = peer.subscribe("/a").only
    assert only == {
        "id": only["id"],
        "channel": "/meta/subscribe",
        "clientId": peer.id,
        "successful": True,
        "subscription": "/a",
    }


def test_reply_to_an_array(house):
    """An array has one reply with the same array, and all of its names are subscribed (A44, E39)."""
    peer = house.join()
    names = ["/b", "/a", "/c/*"]
    assert peer.subscribe(*names).only["subscription"] == names
    assert [house.hearers(name) for name in names] == [[peer.id]] * 3
    assert peer.unsubscribe(*names).only["subscription"] == names
    assert peer.session.subscriptions == {}


def test_array_of_one_stays_an_array(house):
    """The reply's `subscription` has the shape of the request's (A9)."""
    peer = house.join()
    assert peer.send(peer.message("/meta/subscribe", subscription=["/a"])).only["subscription"] == ["/a"]


@pytest.mark.parametrize("bad", ["/b<script>", "no", "/meta/connect", "/halley/x", ""])
def test_array_is_all_or_nothing(bad):
    """If one name of an array is refused, nothing of the array is subscribed (A46)."""
    house = House(loopback=False)
    peer = house.join()
    only = peer.subscribe("/a", bad, "/c").only
    assert only["successful"] is False
    assert only["subscription"] == ["/a", bad, "/c"]
    assert peer.session.subscriptions == {}


def test_array_is_all_or_nothing_by_policy_too(house):
    """A policy that denies one name denies the array (A46, B23)."""
    house.policy(can_subscribe=lambda session, channel, message: channel != "/b")
    peer = house.join()
    assert peer.subscribe("/a", "/b").only["error"] == DENIED
    assert peer.session.subscriptions == {}


def test_array_of_unsubscribing_is_all_or_nothing(house):
    """A bad name in an array to unsubscribe leaves all subscriptions in place (A46)."""
    peer = house.join()
    peer.subscribe("/a")
    assert peer.unsubscribe("/a", "no").only["error"] == "403::subscription_invalid"
    assert house.hearers("/a") == [peer.id]


def test_subscription_is_required(house):
    """Without `subscription`, subscribe and unsubscribe are refused (A44, A68)."""
    peer = house.join()
    for channel in ("/meta/subscribe", "/meta/unsubscribe"):
        assert peer.send(peer.message(channel)).only["error"] == "403::subscription_missing"


def test_failed_replies_echo_the_subscription(house):
    """A failed reply has the subscription too, without which clients fail; as JSON, never as markup (A9, E2)."""
    sent = house.send({"channel": "/meta/subscribe", "clientId": "x", "subscription": "/bar<script>"})
    assert sent.only["subscription"] == "/bar<script>"
    assert b"<script>" not in sent.reply.body()


def test_subscribing_twice_changes_nothing(house):
    """A repeated subscription succeeds, counts once and delivers once (A44, A50)."""
    peer = house.join()
    peer.subscribe("/a")
    assert peer.subscribe("/a", "/a").only["successful"] is True
    peer.publish("/a", 1)
    assert peer.heard == [("/a", 1)]
    peer.unsubscribe("/a")
    assert house.hearers("/a") == []


def test_unsubscribing_from_what_one_is_not_on(house):
    """Unsubscribing without a subscription succeeds: the client has what it wants (A45)."""
    assert house.join().unsubscribe("/a", "/b/**").only["successful"] is True


def test_unsubscribed_hears_no_more(house):
    """After unsubscribing nothing more is delivered, but earlier events are (A45, A55)."""
    peer = house.join()
    peer.subscribe("/a")
    house.publish("/a", 1)
    assert peer.unsubscribe("/a").events == [("/a", 1)]
    house.publish("/a", 2)
    assert peer.connect().is_held


def test_patterns_are_subscribed_apart(house):
    """Unsubscribing from `/a/*` does not affect the subscription to `/a/b` (A17, A45)."""
    peer = house.join()
    peer.subscribe("/a/*", "/a/b")
    peer.unsubscribe("/a/*")
    house.publish("/a/b", 1)
    house.publish("/a/c", 1)
    assert peer.connect().events == [("/a/b", 1)]


def test_events_ride_on_a_subscribe_reply(house):
    """Waiting events are sent on the reply to a subscribe (A44, A51)."""
    peer = house.join()
    peer.subscribe("/a")
    house.publish("/a", 1)
    assert peer.subscribe("/b").events == [("/a", 1)]


def test_too_many_subscriptions():
    """A subscription over the limit is refused, and the earlier ones stay (S16)."""
    house = House(limits={"subscriptions": 3})
    peer = house.join()
    peer.subscribe("/a", "/b", "/c")
    only = peer.subscribe("/d").only
    assert only["error"] == "403:too_many_subscriptions:subscribe_denied"
    assert peer.subscribe("/a", "/b").only["successful"] is True
    house.publish("/c", 1)
    assert peer.connect().events == [("/c", 1)]
    peer.unsubscribe("/a")
    assert peer.subscribe("/d").only["successful"] is True


def test_subscriptions_that_take_too_much_memory():
    """Long names are refused as too many names are, and an unsubscribe makes room (S16)."""
    house = House(limits={"subscription_bytes": 4_096})
    peer = house.join()
    names = [f"/{number}{'x' * 250}" for number in range(4)]
    peer.subscribe(*names[:3])
    assert peer.subscribe(names[3]).only["error"] == "403:too_many_subscriptions:subscribe_denied"
    assert peer.subscribe(*names[:3]).only["successful"] is True
    house.publish(names[2], 1)
    assert peer.connect().events == [(names[2], 1)]
    peer.unsubscribe(names[0])
    assert peer.subscribe(names[3]).only["successful"] is True


def test_array_that_goes_too_far():
    """An array that would exceed the limit is refused as a whole (A46, S16)."""
    peer = House(limits={"subscriptions": 3}).join()
    assert peer.subscribe("/a", "/b", "/c", "/d").only["successful"] is False
    assert peer.session.subscriptions == {}


def test_too_many_patterns():
    """Wildcards have a separate limit (S16)."""
    peer = House(limits={"patterns": 2}).join()
    peer.subscribe("/a/*", "/b/**")
    assert peer.subscribe("/**").only["error"] == "403:too_many_patterns:subscribe_denied"
    assert peer.subscribe("/a").only["successful"] is True


def test_limits_come_before_the_policy():
    """The policy is not asked about subscriptions over the limit (S16)."""
    asked = []
    house = House(limits={"subscriptions": 1})
    house.policy(can_subscribe=lambda session, channel, message: asked.append(channel) is None)
    house.join().subscribe("/a", "/b")
    assert asked == []


def test_default_limits(house):
    """By default a session can have 128 subscriptions, of which 16 can have wildcards (S16)."""
    peer = house.join()
    assert peer.subscribe(*(f"/w/{n}/*" for n in range(16))).only["successful"] is True
    assert peer.subscribe(*(f"/a/{n}" for n in range(112))).only["successful"] is True
    assert peer.subscribe("/more").only["error"] == "403:too_many_subscriptions:subscribe_denied"


def test_huge_array_is_not_echoed(house):
    """A refused array of any length gets a short reply."""
    only = house.join().subscribe(*(f"/a/{n}" for n in range(5_000))).only
    assert only["successful"] is False
    assert "subscription" not in only


def test_own_topics_are_hidden_from_the_world():
    """`/halley` can be subscribed to only where no other machine can connect."""
    for loopback in (False, True):
        peer = House(loopback=loopback).join()
        assert [peer.subscribe(name).only["successful"] for name in ("/halley/x", "/halley/**")] == [loopback] * 2
        assert peer.subscribe("/stats/x", "/**").only["successful"] is True


def test_subscribers_are_told(house):
    """Programs are notified of each subscription that begins or ends, and not of repetitions (B12, B27)."""
    told = []
    house.hooks.subscribed.append(lambda session, channel: told.append(("+", session.id, channel)))
    house.hooks.unsubscribed.append(lambda session, channel: told.append(("-", session.id, channel)))
    peer = house.join()
    peer.subscribe("/a", "/b")
    peer.subscribe("/a")
    peer.unsubscribe("/a", "/c")
    assert told == [("+", peer.id, "/a"), ("+", peer.id, "/b"), ("-", peer.id, "/a")]
