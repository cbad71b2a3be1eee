"""What subscriptions match, how several are combined, and how they change (NA49 to NA57, ND2, ND3, ND6, ND11)."""

import tracemalloc
from math import inf

import pytest
from support.nt4_peers import World
from support.traced import traced_bytes

from halley.protocols.nt4.messages import Subscribe, SubscribeOptions, read
from halley.protocols.nt4.pacing import Interest
from halley.protocols.nt4.session import Subscriptions, merged, period_of
from halley.settings import Limits


@pytest.fixture
def world():
    return World()


@pytest.fixture
def robot(world):
    peer = world.peer("robot")
    for number, name in enumerate(("/a", "/ab", "/a/b", "/b", "", "a")):
        peer.publish(name, number)
    peer.take()
    return peer


@pytest.fixture
def dashboard(world):
    return world.peer("dashboard")


def announced(peer):
    return [params["name"] for method, params in peer.texts() if method == "announce"]


def beat(world, robot, seconds, count, pubuid=0):
    """Publish `count` values, numbered from 0, and let `seconds` pass after each."""
    for number in range(count):
        robot.put((pubuid, 100 + number, 1, float(number)))
        world.after(seconds)


# What matches


@pytest.mark.parametrize(
    ("topics", "is_prefix", "matched"),
    [
        (["/a"], False, ["/a"]),
        (["/a"], True, ["/a", "/a/b", "/ab"]),
        (["/a/"], True, ["/a/b"]),
        ([""], False, [""]),
        ([""], True, ["", "/a", "/a/b", "/ab", "/b", "a"]),
        (["/b", "/a", "/b"], False, ["/b", "/a"]),
        (["/a", "/ab", "/b"], True, ["/a", "/a/b", "/ab", "/b"]),
        (["/ab", "/a", ""], True, ["", "/a", "/a/b", "/ab", "/b", "a"]),
        (["/a/", "/a", "/b"], True, ["/a", "/a/b", "/ab", "/b"]),
        (["/nothing"], True, []),
        ([], True, []),
    ],
)
def test_na49_names_are_exact_or_raw_prefixes(robot, dashboard, topics, is_prefix, matched):
    """A topic is announced once even if several names match it, whether it exists already or is created later."""
    dashboard.subscribe(*topics, prefix=is_prefix, subuid=1)
    assert sorted(announced(dashboard)) == sorted(matched)
    dashboard.say("unsubscribe", subuid=1)
    dashboard.subscribe(*topics, prefix=is_prefix, subuid=1)
    for number in range(6):
        robot.say("unpublish", pubuid=number)
    dashboard.take()
    for number, name in enumerate(("/a", "/ab", "/a/b", "/b", "", "a")):
        robot.publish(name, number)
    assert sorted(announced(dashboard)) == sorted(matched)


@pytest.mark.parametrize("topics", [[""], ["", "/"]])
def test_na49_meta_topics_want_to_be_asked_for(world, robot, dashboard, topics):
    """The prefix "" matches no meta topics, neither existing nor later ones."""
    world.peer("curious").subscribe("$", prefix=True)
    dashboard.subscribe(*topics, prefix=True)
    robot.publish("/later", 77)
    assert not [name for name in announced(dashboard) if name.startswith("$")]


@pytest.mark.parametrize(
    ("topics", "is_prefix", "matched"),
    [
        (["$clients"], False, ["$clients"]),
        (["$se"], True, ["$serverpub", "$serversub"]),
        (["", "$se"], True, ["", "$serverpub", "$serversub", "/a", "/a/b", "/ab", "/b", "a"]),
    ],
)
def test_na49_meta_topics_are_had_by_their_names(robot, dashboard, topics, is_prefix, matched):
    """Meta topics are matched by their exact names, or by a prefix that begins with `$`."""
    dashboard.subscribe(*topics, prefix=is_prefix)
    assert sorted(announced(dashboard)) == sorted(matched)


# Announces and last values


