"""When values are sent, and in how many writes (NA9, NA56, NA57)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.nt4_peers import World


def playing(periodic=0.1, *names, **options):
    """A world, a robot that publishes `/a` and `/b` by pubuids 1 and 2, and a dashboard subscribed to both."""
    world = World()
    robot, dashboard = world.peer("robot"), world.peer("dashboard")
    robot.publish("/a", 1)
    robot.publish("/b", 2)
    dashboard.subscribe("/", prefix=True, periodic=periodic, **options)
    for peer in (robot, dashboard):
        peer.take()
    return world, robot, dashboard


def test_ticks_keep_their_beat():
    """A flush that is a little late does not delay the next one."""
    world, robot, dashboard = playing(0.1, all=True)
    began = world.now
    robot.put((1, 1, 1, 1.0))
    assert dashboard.plain() == [1.0]
    for late_s in (0.03, 0.08, 0.0):
        robot.put((1, 1, 1, 2.0))
        assert dashboard.plain() == []
        world.now = world.server.due + late_s
        assert dashboard.plain() == [2.0]
    assert world.now == pytest.approx(began + 0.3)


def test_what_comes_after_a_rest_goes_out_at_once():
    """A value that follows more than a period of silence is sent immediately; the next waits for a whole period."""
    world, robot, dashboard = playing(0.1)
    robot.put((1, 1, 1, 1.0))
    assert dashboard.plain() == [1.0]
    world.after(0.2001)
    robot.put((1, 2, 1, 2.0))
    assert dashboard.plain() == [2.0]
    robot.put((1, 3, 1, 3.0))
    world.after(0.0999)
    assert dashboard.plain() == []
    world.after(0.0002)
    assert dashboard.plain() == [3.0]


def test_periods_of_clients_do_not_concern_each_other():
    """Each client gets a topic's values at its own period."""
    world, robot, slow = playing(1, all=True)
    quick = world.peer("quick")
    quick.subscribe("/", prefix=True, periodic=0.01, all=True)
    for number in range(10):
        robot.put((1, 1, 1, float(number)))
        world.after(0.02)
    assert quick.plain() == [float(number) for number in range(10)]
    assert slow.plain() == [0.0]
    world.after(1)
    assert slow.plain() == [float(number) for number in range(1, 10)]


@given(steps=st.lists(st.integers(0, 60), min_size=1, max_size=60), is_all=st.booleans())
def test_one_write_for_each_client_and_period_at_most(steps, is_all):
    """Each period has at most one write, with all values received before it, however they are spread."""
    world, robot, dashboard = playing(0.02, all=is_all)
    written_at, begun = [], dashboard.link.writes
    for number, step in enumerate(steps):
        robot.put((1, 1, 1, float(number)), (2, 1, 1, float(number)))
        for _ in range(step):
            world.after(0.001)
            if dashboard.link.writes != begun:
                assert dashboard.link.writes == begun + 1
                begun += 1
                written_at.append(world.now)
    world.after(0.021)
    heard = dashboard.plain()
    if is_all:
        assert sorted(heard) == sorted([*map(float, range(len(steps)))] * 2)
    else:
        assert heard[-2:] == [float(len(steps) - 1)] * 2
    for first, second, third in zip(written_at, written_at[1:], written_at[2:], strict=False):
        assert third - first > 0.0185, "two more within one period"
        assert third > second > first


def test_one_write_whatever_the_number_of_values_and_topics():
    """Values are sent in frames of about one packet, all in one write (NA9); a long value has its own frame."""
    world, robot, dashboard = playing(0.1, all=True)
    robot.publish("/raw", 3, "raw")
    dashboard.take()
    writes = dashboard.link.writes
    robot.put(*((1 + number % 2, 1, 1, float(number)) for number in range(1_000)), (3, 1, 5, b"x" * 5_000))
    world.flush()
    sizes = [len(message) for is_binary, message in dashboard.link.frames if is_binary]
    assert dashboard.link.writes == writes + 1
    assert all(1_300 <= size <= 1_380 for size in sizes[:-2])
    assert sizes[-1] > 5_000


