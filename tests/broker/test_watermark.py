"""A watermark with two bounds: over it above the high one, under it again at or below the low one (as in RabbitMQ)."""

from __future__ import annotations

from support.broker import event, join

from halley.broker.broker import Broker
from halley.broker.limits import Watermark
from halley.broker.names import Match, Pattern
from halley.settings import Limits


def test_it_does_not_flap():
    """S22: between the bounds the state does not change."""
    mark = Watermark(1_000)
    seen = []
    for value in (1_000, 1_001, 1_000, 951, 950, 1_000, 1_001):
        mark.set(value)
        seen.append(mark.is_over)
    assert seen == [False, True, True, True, False, False, True]


def test_an_event_weighs_until_the_last_reader_has_let_go():
    """An event counts once, however many outboxes hold it, and not at all without a subscriber."""
    broker = Broker(Limits())
    first, second = join(broker, "first"), join(broker, "second")
    broker.publish(event("x" * 1_000), 0.0)
    assert broker.waiting.value == 0
    for session in (first, second):
        broker.subscribe(session, Pattern(Match.EXACT, "a"))
    broker.publish(event("x" * 1_000), 0.0)
    once = broker.waiting.value
    assert 1_000 < once < 4_000
    taken = first.outbox.take()
    broker.close(second, "test")
    assert broker.waiting.value == once
    first.outbox.put_back(taken)
    del taken
    assert broker.waiting.value == once
    first.outbox.clear()
    assert broker.waiting.value == 0
