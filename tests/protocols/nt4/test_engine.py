"""One connection: its name, the time, limits, policies, and how it ends (NA1, NA6, NA11, NA24 to NA28, S31)."""

import msgpack
import pytest
from support.nt4_peers import NOW_US, WALL_S, Peer, World

from halley.broker.names import Match, Pattern
from halley.protocols.nt4.names import RTT
from halley.settings import Limits

AFAR = "192.0.2.1"


def asks(number, value):
    return msgpack.packb([-1, 0, number, value])


def put_bytes(*values):
    return b"".join(msgpack.packb(value) for value in values)


class Policy:
    """A program's own policy: it defers its verdict on the topics in `about` until `world.waiting.end` gives it."""

    def __init__(self, *about):
        self.about = about
        self.asked = []

    def __call__(self, verb, patterns, *_):
        self.asked.append((verb, patterns))
        topics = {pattern.topic for pattern in patterns if pattern is not None}
        return "a thought" if topics & set(self.about) else [True] * len(patterns)


# Names


def test_na11_names_are_unique_and_nobody_is_refused():
    """NA12, ND1: a name that is in use gets a number, the first that is free; other names stay as they are."""
    world = World()
    peers = [world.peer(name) for name in ("a", "a", "b", "a", "a@1")]
    assert list(world.tables.clients) == ["a", "a@1", "b", "a@2", "a@1@1"]
    peers[1].engine.lost(world.now)
    assert world.peer("a").engine.client.name == "a@1"
    assert world.peer("a").engine.client.name == "a@3"


@pytest.mark.parametrize(("path", "name"), [("/nt/a%20b", "a b"), ("/nt/a/b", "a/b"), ("/nt/%F0%9F%A4%96", "🤖")])
def test_na1_the_name_stands_in_the_path(path, name):
    world = World()
    assert Peer(world, path, "v4.1.networktables.first.wpi.edu", AFAR).engine.client.name == name


# Time


@pytest.mark.parametrize(("number", "value"), [(2, 2**64 - 1), (1, 0.1), (2, 7), (4, "text"), (5, b"\0"), (2, -1)])
def test_na26_the_time_is_told_with_what_was_sent(number, value):
    """The reply has the client's value bit for bit, and the server's time in microseconds since 1970 (NA28)."""
    world = World()
    peer = world.peer()
    peer.send(asks(number, value))
    world.flush()
    [frame] = peer.link.frames
    assert frame == (True, msgpack.packb([-1, NOW_US, number, value]))


def test_na26_each_question_is_answered_and_what_stands_between_is_done():
    world = World()
    peer, dashboard = world.peer(), world.peer("dashboard")
    dashboard.subscribe("/x", all=True)
    peer.publish("/x", 1)
    peer.take()
    peer.send(asks(2, 1) + put_bytes((1, 5, 1, 1.0)) + asks(2, 2) + put_bytes((1, 6, 1, 2.0)))
    assert [each[3] for each in peer.take()] == [1, 2]
    assert dashboard.plain() == [1.0, 2.0]


def test_na28_the_clock_of_the_server_never_goes_backwards():
    """Setting the wall clock back an hour does not affect the server's time."""
    world = World()
    peer = world.peer()
    peer.send(asks(2, 0))
    world.broker.clock_offset_s = WALL_S - 3_600
    world.after(0.5)
    peer.send(asks(2, 0))
    assert [each[1] for each in peer.take()] == [NOW_US, NOW_US + 500_000]


def test_na26_nothing_keeps_the_time_waiting():
    """The time is sent while a policy decides about earlier messages, and while the client is paused."""
    world = World(permission=Policy("x"))
    peer = world.peer()
    peer.publish("/x", 1)
    peer.send(put_bytes((1, 5, 1, 1.0)) + asks(2, 7))
    assert peer.take() == [("", NOW_US, 2, 7)]
    peer.engine.paused()
    peer.send(asks(2, 8))
    assert peer.take() == [("", NOW_US, 2, 8)]