def test_na50_nd2_all_announces_then_all_last_values_then_later_topics(robot, dashboard):
    """A topic that is created later is announced before its first value; no topic is announced twice."""
    robot.put((0, 1, 1, 1.0), (3, 2, 1, 2.0))
    dashboard.subscribe("/", prefix=True)
    heard = dashboard.take()
    assert [each[0] for each in heard] == ["announce"] * 4 + ["/a", "/b"]
    robot.publish("/later", 77)
    robot.put((77, 3, 1, 3.0))
    dashboard.world.after(0.1)
    assert [each[0] for each in dashboard.take()] == ["announce", "/later"]


def test_na52_what_is_announced_is_not_announced_again(robot, dashboard):
    """Neither a second subscription nor a repeated one announces a topic again."""
    dashboard.subscribe("/a", subuid=1)
    assert announced(dashboard) == ["/a"]
    dashboard.subscribe("/a", subuid=2)
    for subuid in (1, 2):
        dashboard.say("unsubscribe", subuid=subuid)
    dashboard.subscribe("/a", subuid=1)
    assert announced(dashboard) == []


def test_na52_a_second_subscription_brings_no_second_last_value(robot, dashboard):
    """Only a client that has meanwhile unsubscribed from the topic gets its last value again."""
    robot.put((0, 1, 1, 1.0))
    dashboard.subscribe("/a", subuid=1)
    dashboard.subscribe("/", subuid=2, prefix=True)
    assert dashboard.plain() == [1.0]
    for subuid in (1, 2):
        dashboard.say("unsubscribe", subuid=subuid)
    dashboard.subscribe("/a", subuid=1)
    assert dashboard.plain() == [1.0]


def test_na53_the_same_subuid_again_sends_the_last_value_where_nothing_else_does(robot, dashboard):
    """Repeating a subscription brings the last value again, unless another subscription covers the topic."""
    robot.put((0, 1, 1, 1.0))
    dashboard.subscribe("/a", subuid=1)
    dashboard.subscribe("/a", subuid=1)
    assert dashboard.plain() == [1.0]  # one turn, one value
    dashboard.subscribe("/a", subuid=1)
    assert dashboard.plain() == [1.0]
    dashboard.subscribe("/", subuid=2, prefix=True)
    dashboard.subscribe("/a", subuid=1)
    assert dashboard.plain() == []


def test_na53_an_older_value_on_its_way_does_not_stand_for_the_last_one(world, robot, dashboard):
    """NA40: an older value is forwarded, but a client that subscribes again still gets the last value."""
    other = world.peer("other")
    other.publish("/a", 1)
    robot.put((0, 10, 1, 10.0))
    dashboard.subscribe("/a", subuid=1)
    assert dashboard.plain() == [10.0]
    robot.put((0, 11, 1, 11.0))
    world.flush()
    other.put((1, 9, 1, 9.0))
    dashboard.subscribe("/a", subuid=1)
    world.after(1)
    assert dashboard.plain()[-1] == 11.0


def test_na53_replaced_topics_are_heard_no_longer(world, robot, dashboard):
    """A subscription that is replaced brings values of the new topics only."""
    dashboard.subscribe("/a", subuid=1)
    dashboard.subscribe("/b", subuid=1)
    robot.put((0, 1, 1, 1.0), (3, 1, 1, 2.0))
    world.after(1)
    assert dashboard.plain() == [2.0]


def test_na54_what_is_unsubscribed_brings_nothing_more(world, robot, dashboard):
    """Values that wait for their period, or for the client to read, are dropped by an unsubscribe."""
    dashboard.subscribe("/a", subuid=1, all=True)
    dashboard.subscribe("/b", subuid=2, all=True)
    robot.put((0, 1, 1, 1.0), (3, 1, 1, 2.0))
    assert dashboard.plain() == [1.0, 2.0]
    robot.put((0, 2, 1, 3.0))
    dashboard.say("unsubscribe", subuid=1)
    dashboard.engine.paused()
    robot.put((0, 3, 1, 4.0), (3, 2, 1, 5.0))
    world.after(1)
    dashboard.say("unsubscribe", subuid=2)
    dashboard.engine.resumed(world.now)
    robot.put((0, 4, 1, 6.0), (3, 3, 1, 7.0))
    world.after(1)
    assert dashboard.plain() == []


