"""Erasing: last values are dropped, with the topics that nobody publishes, and nothing waits to be recorded."""

from __future__ import annotations

import pytest
from support.memory_log import MemoryLog
from support.nt4_peers import World

from halley.broker.events import Event
from halley.broker.names import Match, Pattern
from halley.broker.ports import Erasure
from halley.protocols.nt4.names import to_own

ROBOT = Erasure(Pattern(Match.DESCENDANTS, "robot"), None)


@pytest.fixture
def world():
    return World(record_every_s=60.0)


def published(world, peer, name, value, pubuid=1, **properties):
    peer.publish(name, pubuid, **properties)
    peer.put((pubuid, 1, 1, value))
    world.flush()


def last(world):
    """Return the last values that a new subscriber gets, by name."""
    late = world.peer("late")
    late.subscribe("", prefix=True)
    found = {name: value for name, _, _, value in late.values()}
    late.engine.lost(world.now)
    return found


def topics(world):
    return {topic.name for topic in world.tables.topics if not topic.name.startswith("$")}


def test_a_topic_that_is_published_stays_without_its_value(world):
    """Its next value is its last one again."""
    robot = world.peer("robot")
    published(world, robot, "/robot/x", 1.0)
    published(world, robot, "/other", 2.0, 2)
    world.server.erase(ROBOT, world.now)
    assert last(world) == {"/other": 2.0}
    assert topics(world) == {"/robot/x", "/other"}
    robot.put((1, 2, 1, 3.0))
    assert last(world) == {"/robot/x": 3.0, "/other": 2.0}


@pytest.mark.parametrize("properties", [{"persistent": True}, {"retained": True}])
def test_a_topic_that_nobody_publishes_is_deleted(world, properties):
    """Its clients are notified; it is to be removed from the file."""
    robot, dashboard = world.peer("robot"), world.peer("dashboard")
    published(world, robot, "/robot/x", 1.0, **properties)
    dashboard.subscribe("", prefix=True)
    dashboard.take()
    robot.engine.lost(world.now)
    world.flush()
    world.tables.has_unsaved = False
    world.server.erase(ROBOT, world.now)
    assert [method for method, _ in dashboard.texts()] == ["unannounce"]
    assert topics(world) == set()
    assert world.tables.has_unsaved is ("persistent" in properties)


def test_a_publishers_values_are_known_after_it_has_gone(world):
    """Only values whose last publisher it was are erased, however they came."""
    for name in ("robot", "other"):
        peer = world.peer(name)
        published(world, peer, f"/{name}", 1.0, persistent=True)
        peer.engine.lost(world.now)
    world.broker.publish(Event("robot", b"2.0", authid="ann"), world.now)
    world.flush()
    world.server.erase(Erasure(None, "robot"), world.now)
    assert last(world) == {"/robot": 2.0, "/other": 1.0}
    world.server.erase(Erasure(None, "ann"), world.now)
    assert last(world) == {"/other": 1.0}


@pytest.mark.parametrize("erasure", [ROBOT, Erasure(None, "robot")], ids=["channel", "publisher"])
def test_a_value_that_waits_to_be_recorded_is_not_recorded_later(world, erasure):
    """Neither when its time has come nor when the server closes."""
    log = MemoryLog(world.broker)
    robot, other = world.peer("robot"), world.peer("other")
    for value in (1.0, 2.0):
        published(world, robot, "/robot/x", value)
        published(world, other, "/other", value)
    log.commit(now=world.now)
    world.server.erase(erasure, world.now)
    world.after(120)
    world.server.bridge.record_all(world.now)
    log.commit(now=world.now)
    recorded = [(event.topic, event.payload) for event in log.events]
    assert recorded == [("robot/x", b"1.0"), ("other", b"1.0"), ("other", b"2.0")]


def test_names_of_networktables_own_and_meta_topics(world):
    """Names that other protocols do not have are erased by their topics in access rules; meta topics stay."""
    robot, dashboard = world.peer("robot"), world.peer("dashboard")
    dashboard.subscribe("$clients")
    published(world, robot, "own", 1.0)
    for everything in (Pattern(Match.DESCENDANTS, to_own("")), Pattern(Match.DESCENDANTS, "")):
        world.server.erase(Erasure(everything, None), world.now)
    assert {topic.name for topic in world.tables.topics if topic.frame is not None} == {"$clients"}