def test_na6_rtt_is_for_the_time_and_nothing_else():
    """An RTT connection's texts and values are ignored and it is not a client; a malformed frame closes it."""
    world = World()
    world.peer("a")
    peer = world.peer("a", subprotocol=RTT)
    peer.publish("/x", 1)
    peer.subscribe("", prefix=True)
    peer.send(put_bytes((1, 5, 1, 1.0)) + asks(2, 7) + put_bytes((1, 5, 1, 1.0)))
    assert peer.take() == [("", NOW_US, 2, 7)]
    assert (len(world.tables.topics), list(world.tables.clients)) == (0, ["a"])
    assert not world.tables.ignored
    assert world.peer("a").engine.client.name == "a@1"
    peer.send(b"\x01")
    assert peer.close.code == 1001


# Malformed messages


def test_na24_what_cannot_be_decoded_ends_it_once_all_before_is_done():
    """Messages after the malformed one are not processed, and the topics of the client end."""
    world = World()
    peer, dashboard = world.peer(), world.peer("dashboard")
    dashboard.subscribe("/x", all=True)
    peer.publish("/x", 1)
    peer.take()
    peer.send(asks(2, 7) + put_bytes((1, 5, 1, 1.0), (1, 6, 1, "text"), (1, 7, 1, 3.0)))
    peer.put((1, 8, 1, 4.0))
    peer.publish("/y", 2)
    assert peer.close.code == 1001
    assert peer.close.reason.startswith("binary decode error: ")
    assert [each[:2] for each in peer.take()] == [("", NOW_US)], "what was said before it is still written"
    heard = dashboard.take()
    assert [each[0] for each in heard] == ["announce", "/x", "unannounce"]
    assert world.broker.closed == {"binary_decode_error": 1}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not_json"),
        ("{}", "not_an_array"),
        ("[1]", "not_an_object"),
        ('[{"method":"fly","params":{}}]', "unknown_method"),
        ('[{"method":"unpublish","params":{"pubuid":77}}]', "unknown_pubuid"),
        ('[{"method":"unsubscribe","params":{"subuid":77}}]', "unknown_subuid"),
    ],
)
def test_s28_s31_text_that_is_wrong_is_ignored_and_counted(text, reason):
    world = World()
    peer = world.peer()
    peer.send(text)
    peer.publish("/x", 1)
    assert [method for method, _ in peer.texts()] == ["announce"]
    assert world.tables.ignored == {reason: 1}
    assert peer.close is None


def test_s31_values_of_nobody_and_of_the_wrong_type_are_ignored_and_counted():
    world = World()
    peer, dashboard = world.peer(), world.peer("dashboard")
    dashboard.subscribe("/x", all=True)
    peer.publish("/x", 1)
    peer.put((9, 1, 1, 1.0), (-2, 1, 1, 1.0), (1, 1, 2, 1), (1, 2, 1, 2.0))
    assert dashboard.plain() == [2.0]
    assert world.tables.ignored == {"unknown_pubuid": 2, "wrong_type": 1}
    assert world.tables.flow.published == 4
    assert peer.close is None


def test_a_value_too_large_for_a_message_is_ignored():
    """The limit is for the value as it is sent: a small integer becomes a double, which is nine times as long."""
    world = World(message_bytes=1_024)
    peer, dashboard = world.peer(), world.peer("dashboard")
    dashboard.subscribe("/x", all=True)
    peer.publish("/x", 1, "double[]")
    peer.put((1, 1, 17, [1.0] * 200), (1, 2, 17, [1.0]))
    assert dashboard.plain() == [[1.0]]
    assert world.broker.hits["message_bytes"] == 1


# Limits


def test_s24_a_client_afar_may_send_so_many_values_a_second():
    """Values beyond `values_per_s` are dropped and counted, and the connection stays (ND14)."""
    world = World(values_per_s=10, value_burst=5)
    peer, dashboard = world.peer(address=AFAR), world.peer("dashboard")
    dashboard.subscribe("/x", all=True)
    peer.publish("/x", 1)
    peer.put(*((1, number, 1, float(number)) for number in range(1, 9)))
    assert dashboard.plain() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert (world.tables.ignored["too_fast"], world.broker.hits["values_per_s"]) == (3, 3)
    assert world.tables.flow.published == 5
    world.after(0.2)
    peer.put(*((1, number, 1, float(number)) for number in range(11, 19)))
    assert dashboard.plain() == [11.0, 12.0]
    assert peer.close is None


