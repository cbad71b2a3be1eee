"""How often and when each topic was published to, for a bounded number of topics."""

from __future__ import annotations

from support.broker import event

from halley.broker.broker import Broker
from halley.broker.flow import RecentTopics
from halley.settings import Limits


def test_topics_are_counted_and_the_busiest_last_comes_first():
    broker = Broker(Limits())
    for now, topic in enumerate(["a", "b", "a"], start=1):
        broker.publish(event(topic=topic), float(now))
    assert [(topic, trace.published, trace.last) for topic, trace in broker.activity.latest()] == [
        ("a", 2, 3.0),
        ("b", 1, 2.0),
    ]


def test_what_the_server_announces_is_nobodys_activity():
    """Events that the server itself announces do not count as activity of their topics."""
    broker = Broker(Limits())
    broker.announce(event(topic="halley/rates"), 1.0)
    assert list(broker.activity.latest()) == []


def test_who_has_rested_longest_is_forgotten_and_its_events_are_not():
    """A fifth topic displaces the idle one of four; a thousand made-up names never take more than four places."""
    activity = RecentTopics(4)
    for now, topic in enumerate("abcd", start=1):
        activity.note(topic, float(now))
    activity.note("a", 5.0)
    activity.note("e", 6.0)
    assert [topic for topic, _ in activity.latest()] == ["e", "a", "d", "c"]
    assert activity.forgotten == 1
    for number in range(1_000):
        activity.note(f"made/up/{number}", 7.0 + number)
    assert len(activity.traces) <= 4
    assert activity.forgotten + sum(trace.published for _, trace in activity.latest()) == 1_006
