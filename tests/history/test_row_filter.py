"""The rows that programs want which read the whole log: each is found once, whatever a call may do at most."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.segments import Row, write

from halley.broker.events import Audience
from halley.broker.names import Match, Pattern
from halley.history.reader import LogReader
from halley.history.row_filter import RowFilter
from halley.history.rules import Rules
from halley.history.segment_reader import SegmentPool

TOPICS = ["a", "a/b", "a/b/c", "b", "halley/x", ":r/a"]
ROWS = st.builds(
    Row,
    st.sampled_from(TOPICS),
    st.integers(1, 30),
    st.sampled_from([None, None, Audience(eligible_authids=("ann",))]),
    st.sampled_from(["1", '"' + "x" * 400 + '"']),
    st.sampled_from([False] * 9 + [True]),
)
PATTERNS = st.one_of(
    st.none(),
    st.builds(Pattern, st.just(Match.EXACT), st.sampled_from([*TOPICS, "none"])),
    st.builds(Pattern, st.sampled_from([Match.CHILDREN, Match.DESCENDANTS]), st.sampled_from(["", "a", "halley"])),
)
TIMES = st.one_of(st.none(), st.integers(0, 31))
FILTERS = st.builds(RowFilter, PATTERNS, st.sampled_from([None, "bayeux", "wamp"]), TIMES, TIMES)
SEGMENTS = st.lists(st.lists(ROWS, min_size=1, max_size=40), min_size=1, max_size=4)


def all_parts(reader, first, last, wanted):
    """Return the offsets of all rows that the reader finds, part by part, as a program reads them."""
    found = []
    while first <= last:
        rows, reached = reader.next_rows(first, last, wanted)
        assert first <= reached <= last
        assert all(first <= row.offset <= reached for row in rows)
        found += [row.offset for row in rows]
        first = reached + 1
    return found


@settings(max_examples=60, deadline=None)
@given(SEGMENTS, FILTERS, st.integers(1, 40), st.sampled_from([64, 1, 0]), st.sampled_from([20_000, 3]))
def test_the_wanted_rows_are_found_once_and_in_order(segments, wanted, first, most_pairs, most_rows):
    """All conditions together, for any audience, with erased rows, with and without the index, in small steps."""
    with TemporaryDirectory() as name, ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setattr("halley.history.query.MOST_PAIRS", most_pairs)
        patch.setattr("halley.history.query.MOST_ROWS", most_rows)
        patch.setattr("halley.history.reader._PART_ROWS", 5)
        folder, rows = write(Path(name) / "log", segments)
        stack.callback(folder.close)
        pool = stack.enter_context(closing(SegmentPool(folder)))
        found = all_parts(LogReader(folder, Rules(), pool), first, len(rows), wanted)
        assert found == [row.offset for row in rows if row.offset >= first and wanted.matches(row)]


def test_an_erased_row_has_no_topic_and_keeps_its_time():
    """A pattern does not find it, since nobody knows its topic any more; a time and a protocol do."""
    with TemporaryDirectory() as name, ExitStack() as stack:
        folder, _ = write(Path(name) / "log", [[Row("a", 5), Row("a", 6, is_purged=True), Row("b", 7)]])
        stack.callback(folder.close)
        reader = LogReader(folder, Rules(), stack.enter_context(closing(SegmentPool(folder))))
        for wanted, expected in (
            (RowFilter(Pattern(Match.DESCENDANTS, "")), [1, 3]),
            (RowFilter(from_time_us=6), [2, 3]),
            (RowFilter(protocol="bayeux", until_time_us=6), [1, 2]),
        ):
            assert all_parts(reader, 1, 3, wanted) == expected


def test_what_is_damaged_is_passed_over_and_listed():
    """H3: no row of a damaged segment is served, by an index or without one, and the damage is known afterwards."""
    rows = [Row("a", number) for number in range(1, 21)]
    for wanted in (RowFilter(Pattern(Match.EXACT, "a")), RowFilter(from_time_us=1)):
        with TemporaryDirectory() as name, ExitStack() as stack:
            folder, _ = write(Path(name) / "log", [rows[:10], rows[10:]], damaged={4})
            stack.callback(folder.close)
            reader = LogReader(folder, Rules(), stack.enter_context(closing(SegmentPool(folder))))
            assert all_parts(reader, 1, 20, wanted) == [*range(11, 21)]
            assert [(each.first, each.last) for each in folder.damage] == [(1, 10)]
