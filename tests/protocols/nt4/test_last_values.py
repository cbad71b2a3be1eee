"""Which value is a topic's last one: it depends on the time and on the writer (NA39 to NA43)."""

import gc

import pytest
from support.nt4_peers import NOW_US, World

from halley.protocols.nt4.session import Client


def last(world, name="/x"):
    """The topic's last value as a new subscriber gets it: a list of (time, value), empty if there is none."""
    late = world.peer("late")
    late.subscribe(name)
    found = late.values()
    late.engine.lost(world.now)
    return [(time_us, value) for _, time_us, _, value in found]


@pytest.fixture
def world():
    return World()


@pytest.fixture
def writers(world):
    peers = world.peer("one"), world.peer("two")
    for peer in peers:
        peer.publish("/x", 1)
    return peers


def test_na39_a_value_that_is_not_older_replaces(world, writers):
    """A value of the same time as the last one replaces it."""
    one, two = writers
    one.put((1, 10, 1, 1.0))
    two.put((1, 10, 1, 2.0))
    assert last(world) == [(10, 2.0)]


def test_na39_an_older_one_of_somebody_else_does_not(world, writers):
    one, two = writers
    one.put((1, 10, 1, 1.0))
    two.put((1, 9, 1, 2.0))
    assert last(world) == [(10, 1.0)]


def test_na39_an_older_one_of_the_same_client_does(world, writers):
    """Ntcore's exception for clients whose clocks are wrong (G7)."""
    one, _ = writers
    one.put((1, 10, 1, 1.0))
    one.put((1, 9, 1, 2.0))
    assert last(world) == [(9, 2.0)]


def test_na40_older_values_are_forwarded_all_the_same(world, writers):
    """A value that is older than the last one is forwarded to subscribers."""
    one, two = writers
    dashboard = world.peer("dashboard")
    dashboard.subscribe("/x", all=True)
    one.put((1, 10, 1, 1.0))
    world.after(1)
    two.put((1, 9, 1, 2.0))
    world.after(1)
    assert dashboard.plain() == [1.0, 2.0]


def test_na41_nd5_a_default_yields_to_any_real_value_even_a_negative_time(world, writers):
    one, two = writers
    one.put((1, 0, 1, 1.0))
    two.put((1, -10, 1, 2.0))
    assert last(world) == [(-10, 2.0)]


@pytest.mark.parametrize("writer", [0, 1])
def test_na41_a_default_never_replaces_a_real_value(world, writers, writer):
    """A value of time 0 does not replace a real value, not even one of the same client."""
    one, _ = writers
    one.put((1, 10, 1, 1.0))
    writers[writer].put((1, 0, 1, 2.0))
    assert last(world) == [(10, 1.0)]


def test_g7_a_clock_that_is_far_ahead_does_not_freeze_a_topic(world, writers):
    """A time in the far future is treated as one second ahead when values are compared, and is forwarded unchanged."""
    one, two = writers
    one.put((1, NOW_US + 3_600_000_000, 1, 1.0))
    two.put((1, NOW_US + 500_000, 1, 2.0))
    assert last(world) == [(NOW_US + 3_600_000_000, 1.0)]
    world.now += 2
    two.put((1, NOW_US + 2_000_000, 1, 3.0))
    assert last(world) == [(NOW_US + 2_000_000, 3.0)]


def test_na42_a_topic_that_is_not_cached_has_no_last_value(world):
    """After `cached` is switched on again, the next value is the last one."""
    robot = world.peer("robot")
    robot.publish("/x", 1, cached=False)
    robot.put((1, 10, 1, 1.0))
    assert last(world) == []
    robot.say("setproperties", name="/x", update={"cached": True})
    assert last(world) == []
    robot.put((1, 11, 1, 2.0))
    assert last(world) == [(11, 2.0)]
    robot.say("setproperties", name="/x", update={"cached": False})
    assert last(world) == []


def test_na42_what_is_not_cached_is_forwarded(world):
    robot, dashboard = world.peer("robot"), world.peer("dashboard")
    dashboard.subscribe("/x")
    robot.publish("/x", 1, cached=False)
    robot.put((1, 10, 1, 1.0))
    assert dashboard.values() == [("/x", 10, 1, 1.0)]


def test_na38_one_gets_ones_own_last_value_but_not_ones_own_live_ones(world, writers):
    one, two = writers
    one.put((1, 10, 1, 1.0))
    one.subscribe("/x", all=True)
    assert one.values() == [("/x", 10, 1, 1.0)]
    one.put((1, 11, 1, 2.0))
    two.put((1, 12, 1, 3.0))
    world.after(1)
    assert one.plain() == [3.0]


def test_last_values_take_so_much_memory_and_no_more():
    """A value beyond `last_bytes` is forwarded but not kept; a topic that ends makes room."""
    world = World(last_bytes=1_024)
    robot, dashboard = world.peer("robot"), world.peer("dashboard")
    dashboard.subscribe("/", prefix=True)
    robot.publish("/a", 1, "raw")
    robot.publish("/b", 2, "raw")
    robot.put((1, 1, 5, b"a" * 600), (2, 1, 5, b"b" * 600))
    assert dashboard.plain() == [b"a" * 600, b"b" * 600]
    assert (len(last(world, "/a")), last(world, "/b")) == (1, [])
    assert world.broker.hits["last_bytes"] == 1
    robot.say("unpublish", pubuid=1)
    robot.put((2, 2, 5, b"c" * 600))
    assert last(world, "/b") == [(2, b"c" * 600)]


def test_a_last_value_that_is_replaced_takes_no_more_memory():
    """Replacing a topic's last value many times does not use up `last_bytes`."""
    world = World(last_bytes=1_024)
    robot = world.peer("robot")
    robot.publish("/x", 1, "raw")
    for time_us in range(1, 10):
        robot.put((1, time_us, 5, b"a" * 600))
    assert [time_us for time_us, _ in last(world)] == [9]
    assert world.broker.hits["last_bytes"] == 0


def test_whoever_is_gone_is_not_remembered_for_a_value(world):
    """A retained topic keeps its value but no reference to the client that wrote it, which it can outlive by days."""
    robot = world.peer("robot")
    robot.publish("/x", 1, retained=True)
    robot.put((1, 10, 1, 1.0))
    robot.engine.lost(world.now)
    world.flush()
    del robot
    gc.collect()
    assert "robot" not in [each.name for each in gc.get_objects() if isinstance(each, Client)]
    assert last(world) == [(10, 1.0)]
