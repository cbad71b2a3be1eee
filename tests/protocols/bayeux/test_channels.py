"""Channel names: which are legal, what wildcards match, and what `/meta` and `/service` are (A16-A22)."""

import pytest
from support.bayeux import House
from support.messages import publish

LEGAL = ["/a", "/a/b", "/A-z_0!~()$@/9", "/" + "a" * 254, "/" + "/".join("a" * 16)]
ILLEGAL = [
    "",
    "/",
    "a",
    "a/b",
    "//",
    "/a/",
    "/a//b",
    " /a",
    "/a ",
    "/a b",
    "/a.b",
    "/a+b",
    "/a#",
    "/{a}",
    "/a/*/b",
    "/**/a",
    "/a*",
    "/a/***",
    "*",
    "**",
    "/a/b*",
    "/ä",
    "/a\n",
    "/a\x00",
    "/a<b>",
    "/a%2fb",
    "/../a",
    "/" + "a" * 255,
    "/" + "/".join("a" * 17),
]


@pytest.mark.parametrize("channel", LEGAL)
def test_legal_names(house, channel):
    """Names with all of the specification's characters, up to 255 of them and 16 segments, are served (A16)."""
    peer = house.join()
    assert peer.subscribe(channel).only["successful"] is True
    peer.publish(channel, 1)
    assert peer.heard == [(channel, 1)]


@pytest.mark.parametrize("channel", ILLEGAL)
def test_illegal_names(house, channel):
    """Any other name is refused, and not trimmed or mended; so are templates (A16, A21, S16)."""
    peer = house.join()
    assert house.send(publish(channel, 1)).only["error"] == "405::channel_invalid"
    assert peer.subscribe(channel).only["error"] == "403::subscription_invalid"
    assert peer.unsubscribe(channel).only["error"] == "403::subscription_invalid"
    assert peer.session.subscriptions == {}


@pytest.mark.parametrize(
    ("pattern", "heard"),
    [
        ("/foo/*", ["/foo/bar"]),
        ("/foo/**", ["/foo/bar", "/foo/bar/boo"]),
        ("/*", ["/foo", "/foobar"]),
        ("/**", ["/foo", "/foobar", "/foo/bar", "/foo/bar/boo"]),
        ("/foo", ["/foo"]),
        ("/foo/bar/*", ["/foo/bar/boo"]),
    ],
)
def test_what_a_pattern_hears(house, pattern, heard):
    """`*` matches one level, `**` one or more, and neither matches its own parent (A17)."""
    peer = house.join()
    peer.subscribe(pattern)
    for channel in ("/foo", "/foobar", "/foo/bar", "/foo/bar/boo"):
        house.publish(channel, 1)
    peer.connect(advice={"timeout": 0})
    assert [channel for channel, _ in peer.heard] == heard


@pytest.mark.parametrize("pattern", ["/**", "/*"])
def test_wildcards_never_reach_meta_or_service(house, pattern):
    """A wildcard matches no meta, service or `/halley` channels (A18, E44)."""
    peer, other = house.join(), house.join()
    peer.subscribe(pattern)
    house.publish("/service/x", 1)
    house.publish("/halley/x", 1)
    house.publish("/halley", 1)
    other.publish("/service/x", 1)
    other.disconnect()
    assert peer.connect(advice={"timeout": 0}).events == []


@pytest.mark.parametrize(
    "name", ["/meta/connect", "/meta/*", "/meta/**", "/meta/subscribe/x", "/meta/unknown", "/meta"]
)
def test_nobody_subscribes_to_meta(house, name):
    """Subscriptions to meta channels are denied (A19, E54, S15)."""
    peer = house.join()
    only = peer.subscribe(name).only
    assert only["error"] == "403:denied_by_security_policy:subscribe_denied"
    assert only["subscription"] == name
    assert peer.session.subscriptions == {}


@pytest.mark.parametrize("name", ["/service/a", "/service/*", "/service/**", "/service/a/b"])
def test_service_subscriptions_are_answered_and_not_recorded(house, name):
    """Subscribing to a service channel is a successful no-op, and so is unsubscribing (A20, E54)."""
    peer = house.join()
    only = peer.subscribe(name).only
    assert (only["successful"], only["subscription"]) == (True, name)
    assert peer.session.subscriptions == {}
    assert peer.unsubscribe(name).only["successful"] is True


