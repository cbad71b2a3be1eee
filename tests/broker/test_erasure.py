"""Which events an erasure concerns, and what the broker drops with them."""

from __future__ import annotations

import pytest
from support.broker import event
from support.memory_log import MemoryLog

from halley.broker.broker import Broker
from halley.broker.errors import KeyReused
from halley.broker.names import Match, Pattern
from halley.broker.ports import Erasure
from halley.settings import Limits

BELOW_A = Erasure(Pattern(Match.DESCENDANTS, "a"), None)
OF_ADA = Erasure(None, "ada")


@pytest.mark.parametrize(
    ("erasure", "concerned", "others"),
    [
        (BELOW_A, [("a/b", None), ("a/b/c", "ada")], [("a", None), ("b", "ada"), ("", None)]),
        (Erasure(Pattern(Match.DESCENDANTS, ""), None), [("a", None)], [("halley/sessions", None), ("", None)]),
        (OF_ADA, [("a", "ada")], [("a", "bob"), ("a", None), ("ada", None), ("", None)]),
    ],
)
def test_it_concerns_a_pattern_or_a_publisher(erasure, concerned, others):
    assert all(erasure.concerns(*each) for each in concerned)
    assert not any(erasure.concerns(*each) for each in others)


@pytest.mark.parametrize("payload", ['{"authid":"ada"}', b'{"authid":"ada"}'])
def test_with_a_publisher_go_the_servers_events_about_it(payload):
    """Only below /halley/: what others say about a publisher is theirs."""
    assert OF_ADA.concerns("halley/sessions", None, payload)
    assert not OF_ADA.concerns("halley/sessions", None, b'{"authid":"bob"}')
    assert not OF_ADA.concerns("halley/sessions", None, b"[1]")
    for odd in (b"{]", b"\xff", b"[" * 100_000):  # as a frame of another server may have
        assert not OF_ADA.concerns("halley/sessions", None, odd)
    assert not OF_ADA.concerns("a", "bob", payload)


def test_all_holders_are_told_and_what_they_have_to_do_on_disk_is_returned():
    broker, told, done = Broker(Limits()), [], []

    class OnDisk:
        def erase(self, erasure):
            told.append(erasure)
            return lambda: done.append("disk")

    class InMemory:
        def erase(self, erasure):
            told.append(erasure)

    broker.add_holder(OnDisk())
    broker.add_holder(InMemory())
    (work,) = broker.erase(BELOW_A)
    assert (told, done) == ([BELOW_A, BELOW_A], [])
    work()
    assert done == ["disk"]


def test_the_newest_events_and_the_names_of_busy_topics_are_dropped():
    """Sessions that resume read from disk then; the counts of all publishes stay."""
    broker = Broker(Limits())
    log = MemoryLog(broker)
    for topic in ("a/b", "a/c", "b"):
        broker.publish(event(topic=topic), 50.0)
    log.commit(now=50.0)
    assert len(broker.commits.tail.after(0) or []) == 3
    broker.erase(BELOW_A)
    assert broker.commits.tail.after(0) is None
    assert broker.commits.tail.head == 3
    assert [topic for topic, _ in broker.activity.latest()] == ["b"]
    assert broker.activity.forgotten == 2


@pytest.mark.parametrize(("erasure", "erased"), [(BELOW_A, "kb"), (OF_ADA, "ka")])
def test_what_was_sent_with_a_key_is_dropped_and_the_key_stays(erasure, erased):
    """Else the answer to a publish with that key would say whether its data are those that were erased."""
    broker = Broker(Limits())
    for key, topic, authid in (("ka", "x", "ada"), ("kb", "a/b", "bob"), ("kc", "x", None)):
        published = event(1, topic)
        published.authid, published.idempotency_key, published.key_digest = authid, key, b"as sent."
        broker.publish(published, 50.0)
    broker.erase(erasure)
    for key, topic, authid in (("ka", "x", "ada"), ("kb", "a/b", "bob"), ("kc", "x", None)):
        again = event(2, topic)
        again.authid, again.idempotency_key, again.key_digest = authid, key, b"another."
        if key == erased:
            assert broker.commits.repeated(again, 50.0) is not None
        else:
            with pytest.raises(KeyReused):
                broker.commits.repeated(again, 50.0)
        again.topic = "another"
        with pytest.raises(KeyReused):
            broker.commits.repeated(again, 50.0)