def test_all_over_several_topics_come_in_the_order_in_which_they_came():
    """Values of several topics keep their order; a program that sets a flag after its data relies on it."""
    world, robot, dashboard = playing(0.1, all=True)
    robot.put((1, 1, 1, 0.0))
    assert dashboard.plain() == [0.0]
    robot.put(*((1 + number % 2, 1, 1, float(number)) for number in range(10)))
    world.after(0.1)
    assert dashboard.plain() == [float(number) for number in range(10)]


class Recorder:
    """Notes the objects that a link is given to write, so that they can be compared by identity."""

    def __init__(self, link):
        self.written = []
        self._answer = link.write
        link.write = self

    def __call__(self, outcome):
        self.written += outcome
        self._answer(outcome)


def test_what_clients_get_alike_is_put_together_once():
    """Clients with the same subscription get the same bytes object, so the cost does not grow with the values."""
    world, robot, _ = playing()
    alike = [world.peer("alike") for _ in range(3)]
    for peer in alike:
        peer.subscribe("/", prefix=True, all=True, periodic=0.05)
        peer.take()
    recorders = [Recorder(peer.link) for peer in alike]
    robot.put((1, 1, 1, 1.0), (2, 1, 1, 2.0))
    world.flush()
    first, *others = [recorder.written for recorder in recorders]
    assert len(first) == 1
    assert all(len(other) == 1 and other[0] is first[0] for other in others)
    assert world.tables.flow.delivered == 8  # with the dashboard's
    assert world.tables.pacing.flushes == 4


def test_who_publishes_among_others_gets_what_the_others_wrote():
    """NA38: a client that publishes and subscribes gets the other client's values and not its own."""
    world, robot, dashboard = playing(0.1, all=True)
    robot.subscribe("/", prefix=True, all=True, periodic=0.1)
    dashboard.publish("/a", 1)
    robot.put((1, 1, 1, 1.0))
    dashboard.put((1, 2, 1, 2.0))
    robot.put((2, 3, 1, 3.0))
    world.after(0.1)
    assert (robot.plain(), dashboard.plain()) == ([2.0], [1.0, 3.0])
    robot.put((1, 4, 1, 4.0))
    world.after(0.1)
    assert (robot.plain(), dashboard.plain()) == ([], [4.0])


def test_of_ones_own_values_there_is_no_empty_write():
    world, robot, _ = playing()
    robot.subscribe("/", prefix=True)
    writes = robot.link.writes
    robot.put((1, 1, 1, 1.0))
    world.after(1)
    assert robot.link.writes == writes


def test_values_that_take_much_memory_do_not_wait_for_their_period():
    """A client's waiting values are sent before its period ends once they exceed `queue_bytes`."""
    world = World(queue_bytes=4_096)
    robot, dashboard = world.peer("robot"), world.peer("dashboard")
    robot.publish("/a", 1, "raw")
    dashboard.subscribe("/a", all=True, periodic=60)
    robot.put((1, 1, 5, b"first"))
    assert dashboard.plain() == [b"first"]
    robot.put((1, 2, 5, b"x" * 2_000), (1, 3, 5, b"x" * 2_000))
    assert dashboard.plain() == []
    robot.put((1, 4, 5, b"x" * 100))
    assert len(dashboard.plain()) == 3
    robot.put((1, 5, 5, b"later"))
    assert dashboard.plain() == []
    world.after(60)
    assert dashboard.plain() == [b"later"]


def test_a_period_that_nobody_wants_is_forgotten():
    """Clients can ask for any period, so a period that no client wants any more is deleted."""
    world, robot, dashboard = playing(0.1)
    for number in range(1, 50):
        dashboard.subscribe("/", subuid=1, prefix=True, periodic=number / 100)
        robot.put((1, 1, 1, 1.0))
        world.after(0.01)
    dashboard.engine.lost(world.now)
    assert world.tables.pacing._paces == {}
    assert world.tables.pacing._streams == {}


def test_a_topic_that_has_gone_leaves_nothing_behind():
    """When a topic ends, neither its subscribers nor the periods keep anything of it."""
    world, robot, dashboard = playing(0.1)
    for pubuid in (1, 2):
        robot.put((pubuid, 1, 1, 1.0))
        robot.say("unpublish", pubuid=pubuid)
    client = dashboard.engine.client
    assert (client.output.streams, client.announced, len(client.output.backlog)) == ({}, {}, 0)
    assert world.tables.pacing._paces == {}