def test_nd14_unsubscribing_concerns_nobody_else(world, robot, dashboard):
    other = world.peer("other")
    for peer in (dashboard, other):
        peer.subscribe("/a", subuid=1)
    dashboard.say("unsubscribe", subuid=1)
    robot.put((0, 1, 1, 1.0))
    assert (dashboard.plain(), other.plain()) == ([], [1.0])
    dashboard.say("unsubscribe", subuid=1)
    assert world.tables.ignored["unknown_subuid"] == 1


def test_na55_nd3_topics_only_and_values_later(world, robot, dashboard):
    """A topic is announced once, and its last value is sent once, with its own time, when values are wanted."""
    robot.put((0, 5, 1, 1.0))
    dashboard.subscribe("/a", topicsonly=True)
    robot.put((0, 6, 1, 2.0))
    world.after(1)
    assert [each[0] for each in dashboard.take()] == ["announce"]
    dashboard.subscribe("/a")
    assert dashboard.take() == [("/a", 6, 1, 2.0)]


# How several subscriptions are combined


def test_na51_a_value_comes_once_however_many_want_it(world, robot, dashboard):
    """Four overlapping subscriptions, one of them with `topicsonly`, bring a value once."""
    dashboard.subscribe("/a")
    dashboard.subscribe("/", prefix=True)
    dashboard.subscribe("", prefix=True)
    dashboard.subscribe("/a", topicsonly=True)
    robot.put((0, 1, 1, 1.0))
    world.after(1)
    assert dashboard.plain() == [1.0]


def _wanting(periodic_s=0.1, *, is_all=False, is_topics_only=False):
    return Subscribe(("/a",), 1, SubscribeOptions(periodic_s, is_all, is_topics_only))


@pytest.mark.parametrize(
    ("wanted", "interest"),
    [
        ([], None),
        ([_wanting(is_topics_only=True)], None),
        ([_wanting(0.1), _wanting(0.04)], Interest(is_all=False, period_ms=20)),
        ([_wanting(0.1), _wanting(is_all=True)], Interest(is_all=True, period_ms=100)),
        ([_wanting(0.1), _wanting(0.01, is_all=True, is_topics_only=True)], Interest(is_all=False, period_ms=100)),
        ([_wanting(0.02), _wanting(0)], Interest(is_all=False, period_ms=5)),
        ([_wanting(0.01), _wanting(0)], Interest(is_all=False, period_ms=5)),
    ],
)
def test_na51_nd11_the_strongest_options_and_the_divisor_of_periods(wanted, interest):
    """The combined options are the strongest ones, except that `topicsonly` subscriptions do not count."""
    assert merged(wanted, 60.0) == interest


@pytest.mark.parametrize(
    ("periodic_s", "period_ms"),
    [
        (0, 5),
        (0.004, 5),
        (0.005, 10),
        (0.0149, 10),
        (0.015, 20),
        (0.1, 100),
        (59.996, 60_000),
        (3_600, 60_000),
        (1e300, 60_000),
    ],
)
def test_na56_nd11_periods_are_tens_of_milliseconds_and_no_less_than_5(periodic_s, period_ms):
    """Periods are rounded to 10 ms, at least 5 ms, and at most the limit, here 60 s."""
    assert period_of(periodic_s, 60.0) == period_ms


def test_na56_of_each_period_the_newest(world, robot, dashboard):
    """The first value is sent immediately, then the newest one of each period."""
    dashboard.subscribe("/a", periodic=0.05)
    beat(world, robot, 0.01, 20)
    world.after(1)
    assert dashboard.plain() == [0.0, 4.0, 9.0, 14.0, 19.0]


