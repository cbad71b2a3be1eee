"""The values that wait for a client that does not read (NA56, ND10, ND14)."""

import pytest
from support.nt4_peers import World

from halley.protocols.nt4.pacing import Backlog
from halley.protocols.nt4.topics import Topic


@pytest.fixture
def topic():
    return new_topic()


def new_topic(name="t"):
    topic = Topic(name, 1, "int", {}, None, name)
    topic.frame = b"none"
    return topic


def frames(*names):
    return [name.encode() * 10 for name in names]


def test_all_wait_in_order_while_they_are_few(topic):
    backlog = Backlog(1_000)
    backlog.put(topic, frames("a", "b"), is_all=True)
    backlog.put(topic, frames("c"), is_all=True)
    assert backlog.take(1_000) == frames("a", "b", "c")
    assert (len(backlog), backlog.conflated) == (0, 0)


def test_where_only_the_newest_is_wanted_nothing_counts_as_dropped(topic):
    backlog = Backlog(1_000)
    backlog.put(topic, frames("a"), is_all=False)
    backlog.put(topic, frames("b", "c"), is_all=False)
    assert backlog.take(1_000) == frames("c")
    assert backlog.conflated == 0


def test_nd10_beyond_the_bound_each_topic_keeps_the_newest_until_all_has_left(topic):
    """The newest values do not count towards the bound; dropped values are counted."""
    backlog, other = Backlog(20), new_topic()
    backlog.put(other, frames("x", "y"), is_all=True)
    backlog.put(topic, frames("a", "b"), is_all=True)
    assert backlog.conflated == 0  # two older values, twenty bytes
    backlog.put(topic, frames("c"), is_all=True)
    assert backlog.conflated == 3
    backlog.put(topic, frames("d"), is_all=True)
    assert backlog.conflated == 4
    assert backlog.take(1_000) == frames("y", "d")
    backlog.put(topic, frames("e", "f"), is_all=True)
    assert backlog.take(1_000) == frames("e", "f")


def test_nd10_it_shrinks_by_what_leaves(topic):
    """Values that are taken, dropped or thinned out all make room for as many bytes again."""
    backlog, other = Backlog(20), new_topic()
    backlog.put(topic, frames("a", "b", "c"), is_all=True)
    backlog.drop(topic)
    backlog.put(topic, frames("a", "b", "c"), is_all=True)
    backlog.put(topic, frames("d"), is_all=False)
    backlog.put(other, frames("a", "b", "c"), is_all=True)
    assert backlog.take(1_000) == frames("d", "a", "b", "c")
    backlog.put(topic, frames("e", "f", "g"), is_all=True)
    assert backlog.take(1_000) == frames("e", "f", "g")
    assert backlog.conflated == 0


def test_a_part_is_taken_topic_by_topic_the_longest_waiting_first(topic):
    """The values of one topic are taken together, even if they are more than was asked for."""
    backlog, other = Backlog(1_000), new_topic()
    backlog.put(topic, frames("a"), is_all=True)
    backlog.put(other, frames("x"), is_all=True)
    backlog.put(topic, frames("b"), is_all=True)
    assert backlog.take(1) == frames("a", "b")
    assert len(backlog) == 1
    assert backlog.take(1) == frames("x")
    assert backlog.take(1) == []


@pytest.mark.parametrize("is_all", [True, False])
def test_nd10_the_newest_is_that_by_time(topic, is_all):
    """The value that arrives last may be older: the topic knows which one is the newest (NA40)."""
    backlog = Backlog(5)
    newest, older = frames("n", "o")
    topic.frame = newest
    backlog.put(topic, [newest], is_all=is_all)
    backlog.put(topic, [older], is_all=is_all)
    assert backlog.take(1_000) == [newest]


def test_nothing_is_nothing(topic):
    backlog = Backlog(1_000)
    backlog.put(topic, [], is_all=True)
    assert len(backlog) == 0
    assert backlog.drop(topic) == []


# With a client


@pytest.fixture
def world():
    return World(queue_bytes=1_024)


@pytest.fixture
def robot(world):
    peer = world.peer("robot")
    peer.publish("/a", 1)
    peer.publish("/b", 2)
    return peer


def stalled(world, **options):
    peer = world.peer("slow")
    peer.subscribe("/", prefix=True, **options)
    peer.take()
    peer.engine.paused()
    return peer


