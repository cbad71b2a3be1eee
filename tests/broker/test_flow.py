"""Counts of events, and how long deliveries take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.broker import event, join
from support.readme import ROOT

from halley.broker.broker import Broker
from halley.broker.flow import DELAY, Delays, Flow
from halley.broker.names import Match, Pattern
from halley.settings import Limits

LONGEST_US = 600_000_000


@given(st.lists(st.integers(0, LONGEST_US), min_size=1, max_size=50), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_never_less_than_what_it_stands_for_and_an_eighth_more_at_most(delays_us, share):
    """At least the given share of the delays is no longer than the quantile, which is at most an eighth too large."""
    delays = Delays()
    for us in delays_us:
        delays.note(us)
    told_us = delays.quantile_ms(share) * 1000
    exact_us = sorted(delays_us)[max(0, -int(-len(delays_us) * share // 1) - 1)]
    assert exact_us <= told_us + 0.001
    assert told_us <= exact_us * 9 / 8 + 1


def test_nothing_noted_has_no_quantile():
    """Without any delivery there is no quantile."""
    assert Delays().quantile_ms(0.5) is None
    assert len(Delays()) == 0


def test_only_what_came_since_counts():
    """Delays from before the copy do not count in the difference, nor in its sum."""
    delays = Delays()
    delays.note(1_000_000)
    before = delays.copy()
    delays.note(2_000, 3)
    later = delays.since(before)
    assert len(later) == 3
    assert 2.0 <= later.quantile_ms(0.99) <= 2.3
    assert later.total_us == 6_000
    assert (len(delays), delays.up_to(2_500), delays.up_to(2_000_000)) == (4, 3, 4)


def test_a_clock_that_was_set_back_counts_as_no_delay():
    """A negative delay counts as 0, and one of more than ten minutes as about ten minutes."""
    delays = Delays()
    delays.note(-5)
    delays.note(10**12)
    assert delays.quantile_ms(0.5) == 0
    assert 600_000 <= delays.quantile_ms(1.0) <= 675_000


def test_a_delay_is_from_the_publication_until_the_event_leaves_the_outbox():
    """Three events published at 10 and taken at 10.25 count as one delay of 0.25 s, for the reader's protocol."""
    broker = Broker(Limits())
    reader = join(broker, "r")
    broker.subscribe(reader, Pattern(Match.EXACT, "a"))
    for _ in range(3):
        broker.publish(event(), 10.0)
    assert len(broker.take(reader, 10.25)) == 3
    assert broker.take(reader, 11.0) == []
    flow = broker.flows[reader.protocol]
    assert flow.delivered == 3
    assert len(flow.delays) == 1
    assert 250 <= flow.delays.quantile_ms(0.5) <= 282
    assert broker.flows["bayeux"].published == 3


def test_an_event_that_is_taken_after_its_subscriber_was_expected_is_no_delay():
    """It counts as delivered; the owner of the session says until when its client counts as ready."""
    broker = Broker(Limits())
    reader = join(broker, "r")
    broker.subscribe(reader, Pattern(Match.EXACT, "a"))
    flow = broker.flows[reader.protocol]
    reader.reads_until = 12.0
    for now, count in ((12.0, 1), (12.1, 1)):
        broker.publish(event(), 10.0)
        assert len(broker.take(reader, now)) == 1
        assert len(flow.delays) == count
    assert flow.delivered == 2


@pytest.mark.parametrize(
    "page", ["app/README.md", "deploy/README.md", "static/README.md", "static/console/overview.js"]
)
def test_a_delay_is_defined_in_one_way(page):
    """The metric, the pages and the console use the same words."""
    assert DELAY in (ROOT / page).read_text(encoding="utf-8")


def test_an_event_that_is_written_to_many_at_once_counts_the_same_for_each():
    """Its delay is counted again, whatever else of the protocol was counted in between."""
    flow = Flow()
    flow.note_delay(1_000_000, 1.5, 0.0)
    flow.delays.note(7)  # as NetworkTables does
    flow.note_delay(1_000_000, 1.5, 0.0)
    assert (len(flow.delays), flow.delays.total_us) == (3, 1_000_007)