@pytest.mark.parametrize(("address", "rate"), [("127.0.0.1", 10), (AFAR, 0)])
def test_on_this_machine_or_without_a_limit_nothing_is_dropped(address, rate):
    world = World(values_per_s=rate, value_burst=5)
    peer, dashboard = world.peer(address=address), world.peer("dashboard")
    dashboard.subscribe("/x", all=True)
    peer.publish("/x", 1)
    peer.put(*((1, number, 1, float(number)) for number in range(100)))
    assert len(dashboard.plain()) == 100


def test_a_client_may_publish_so_many_topics():
    """Publishes beyond `publishers` are ignored; a pubuid that is moved or unpublished makes room."""
    world = World(publishers=2)
    peer = world.peer()
    for pubuid in (1, 2, 3):
        peer.publish(f"/{pubuid}", pubuid)
    assert [params["name"] for _, params in peer.texts()] == ["/1", "/2"]
    assert world.broker.hits["publishers"] == 1
    peer.publish("/3", 2)
    peer.say("unpublish", pubuid=1)
    peer.publish("/4", 4)
    assert [params["name"] for method, params in peer.texts() if method == "announce"] == ["/3", "/4"]


def test_a_name_has_so_many_bytes():
    """The limit of a name counts its bytes in UTF-8; a publish with a longer name is ignored."""
    world = World(name_bytes=8)
    peer = world.peer()
    for pubuid, name in enumerate(("/1234567", "/12345678", "/éééé", "/ééé")):
        peer.publish(name, pubuid)
    assert [params["name"] for _, params in peer.texts()] == ["/1234567", "/ééé"]
    assert world.broker.hits["name_bytes"] == 2


def test_what_rules_forbid_to_publish_is_not_announced():
    """Rules are asked about the canonical topic, or about `$nt4/...` for a name that is not shared."""

    class Rules:
        is_configured = True

        def may(self, session, verb, what, visitor=None):
            asked.append((session.role, session.authid, verb, what))
            return what == "open/x"

    asked = []
    world = World(rights=Rules())
    peer = world.peer("robot")
    for pubuid, name in enumerate(("/open/x", "/shut", "own")):
        peer.publish(name, pubuid)
    assert [params["name"] for _, params in peer.texts()] == ["/open/x"]
    assert world.tables.ignored == {"denied": 2}
    assert asked == [("nt4", "robot", "publish", what) for what in ("open/x", "shut", "!24nt4/own")]
    peer.say("setproperties", name="/open/x", update={"a": 1})
    assert [method for method, _ in peer.texts()] == ["properties"]


# A program's own policy


def test_what_comes_behind_a_question_waits_and_is_done_in_order():
    """While a policy decides about a publish, later texts and values of the client wait and keep their order."""
    world = World(permission=Policy("x"))
    peer, dashboard = world.peer(), world.peer("dashboard")
    dashboard.subscribe("", prefix=True, all=True)
    peer.publish("/x", 1)
    peer.put((1, 1, 1, 1.0))
    peer.publish("/y", 2)
    peer.put((2, 1, 1, 2.0), (1, 2, 1, 3.0))
    assert (peer.take(), dashboard.take()) == ([], [])
    assert world.waiting.awaited[0][1] == world.server.policy.limit_s
    assert world.waiting.end([True], now=world.now) == "a thought"
    assert [params["name"] for _, params in peer.texts()] == ["/x", "/y"]
    assert [each[0] if len(each) == 2 else each[3] for each in dashboard.take()] == [
        "announce",
        "announce",
        1.0,
        2.0,
        3.0,
    ]


@pytest.mark.parametrize("outcome", [{"value": [False]}, {"error": TimeoutError()}])
def test_no_and_no_answer_are_no(outcome):
    """A policy that refuses or times out denies the publish, and the messages after it are processed."""
    world = World(permission=Policy("x"))
    peer = world.peer()
    peer.publish("/x", 1)
    peer.publish("/y", 2)
    world.waiting.end(**outcome, now=world.now)
    assert [params["name"] for _, params in peer.texts()] == ["/y"]
    assert world.tables.ignored == {"denied": 1}


def test_a_second_question_stops_what_is_behind_it_again():
    world = World(permission=Policy("x", "y"))
    peer = world.peer()
    for pubuid, name in enumerate(("/x", "/a", "/y", "/b")):
        peer.publish(name, pubuid)
    world.waiting.end([True], now=world.now)
    assert [params["name"] for _, params in peer.texts()] == ["/x", "/a"]
    world.waiting.end([True], now=world.now)
    assert [params["name"] for _, params in peer.texts()] == ["/y", "/b"]


