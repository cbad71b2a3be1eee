"""Long work is done in turns, so that no other client waits; nothing is lost or mixed up by that (S31)."""

import pytest
from support.nt4_peers import World

TOPICS = 2_000


@pytest.fixture
def world():
    return World()


@pytest.fixture
def robot(world):
    peer = world.peer("robot")
    for number in range(TOPICS):
        peer.publish(f"/many/{number:04}", number)
        peer.put((number, 1, 1, float(number)))
    peer.take()
    return peer


def turns(world):
    """Do the remaining work and return the number of turns that it took."""
    count = 0
    while world.server.due <= world.now:
        world.server.turn(world.now)
        count += 1
    return count


def test_a_subscription_to_everything_is_seen_to_in_turns(world, robot):
    """NA50: each topic is announced and then has its last value; none is sent twice, none is left out."""
    dashboard = world.peer("dashboard")
    dashboard.subscribe("", prefix=True)
    assert turns(world) > 2
    names = [name for name, *_ in dashboard.values()]
    while more := dashboard.values():
        names += [name for name, *_ in more]
    assert sorted(names) == [f"/many/{number:04}" for number in range(TOPICS)]


def test_every_turn_is_for_what_waits(world, robot):
    """S31: while a subscription is processed there is only one task, so no turn is wasted."""
    dashboard = world.peer("dashboard")
    dashboard.subscribe("", prefix=True)
    while world.server.due <= world.now:
        world.server.turn(world.now)
        assert len(world.tables.tasks) <= 1
    assert len(dashboard.engine.client.announced) == TOPICS


def test_what_is_no_longer_wanted_by_then_is_not_sent(world, robot):
    """NA54: a subscription that ends before its turn has come brings nothing more."""
    dashboard = world.peer("dashboard")
    dashboard.subscribe("", prefix=True, subuid=1)
    dashboard.say("unsubscribe", subuid=1)
    heard = [name for name, *_ in dashboard.values()]
    assert heard == []
    robot.put((TOPICS - 1, 2, 1, 7.0))
    world.after(1.0)
    assert dashboard.values() == []
    assert not dashboard.engine.client.output.streams


def test_many_subscriptions_at_once_bring_a_value_once(world, robot):
    """NA51, NA52: five subscriptions that wait for their turns at the same time bring each value once."""
    dashboard = world.peer("dashboard")
    for subuid in range(5):
        dashboard.subscribe("", prefix=True, subuid=subuid)
    heard = []
    while more := dashboard.values():
        heard += more
    assert len(heard) == TOPICS


def test_the_topics_of_a_client_that_has_left_go_in_turns(world, robot):
    """NA35: all topics of a lost client end, and each client that they were announced to gets the unannounces."""
    dashboard = world.peer("dashboard")
    dashboard.subscribe("", prefix=True, topicsonly=True)
    assert len(dashboard.texts()) == TOPICS
    robot.engine.lost(world.now)
    assert len(world.tables.topics) > 0
    assert turns(world) > 2
    assert [method for method, _ in dashboard.texts()] == ["unannounce"] * TOPICS
    assert len(world.tables.topics) == 0


def test_who_comes_back_meanwhile_finds_the_topics(world, robot):
    """ND13: if a robot reconnects and publishes its topics while the old ones are ended, all exist afterwards."""
    robot.engine.lost(world.now)
    again = world.peer("robot")
    for number in range(TOPICS):
        again.publish(f"/many/{number:04}", number)
    turns(world)
    assert len(world.tables.topics) == TOPICS
    assert all(len(topic.publishers) == 1 for topic in world.tables.topics)


def test_a_thousand_prefixes_of_one_name_cost_no_more_than_one(world, robot):
    """A subscription with 1,220 prefixes, most of them equal, announces each topic once."""
    names = ["/many/" + "0" * length for length in range(4)] * 300 + ["", "$"] * 10
    dashboard = world.peer("dashboard")
    dashboard.subscribe(*names, prefix=True, topicsonly=True)
    told = [params["name"] for method, params in dashboard.texts() if method == "announce"]
    assert len(told) == len(set(told)) > TOPICS


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ({"topics": ["/" + "n" * 1_024]}, "name_too_long"),
        ({"topics": ["/n"], "options": {"unknown": "o" * 8_192}}, "options_too_large"),
    ],
)
def test_s31_a_subscription_has_bounds(world, what, reason):
    """Names and options have a limit: ten thousand subscriptions, a client's limit, would be gigabytes otherwise."""
    peer = world.peer()
    peer.say("subscribe", subuid=1, **what)
    assert (world.tables.ignored[reason], len([*peer.engine.client.subscribed])) == (1, 0)


def test_s31_so_has_a_type(world):
    """The length of a type has a limit, since the type is kept with its topic."""
    peer = world.peer()
    peer.publish("/typed", 1, "t" * 1_025)
    assert (world.tables.ignored["name_too_long"], len(world.tables.topics)) == (1, 0)