def test_na56_or_all_of_them(world, robot, dashboard):
    """With `all` every value is sent, in order, once a period."""
    dashboard.subscribe("/a", periodic=0.05, all=True)
    beat(world, robot, 0.01, 20)
    writes = dashboard.link.writes
    world.after(1)
    assert dashboard.plain() == [float(number) for number in range(20)]
    assert writes == 5  # the announce, the first value, and every 50 ms


@pytest.mark.parametrize("periodic", [0, 0.004, 0.015, 2, 3_600, 1e300])
def test_na57_the_announce_and_the_first_value_do_not_wait_for_the_period(robot, dashboard, periodic):
    robot.put((0, 1, 1, 1.0))
    dashboard.subscribe("/a", "/b", periodic=periodic)
    robot.put((3, 1, 1, 2.0))
    assert sorted(each[0] for each in dashboard.take()) == ["/a", "/b", "announce", "announce"]


def test_na57_the_longest_period_is_a_setting():
    world = World(max_period_s=0.5)
    robot, dashboard = world.peer("robot"), world.peer("dashboard")
    robot.publish("/a", 0)
    dashboard.subscribe("/a", periodic=1e300)
    robot.put((0, 1, 1, 1.0))
    world.flush()
    robot.put((0, 2, 1, 2.0))
    world.after(0.49)
    assert dashboard.plain() == [1.0]
    world.after(0.01)
    assert dashboard.plain() == [2.0]


# Options that change


@pytest.mark.parametrize("subuid", [1, 2])
def test_na54_nd6_stronger_options_hold_at_once(world, robot, dashboard, subuid):
    """Stronger options work immediately, in the same or another subscription; values that waited are sent first."""
    dashboard.subscribe("/a", subuid=1, periodic=10)
    robot.put((0, 1, 1, 1.0))
    world.flush()
    robot.put((0, 2, 1, 2.0))
    world.after(0.1)
    dashboard.subscribe("/a", subuid=subuid, periodic=0.05, all=True)
    assert dashboard.plain() == [1.0, 2.0]
    beat(world, robot, 0.01, 10)
    world.after(0.05)
    assert dashboard.plain() == [float(number) for number in range(10)]


@pytest.mark.parametrize("ends", ["replaced", "unsubscribed"])
def test_na54_weaker_options_hold_at_once(world, robot, dashboard, ends):
    """A weaker subscription, or one fewer, slows values down immediately; ntcore does not do this (NF7)."""
    dashboard.subscribe("/a", subuid=1, periodic=0.05, all=True)
    dashboard.subscribe("/a", subuid=2, periodic=1, topicsonly=ends == "replaced")
    beat(world, robot, 0.01, 10)
    if ends == "replaced":
        dashboard.subscribe("/a", subuid=1, periodic=1)
    else:
        dashboard.say("unsubscribe", subuid=1)
    world.flush()
    assert dashboard.plain()[:10] == [float(number) for number in range(10)]
    beat(world, robot, 0.01, 100)
    assert len(dashboard.plain()) <= 2


def test_na54_replaced_by_topics_only_it_brings_no_values(world, robot, dashboard):
    dashboard.subscribe("/a", subuid=1, all=True)
    robot.put((0, 1, 1, 1.0))
    world.flush()
    robot.put((0, 2, 1, 2.0))
    dashboard.subscribe("/a", subuid=1, topicsonly=True)
    robot.put((0, 3, 1, 3.0))
    world.after(1)
    assert dashboard.plain() == [1.0]


def test_nd10_a_changed_period_loses_nothing_of_all(world, robot, dashboard):
    """Values that wait for a period or for the client to read survive a changed period, in order."""
    dashboard.subscribe("/a", subuid=1, periodic=10, all=True)
    robot.put((0, 1, 1, 1.0))
    assert dashboard.plain() == [1.0]
    robot.put((0, 2, 1, 2.0), (0, 3, 1, 3.0))
    dashboard.subscribe("/a", subuid=2, periodic=0.02)
    dashboard.engine.paused()
    robot.put((0, 4, 1, 4.0), (0, 5, 1, 5.0))
    world.after(0.01)
    robot.put((0, 6, 1, 6.0))
    dashboard.subscribe("/a", subuid=2, periodic=0.5)
    robot.put((0, 7, 1, 7.0))
    world.after(1)
    dashboard.engine.resumed(world.now)
    assert dashboard.plain() == [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]