def test_of_several_names_those_count_that_the_policy_allows():
    """The policy gets patterns as Bayeux has them, and None for names that are not shared."""

    def permission(verb, patterns, _client, context):
        asked.append((verb, patterns, context.path))
        return [pattern != Pattern(Match.EXACT, "shut") for pattern in patterns]

    asked = []
    world = World(permission=permission)
    peer = world.peer()
    for pubuid, name in enumerate(("/open", "/shut", "own")):
        peer.publish(name, pubuid)
    peer.take()
    peer.subscribe("/open", "/shut", "own")
    assert world.tables.ignored == {"denied": 2}
    assert asked[:3] == [
        ("publish", [Pattern(Match.EXACT, "open")], "/nt/c"),
        ("publish", [Pattern(Match.EXACT, "shut")], "/nt/c"),
        ("publish", [None], "/nt/c"),
    ]
    assert asked[3][1] == [Pattern(Match.EXACT, "open"), Pattern(Match.EXACT, "shut"), None]
    assert [subscription.topics for subscription in peer.engine.client.subscribed] == [("/open", "own")]


@pytest.mark.parametrize(
    ("prefix", "pattern"),
    [
        ("/a/b", Pattern(Match.DESCENDANTS, "a")),
        ("/a/", Pattern(Match.DESCENDANTS, "a")),
        ("/a", Pattern(Match.DESCENDANTS, "")),
        ("", Pattern(Match.DESCENDANTS, "")),
        ("$", Pattern(Match.DESCENDANTS, "")),
        ("own/b", None),
    ],
)
def test_a_prefix_is_asked_about_as_what_lies_below(prefix, pattern):
    """The policy gets the narrowest Bayeux pattern that covers a prefix."""
    policy = Policy()
    world = World(permission=policy)
    world.peer().subscribe(prefix, prefix=True)
    assert policy.asked == [("subscribe", [pattern])]


def test_properties_are_asked_about_as_publications():
    policy = Policy()
    world = World(permission=policy)
    peer = world.peer()
    peer.publish("/x", 1)
    peer.say("setproperties", name="/x", update={"a": 1})
    assert policy.asked == [("publish", [Pattern(Match.EXACT, "x")])] * 2


def test_what_waits_behind_a_policy_has_a_bound():
    """A client with too many values and messages behind a decision is closed with 1008."""
    world = World(permission=Policy("x"))
    peer = world.peer()
    peer.publish("/x", 1)
    for _ in range(100):
        peer.put(*((1, 1, 1, 1.0) for _ in range(100)))
    assert peer.close is None
    peer.publish("/y", 2)
    assert (peer.close.code, peer.close.reason) == (1008, "too many messages were sent while a policy decided")
    world.waiting.end([True], now=world.now)
    world.flush()
    assert len(world.tables.topics) == 0


def test_what_waited_is_not_counted_twice():
    world = World(permission=Policy("x"))
    peer = world.peer()
    for _ in range(3):
        peer.publish("/x", 1)
        for _ in range(60):
            peer.put(*((1, 1, 1, 1.0) for _ in range(100)))
        world.waiting.end([True], now=world.now)
        world.flush()
    assert peer.close is None
    assert world.tables.flow.published == 18_000


def test_what_waited_is_taken_in_turns_and_in_order():
    """Messages that waited for a policy are processed in turns, for the sake of other clients, and in order."""
    world = World(permission=Policy("x"))
    peer = world.peer()
    peer.publish("/x", 1)
    for number in range(100):
        peer.publish(f"/{number}", number + 2)
    world.waiting.end([True], now=world.now)
    assert 0 < len(world.tables.topics) < 101
    peer.publish("/last", 1_000)
    assert [params["name"] for _, params in peer.texts()] == ["/x", *(f"/{number}" for number in range(100)), "/last"]


def test_what_waits_is_bounded_in_bytes_too():
    """A few large messages behind a decision are enough to close the client."""
    world = World(permission=Policy("x"), control_bytes=65_536)
    peer = world.peer()
    peer.publish("/x", 1)
    for _ in range(7):
        peer.put((1, 1, 5, b"a" * 10_000))
    assert (peer.close.code, world.broker.closed["slow_consumer"]) == (1008, 1)


