"""New access rules in NetworkTables: topics that they no longer grant end for a client, and others begin."""

from __future__ import annotations

import pytest
from support.nt4_peers import World

from halley.access.rules import AccessRules, Rule
from halley.protocols.bayeux.names import NameLimits, to_pattern

DOUBLE = 1


def rules(**patterns):
    """Rules that grant `nt4` these verbs, each on a list of patterns."""
    bounds = NameLimits(255, 16)
    pairs = [(verb, pattern) for verb, several in patterns.items() for pattern in several]
    return AccessRules([Rule("nt4", verb, to_pattern(pattern, bounds), True) for verb, pattern in pairs])


def change(world, **patterns):
    """Have these rules count instead; return the numbers of ended sessions and subscriptions."""
    world.tables.rights = rules(**patterns)
    return world.broker.rights_changed(lambda _: True, world.now)


ALL = {"publish": ["/**"], "subscribe": ["/**"]}


@pytest.fixture
def world():
    return World(rights=rules(**ALL))


@pytest.fixture
def robot(world):
    """A client that publishes 1.5 on `/a/x` and 2.5 on `/b`."""
    robot = world.peer("robot")
    robot.publish("/a/x", 1)
    robot.publish("/b", 2)
    robot.put((1, 0, DOUBLE, 1.5), (2, 0, DOUBLE, 2.5))
    robot.take()
    return robot


def board(world, **options):
    """A client that has subscribed to everything, and has received it."""
    board = world.peer("board")
    board.subscribe("/", prefix=True, **options)
    world.after(0.2)
    board.take()
    return board


def test_a_topic_ends_for_whom_it_is_no_longer_granted(world, robot):
    """`unannounce`, and no further value; other topics go on, and its publisher keeps it."""
    hearer = board(world)
    assert change(world, publish=["/**"], subscribe=["/b"]) == (0, 1)
    assert [(method, params["name"]) for method, params in hearer.take()] == [("unannounce", "/a/x")]
    robot.put((1, 5, DOUBLE, 3.5), (2, 5, DOUBLE, 4.5))
    world.after(0.2)
    assert hearer.plain() == [4.5]
    assert robot.take() == []
    assert change(world, publish=["/**"], subscribe=["/b"]) == (0, 0)


@pytest.mark.parametrize("way", ["in their period", "unread"])
def test_waiting_values_are_not_sent(way, world, robot):
    """Values that wait for their period, or for a client that does not read, are dropped with the topic."""
    hearer = board(world, periodic=1.0, all=True)
    if way == "unread":
        hearer.engine.paused()
    robot.put((1, 5, DOUBLE, 3.5), (2, 5, DOUBLE, 4.5), (1, 6, DOUBLE, 5.5))
    if way == "unread":
        world.after(2.0)
    change(world, publish=["/**"], subscribe=["/b"])
    if way == "unread":
        hearer.engine.resumed(world.now)
    world.after(2.0)
    assert hearer.plain() == [4.5]


def test_what_is_granted_begins(world, robot):
    """A subscription that covers more than the rules gets the topic with its last value once they grant it."""
    change(world, publish=["/**"], subscribe=["/b"])
    hearer = board(world)
    robot.put((1, 5, DOUBLE, 3.5))
    change(world, **ALL)
    world.after(0.2)
    (announce, (name, _, _, value)) = hearer.take()
    assert announce[0] == "announce"
    assert (name, value) == ("/a/x", 3.5)


def test_a_publisher_without_the_right_is_no_longer_heard(world, robot):
    """Its values are ignored, and a topic that nobody else publishes ends for all."""
    hearer = board(world)
    change(world, publish=["/b"], subscribe=["/**"])
    robot.put((1, 5, DOUBLE, 3.5), (2, 5, DOUBLE, 4.5))
    world.after(0.2)
    heard = hearer.take()
    assert [(each[0], each[1]["name"]) for each in heard if len(each) == 2] == [("unannounce", "/a/x")]
    assert [each[3] for each in heard if len(each) == 4] == [4.5]
    assert world.tables.ignored["unknown_pubuid"] == 1


def test_a_publisher_that_may_not_subscribe_any_more(world, robot):
    """It goes on to publish, without an `unannounce`, and gets no values of others."""
    robot.subscribe("/a/x")
    other = world.peer("other")
    other.publish("/a/x", 1)
    robot.take()
    other.take()
    change(world, publish=["/**"], subscribe=["/b"])
    other.put((1, 5, DOUBLE, 3.5))
    world.after(0.2)
    assert robot.take() == []
    robot.put((1, 6, DOUBLE, 4.5))
    assert world.tables.topics.get("/a/x").value == 4.5