# Subscriptions while values wait


def test_a_value_that_waits_comes_once_to_who_subscribes_meanwhile(world, robot, dashboard):
    """A new subscriber gets a waiting value immediately, as the last one; the others get it after their period."""
    other = world.peer("other")
    other.subscribe("/a", all=True)
    robot.put((0, 1, 1, 1.0))
    assert other.plain() == [1.0]
    robot.put((0, 2, 1, 2.0))
    dashboard.subscribe("/a", all=True)
    assert dashboard.plain() == [2.0]
    world.after(1)
    assert (dashboard.plain(), other.plain()) == ([], [2.0])


def test_values_of_one_turn_come_once_to_who_subscribes_between_them(world, robot, dashboard):
    other = world.peer("other")
    other.subscribe("/a", all=True)
    robot.put((0, 1, 1, 1.0))
    dashboard.subscribe("/a", all=True)
    robot.put((0, 2, 1, 2.0))
    world.after(1)
    assert (dashboard.plain(), other.plain()) == ([1.0, 2.0], [1.0, 2.0])


# Limits


def test_a_client_has_room_for_so_many_names():
    """All subscriptions of a client share the limit of names; a replaced one makes room for its replacement."""
    world = World(subscriptions=3)
    robot, dashboard = world.peer("robot"), world.peer("dashboard")
    for number, name in enumerate(("/a", "/b", "/c", "/d")):
        robot.publish(name, number)
    dashboard.subscribe("/a", "/b", subuid=1)
    dashboard.subscribe("/c", "/d", subuid=2)
    assert announced(dashboard) == ["/a", "/b"]
    dashboard.subscribe("/c", "/d", "/e", "/f", subuid=1)  # too many, and what it would replace stays
    robot.put((0, 1, 1, 1.0))
    assert dashboard.plain() == [1.0]
    robot.say("unpublish", pubuid=1)
    robot.publish("/b", 1)
    assert announced(dashboard) == ["/b"]
    dashboard.subscribe("/a", "/c", "/d", subuid=1)
    assert announced(dashboard) == ["/c", "/d"]
    assert world.broker.hits["subscriptions"] == 2
    assert dashboard.close is None


@pytest.mark.parametrize(
    ("topics", "options"),
    [(["/" + "x" * 1_000], {}), (["/"] * 3, {}), ([], {"x": "x" * 1_000}), ([], {"x": [[]] * 1_000})],
    ids=["long names", "many names", "long options", "many options"],
)
def test_the_memory_of_subscriptions_is_bounded(topics, options):
    """Names and options of all subscriptions count; what is refused changes nothing, and what ends makes room."""
    world = World(limits=Limits(subscription_bytes=4_096))
    robot, dashboard = world.peer("robot"), world.peer("dashboard")
    for number, name in enumerate(("/a", "/b")):
        robot.publish(name, number)
    for subuid in range(2):
        dashboard.subscribe(*topics, subuid=subuid, **options)
    for subuid in (2, 1):  # a new one, and one that would replace another by a larger one
        dashboard.subscribe("/a", *topics * 2, subuid=subuid, **options, y=options)
    assert (announced(dashboard), world.broker.hits) == ([], {"subscription_bytes": 2})
    dashboard.subscribe("/a", subuid=0)
    dashboard.say("unsubscribe", subuid=1)
    dashboard.subscribe("/b", *topics, subuid=2, **options)
    assert announced(dashboard) == ["/a", "/b"]
    assert world.tables.ignored == {"too_many_subscriptions": 2}
    assert dashboard.close is None


