"""`halley lake top`: the busiest channels."""

from __future__ import annotations

import pytest
from support.lakes import START_US, add, row

from halley.pipeline.queries.sql import top

pytestmark = pytest.mark.slow


def test_the_busiest_channels_come_first(spark, tmp_path):
    """Channels are ordered by events or by bytes of payload (UTF-8), since a given time or of the whole lake."""
    events = [("a", '"x"', "ann"), ("a", '"x"', "bob"), ("b", '"éééééé"', None), ("c", "1", None)]
    rows = [row(n, topic=topic, payload=payload, authid=who) for n, (topic, payload, who) in enumerate(events, 1)]
    add(tmp_path, "events", rows)

    def found(*asked):
        return [tuple(each)[:5] for each in top(spark, tmp_path, *asked).rows.collect()]

    assert found("events", None, 10) == [("/a", "/a", 2, 6, 2), ("/b", "/b", 1, 14, 0), ("/c", "/c", 1, 1, 0)]
    assert found("bytes", None, 2) == [("/b", "/b", 1, 14, 0), ("/a", "/a", 2, 6, 2)]
    assert found("events", START_US + 3_000_000, 10) == [("/b", "/b", 1, 14, 0), ("/c", "/c", 1, 1, 0)]
    assert found("events", START_US + 10**9, 10) == []


def test_a_channel_has_the_name_of_most_of_its_events(spark, tmp_path):
    """A channel is counted over all protocols; it is called as most of its events were."""
    published = [("com/shop", "wamp"), ("com/shop", "bayeux"), ("com/shop", "wamp"), ("a!20b", "nt4")]
    add(tmp_path, "events", [row(n, topic=topic, protocol=by) for n, (topic, by) in enumerate(published, 1)])
    rows = top(spark, tmp_path, "events", None, 10).rows.collect()
    assert [tuple(each)[:3] for each in rows] == [("/com/shop", "com.shop", 3), ("/a!20b", "/a b", 1)]