def test_na24_a_mistake_behind_a_question_ends_it_when_its_turn_comes():
    """A malformed frame behind a decision closes the connection after everything before it has been processed."""
    world = World(permission=Policy("x"))
    peer, dashboard = world.peer(), world.peer("dashboard")
    dashboard.subscribe("/", prefix=True, all=True)
    peer.publish("/x", 1)
    peer.send(put_bytes((1, 5, 1, 1.0)) + b"\x01")
    peer.publish("/y", 2)
    assert peer.close is None
    world.waiting.end([True], now=world.now)
    assert peer.close.code == 1001
    assert [each[0] for each in dashboard.take()] == ["announce", "/x", "unannounce"]
    assert world.tables.topics.get("/y") is None


def test_a_verdict_that_comes_when_its_client_has_left_does_nothing():
    world = World(permission=Policy("x"))
    peer = world.peer()
    peer.publish("/x", 1)
    peer.engine.lost(world.now)
    world.waiting.end([True], now=world.now)
    assert len(world.tables.topics) == 0


# Connecting and disconnecting


def test_the_server_leaves():
    """A drain closes all connections with 1001, and also those that are opened during it."""
    world = World()
    peer, timer = world.peer(), world.peer(subprotocol=RTT)
    peer.publish("/x", 1)
    releases = world.server.drain(0.0)
    assert releases == [peer.engine.drain, timer.engine.drain]
    for release in releases:
        release(world.now)
    late = world.peer("late")
    for each in (peer, timer, late):
        assert (each.close.code, each.close.reason) == (1001, "the server is shutting down")
    assert [method for method, _ in peer.texts()] == ["announce"]
    assert world.broker.closed == {"drained": 2}
    late.publish("/y", 1)
    late.engine.lost(world.now)
    assert (len(world.tables.topics), world.broker.sessions, world.tables.clients) == (0, {}, {})


def test_there_is_room_for_so_many_sessions():
    """A session beyond the limit is closed with 1013, takes no name and cannot publish."""
    world = World(limits=Limits(sessions=1))
    first, second = world.peer("a"), world.peer("b")
    assert (second.close.code, second.close.reason) == (1013, "too many connections, or too little memory")
    assert (first.close, list(world.tables.clients)) == (None, ["a"])
    second.publish("/x", 1)
    second.engine.lost(world.now)
    assert len(world.tables.topics) == 0
    first.engine.lost(world.now)
    assert world.peer("b").close is None


def test_a_connection_ends_once():
    """A connection that is lost after it was closed is reported once, with the reason of the close.

    Nothing is written to it any more.
    """
    world = World()
    peer = world.peer()
    told = follow(world)
    peer.send(b"\x01")
    peer.engine.lost(world.now)
    peer.engine.drain(world.now)
    assert told == [("closed", "c", "binary_decode_error")]
    assert peer.close is None


def test_nothing_is_written_to_who_has_gone():
    """Replies to messages of the same turn are not written to a lost connection."""
    world = World()
    peer = world.peer()
    peer.publish("/x", 1)
    peer.engine.lost(world.now)
    world.flush()
    assert peer.link.writes == 0


class Observer:
    """Notes what the broker's observers are told of."""

    def __init__(self):
        self.told = []

    def opened(self, session):
        self.told.append(("opened", session.authid))

    def closed(self, session, reason):
        self.told.append(("closed", session.authid, reason))

    def subscribed(self, session, names):
        self.told.append(("+", session.authid, names))

    def unsubscribed(self, session, names):
        self.told.append(("-", session.authid, names))


def follow(world):
    """Observe the broker's sessions from now on; return the list of what is noted."""
    observer = Observer()
    world.broker.add_observer(observer)
    return observer.told


def test_observers_are_told_of_clients_and_of_what_they_subscribe_to():
    """The broker's observers are told of each client and subscription that begins or ends, also by replacement."""
    world = World()
    told = follow(world)
    peer = world.peer("a")
    peer.subscribe("/x", subuid=1)
    peer.subscribe("/y", subuid=1)
    peer.say("unsubscribe", subuid=1)
    peer.engine.lost(world.now)
    assert told == [
        ("opened", "a"),
        ("+", "a", ["/x"]),
        ("-", "a", ["/x"]),
        ("+", "a", ["/y"]),
        ("-", "a", ["/y"]),
        ("closed", "a", "connection_lost"),
    ]