def test_nd14_a_slow_client_gets_all_of_a_little(world, robot):
    """A paused client later gets every one of a few values, and they are counted as delivered."""
    slow = stalled(world, all=True)
    for number in range(1, 20):
        robot.put((1, number, 1, float(number)))
        world.after(0.1)
    assert slow.take() == []
    slow.engine.resumed(world.now)
    assert slow.plain() == [float(number) for number in range(1, 20)]
    assert slow.engine.client.output.backlog.conflated == 0
    assert world.tables.flow.delivered == 19


def test_nd14_a_slow_client_gets_the_newest_of_much(world, robot):
    """A paused client later gets each topic's newest value and stays connected; no other client waits for it."""
    slow, quick = stalled(world, all=True), world.peer("quick")
    quick.subscribe("/", prefix=True, all=True)
    for number in range(1, 201):
        robot.put((1, number, 1, float(number)), (2, number, 1, -float(number)))
        world.after(0.1)
    slow.engine.resumed(world.now)
    assert slow.plain() == [200.0, -200.0]
    assert slow.engine.client.output.backlog.conflated == 398
    assert len(quick.plain()) == 400
    robot.put((1, 300, 1, 300.0), (1, 301, 1, 301.0))
    world.after(0.1)
    assert slow.plain() == [300.0, 301.0]
    assert slow.close is None


def test_nd10_a_slow_client_ends_with_the_newest_by_time(world, robot):
    """An older value that arrives a period later does not replace the newest one."""
    other = world.peer("other")
    other.publish("/a", 1)
    slow = stalled(world)
    robot.put((1, 10, 1, 10.0))
    world.after(0.1)
    other.put((1, 9, 1, 9.0))
    world.after(0.1)
    slow.engine.resumed(world.now)
    assert slow.plain() == [10.0]


def test_a_large_backlog_is_written_in_parts():
    """Other clients are served between the parts, and values that arrive meanwhile are sent after the backlog."""
    world = World()
    robot, slow = world.peer("robot"), world.peer("slow")
    for number in range(6):
        robot.publish(f"/{number}", number, "raw")
    slow.subscribe("/", prefix=True, all=True)
    slow.take()
    slow.engine.paused()
    robot.put(*((number, 1, 5, bytes([number]) * 10_000) for number in range(6)))
    world.after(0.1)
    slow.engine.resumed(world.now)
    assert [value[0] for value in slow.plain()] == [0, 1]
    robot.put((5, 2, 5, b"\x09"))
    assert [value[0] for value in slow.plain()] == [2, 3]
    world.after(0.1)
    assert [value[0] for value in slow.plain()] == [4, 5, 9]


def test_the_last_value_does_not_take_the_place_of_what_waits(world, robot):
    """A client that wants all values and subscribes again gets its waiting values, then the last one, here its own."""
    slow = stalled(world, all=True, subuid=1)
    slow.publish("/a", 1)
    robot.put((1, 1, 1, 1.0), (1, 2, 1, 2.0))
    world.after(0.1)
    slow.put((1, 3, 1, 3.0))
    slow.subscribe("/", subuid=1, prefix=True, all=True)
    slow.engine.resumed(world.now)
    assert slow.plain() == [1.0, 2.0, 3.0]


def test_control_messages_of_a_client_that_does_not_read_have_a_bound():
    """A client with more than `control_bytes` unread is closed with 1008, and its topics end."""
    world = World(control_bytes=65_536)
    robot, slow, watcher = world.peer("robot"), world.peer("slow"), world.peer("watcher")
    slow.publish("/mine", 1)
    for peer in (slow, watcher):
        peer.subscribe("/", prefix=True)
        peer.take()
    slow.engine.paused()
    slow.link.backlog_bytes = 65_536
    robot.publish("/a", 1)
    assert slow.close is None
    slow.link.backlog_bytes = 65_537
    robot.publish("/b", 2)
    assert (slow.close.code, slow.close.reason) == (1008, "too many bytes wait to be sent to this client")
    assert world.broker.closed == {"slow_consumer": 1}
    assert world.broker.hits["control_bytes"] == 1
    assert watcher.texts()[-1] == ("unannounce", {"name": "/mine", "id": 1})
    robot.publish("/c", 3)
    world.flush()  # asserts that nothing is written after the close


def test_a_client_that_reads_may_have_much_on_its_way():
    """Unsent bytes alone close no client: only one that is paused counts as too slow."""
    world = World(control_bytes=65_536)
    robot, quick = world.peer("robot"), world.peer("quick")
    quick.subscribe("/", prefix=True)
    quick.link.backlog_bytes = 1_000_000
    robot.publish("/a", 1)
    assert quick.close is None