def test_service_messages_are_never_broadcast(house):
    """Messages to a service channel reach no other client (A20)."""
    peer, other = house.join(), house.join()
    other.subscribe("/service/a", "/**")
    assert peer.publish("/service/a", 1).only["successful"] is True
    assert other.connect(advice={"timeout": 0}).events == []


def test_service_itself_is_an_ordinary_channel(house):
    """`/service` is not below `/service/`: its subscribers receive what is published there (A20, A49)."""
    peer = house.join()
    peer.subscribe("/service")
    assert peer.publish("/service", 1).events == [("/service", 1)]


@pytest.mark.parametrize("channel", ["/foo/*", "/foo/**", "/**", "/meta/*", "/service/**"])
def test_publishing_to_a_wildcard_is_refused(house, channel):
    """A publish to a wildcard is refused with its name and is not delivered (A22, S15)."""
    peer = house.join()
    peer.subscribe("/foo/bar", "/foo/*", "/**")
    assert peer.publish(channel, 1).only["error"] == f"400:{channel}:channel_is_a_wildcard"
    assert peer.connect(advice={"timeout": 0}).events == []


@pytest.mark.parametrize(
    ("channel", "error"),
    [
        ("/meta/subscribe/x", "403:denied_by_security_policy:publish_denied"),
        ("/meta/Subscribe", "403:denied_by_security_policy:publish_denied"),
        ("/meta/unknown", "403:denied_by_security_policy:publish_denied"),
        ("/meta", "403:denied_by_security_policy:publish_denied"),
        ("/meta//subscribe", "405::channel_invalid"),
        ("/meta/connect/..", "405::channel_invalid"),
        ("/meta/subscribe/", "405::channel_invalid"),
    ],
)
def test_meta_channels_are_matched_by_their_exact_name(house, channel, error):
    """A name that only resembles a meta channel has no effect (S14, CVE-2020-11020)."""
    peer = house.join()
    only = peer.send(peer.message(channel, subscription="/a", connectionType="long-polling", data=1)).only
    assert (only["successful"], only["error"]) == (False, error)
    assert peer.session.subscriptions == {}


def test_a_channel_is_created_once(house):
    """A channel is created and announced at its first use, once; its parents are not created (B24, E51)."""
    created = []
    house.hooks.channel_created.append(created.append)
    peer = house.join()
    peer.subscribe("/foo/bar")
    peer.publish("/foo/bar", 1)
    peer.publish("/foo/bar/*", 1)
    house.publish("/foo/bar", 1)
    assert created == ["/foo/bar"]


def test_an_idle_channel_goes_after_three_seconds(house):
    """An unused channel is removed three seconds after its last use, and announced again at its next (B24, E52)."""
    created = []
    house.hooks.channel_created.append(created.append)
    house.publish("/a", 1)
    house.now += 2
    house.engine.sweep(house.now)
    house.publish("/a", 1)
    house.now += 2
    house.engine.sweep(house.now)
    assert "/a" in house.engine.channels
    house.now += 1
    house.engine.sweep(house.now)
    assert "/a" not in house.engine.channels
    house.publish("/a", 1)
    assert created == ["/a", "/a"]


def test_channels_in_use_stay(house):
    """A channel with a subscriber, a listener or an authorizer is not swept (B24, E52)."""
    house.hooks.channel_created.append(lambda channel: None)
    house.listen("/listened", lambda session, message: None)
    house.authorize("/authorized", lambda *_: True)
    peer = house.join()
    peer.subscribe("/subscribed", "/wild/*")
    house.publish("/listened", 1)
    house.publish("/authorized", 1)
    for _ in range(5):
        house.now += 3
        house.engine.sweep(house.now)
    assert {
        name for name in ("/listened", "/authorized", "/subscribed", "/wild/*") if name in house.engine.channels
    } == {
        "/listened",
        "/authorized",
        "/subscribed",
        "/wild/*",
    }


def test_service_channels_stay(house):
    """A channel with a service is not swept, so the policy is not asked to create it again (B24)."""
    house.hooks.channel_created.append(lambda channel: None)
    house.serve("/service/a", lambda session, message: None)
    house.publish("/service/a", 1)
    for _ in range(5):
        house.now += 3
        house.engine.sweep(house.now)
    assert "/service/a" in house.engine.channels


def test_remembered_channels_are_bounded():
    """However many names clients make up, the number of remembered channels is bounded."""
    house = House(limits={"channels": 10})
    house.hooks.channel_created.append(lambda channel: None)
    for number in range(50):
        house.publish(f"/a/{number}", 1)
    assert len(house.engine.channels) == 10
