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
        return [tuple(each)[:4] for each in top(spark, tmp_path, *asked).rows.collect()]

    assert found("events", None, 10) == [("/a", 2, 6, 2), ("/b", 1, 14, 0), ("/c", 1, 1, 0)]
    assert found("bytes", None, 2) == [("/b", 1, 14, 0), ("/a", 2, 6, 2)]
    assert found("events", START_US + 3_000_000, 10) == [("/b", 1, 14, 0), ("/c", 1, 1, 0)]
    assert found("events", START_US + 10**9, 10) == []