@pytest.mark.parametrize("letter", ["x", "\u00fc", "\U0001f600"])
@pytest.mark.parametrize(("subscriptions", "topics", "chars"), [(100, 1, 5), (100, 1, 250), (3, 60, 5), (3, 60, 250)])
@pytest.mark.parametrize("options", ["{}", '{"x":[%s[]]}' % ("[]," * 500), '{"x":"%s\U0001f600"}' % ("x" * 500)])
def test_the_memory_of_subscriptions_is_not_underrated(letter, subscriptions, topics, chars, options):
    """What counts for the limit is at least what Python allocates."""
    params = '{"topics":[%s],"subuid":%d,"options":%s}'
    listens = Subscriptions(60)
    tracemalloc.start()
    for subuid in range(subscriptions):
        names = ",".join(f'"{subuid}{at}{letter * chars}"' for at in range(topics))
        text = f'[{{"method":"subscribe","params":{params % (names, subuid, options)}}}]'
        for message in read(text.encode(), 10_000, 10):
            listens.put(message)
    del message, text, names
    allocated = traced_bytes()
    tracemalloc.stop()
    assert allocated < 1.1 * listens.nbytes


def test_the_memory_of_subscriptions_is_given_back():
    """After any changes, subscriptions that have all ended take nothing."""
    listens = Subscriptions(60)
    for number in range(3):
        listens.put(
            Subscribe(
                ("/a", "/a", "\u00fc"),
                number,
                SubscribeOptions(is_prefix=number == 1, others=b"\xa1x\x01", others_count=1),
            )
        )
    assert listens.nbytes > 0
    for number in range(4):
        listens.remove(number)
    assert (listens.nbytes, listens.names) == (0, 0)


def test_subscriptions_without_names_take_room_too():
    """A subscription without names counts as one name, else such subscriptions could pile up."""
    world = World(subscriptions=3)
    dashboard = world.peer("dashboard")
    for subuid in range(5):
        dashboard.subscribe(subuid=subuid)
    assert world.broker.hits["subscriptions"] == 2
    dashboard.say("unsubscribe", subuid=0)
    dashboard.subscribe(subuid=9)
    assert world.broker.hits["subscriptions"] == 2


def test_what_rules_forbid_to_hear_is_not_there(world):
    """A topic that rules forbid is never announced and sends no values; others of the same prefix do."""

    class Rules:
        is_configured = True

        def may(self, session, verb, what, visitor=None):
            return verb != "subscribe" or what != "secret"

    world = World(rights=Rules())
    robot, dashboard = world.peer("robot"), world.peer("dashboard")
    robot.publish("/secret", 1)
    dashboard.subscribe("", "/secret", prefix=True)
    robot.publish("/open", 2)
    robot.put((1, 1, 1, 1.0), (2, 1, 1, 2.0))
    robot.say("unpublish", pubuid=1)
    robot.publish("/secret", 1)
    robot.put((1, 2, 1, 3.0))
    world.after(1)
    assert [each[0] for each in dashboard.take()] == ["announce", "/open"]


def test_nothing_is_due_while_nothing_waits(world, robot, dashboard):
    """A server without pending values has no deadline."""
    dashboard.subscribe("/a", periodic=0.01)
    robot.put((0, 1, 1, 1.0))
    world.after(1)
    assert world.server.due == inf


def test_what_is_unsubscribed_leaves_nothing_behind():
    """Names are deleted with the subscription, since clients can ask for any names."""
    subscriptions = Subscriptions(60.0)
    for subuid, is_prefix in ((1, True), (2, True), (3, False)):
        subscriptions.put(Subscribe(("/a", "/bc", "/a"), subuid, SubscribeOptions(is_prefix=is_prefix)))
    for subuid in (1, 2, 3):
        subscriptions.remove(subuid)
    assert (subscriptions.names, subscriptions._prefixes, subscriptions._exact) == (0, {}, {})
    assert not subscriptions._lengths
    assert list(subscriptions) == []
