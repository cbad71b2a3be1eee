"""Pages of the history: every filter, alone and combined, compared with a search through a list."""

from __future__ import annotations

import errno
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import patterns as world
from support.log import ClockedLog, OpenLog
from support.patterns import matches_by_the_word
from support.segments import Row, stored, write

from halley.broker.events import Audience, Publications
from halley.broker.names import Match, Pattern
from halley.broker.ports import Durability, Query
from halley.history import seals, segment
from halley.history.folder import Folder, Segment
from halley.history.reader import LogReader
from halley.history.rules import Rules
from halley.history.segment_reader import MOST_IDLE, SegmentPool
from halley.history.stored import audience_of

ALL = Pattern(Match.DESCENDANTS, "")
TOPICS = ["a", "a/b", "a/b/c", "a/d", "b", "ab/c", "halley/x", "service/x", "wamp/a", ":r/a", ":r/a/b", ":r/halley/x"]
AUDIENCES = [None, Audience(eligible_authids=("ann",)), Audience(excluded_roles=("guest",))]
ROWS = st.builds(
    Row,
    st.sampled_from(TOPICS),
    st.integers(1, 30),
    st.sampled_from([None, None, *AUDIENCES]),
    st.sampled_from(["1", '"' + "x" * 400 + '"']),
    st.sampled_from([False] * 9 + [True]),
)
PATTERNS = st.one_of(
    st.builds(Pattern, st.just(Match.EXACT), st.sampled_from([*TOPICS, "none"])),
    st.builds(
        Pattern, st.sampled_from([Match.CHILDREN, Match.DESCENDANTS]), st.sampled_from(["", "a", "a/b", "halley"])
    ),
    world.wamp_patterns,
    world.space_patterns,
)
RULED = st.builds(
    Pattern, st.sampled_from([Match.CHILDREN, Match.DESCENDANTS]), st.sampled_from(["", "a", "a/b", "halley"])
)


@contextmanager
def log(segments, rules=None, **more):
    """Write a log with these rows; yields a reader of it, its folder and its rows."""
    with TemporaryDirectory() as name, ExitStack() as stack:
        folder, rows = write(Path(name) / "log", segments, **more)
        stack.callback(folder.close)
        connections = stack.enter_context(closing(SegmentPool(folder)))
        reader = LogReader(folder, rules or Rules(), connections)
        yield reader, folder, rows


def expected(rows, query, rules):
    """Return the offsets that a query must find, in its order, by looking at every row."""
    places = {row.publication: row.offset for row in rows}
    found = []
    for row in rows:
        if row.is_purged or rules.durability_of(row.topic) is Durability.NONE or row.offset < rules.of(row.topic).start:
            continue
        audience = audience_of(row.audience)
        if (
            any(matches_by_the_word(pattern, row.topic) and after < row.offset for pattern, after in query.wanted)
            and query.first <= row.offset <= query.last
            and (query.from_time_us is None or row.time_us >= query.from_time_us)
            and (query.until_time_us is None or row.time_us <= query.until_time_us)
            and (query.from_publication is None or row.offset >= places[query.from_publication])
            and (query.after_publication is None or row.offset > places[query.after_publication])
            and (query.until_publication is None or row.offset <= places[query.until_publication])
            and (query.before_publication is None or row.offset < places[query.before_publication])
            and (audience is None or audience.admits(query.authid, query.role))
        ):
            found.append(row.offset)
    return found[::-1] if query.is_reverse else found


def all_pages(reader, query, *, by_publication=False):
    """Page to the end, by offset or publication, as a client does; returns the offsets and gaps found."""
    found, gaps = [], []
    for _ in range(10_000):
        page = reader.read(query)
        found += [event.position for event in page.events]
        gaps += page.gaps
        assert len(page.events) <= query.limit
        if page.is_end:
            return found, gaps
        if by_publication:
            assert page.publication is not None
            query = replace(query, **{f"{'before' if query.is_reverse else 'after'}_publication": page.publication})
        elif query.is_reverse:
            assert page.reached <= query.last
            query = replace(query, last=page.reached - 1)
        else:
            assert page.reached >= query.first - 1
            query = replace(query, first=page.reached + 1)
    raise AssertionError("no end")


@st.composite
def logs_and_queries(draw):
    segments = draw(st.lists(st.lists(ROWS, min_size=1, max_size=40), min_size=1, max_size=4))
    if draw(st.booleans()):  # times that grow, except for steps
        now = 1
        segments = [
            [row._replace(time_us=(now := max(1, now + draw(st.sampled_from([0, 1, 1, 2, -9]))))) for row in rows]
            for rows in segments
        ]
    count = sum(map(len, segments))
    offset = st.integers(0, count)
    maybe_time = st.one_of(st.none(), st.integers(0, 31))
    maybe_index = st.one_of(st.none(), st.none(), st.integers(0, count - 1))
    query = {
        "wanted": tuple(draw(st.lists(st.tuples(PATTERNS, offset), min_size=1, max_size=3))),
        "last": draw(st.one_of(st.just(count), offset)),
        "first": draw(st.one_of(st.just(1), st.integers(1, count))),
        "authid": draw(st.sampled_from([None, "ann"])),
        "role": draw(st.sampled_from(["anonymous", "guest"])),
        "from_time_us": draw(maybe_time),
        "until_time_us": draw(maybe_time),
        "limit": draw(st.sampled_from([1, 2, 7, 100])),
        "max_bytes": draw(st.sampled_from([1, 500, 100_000])),
        "is_reverse": draw(st.booleans()),
    }
    for name in ("from", "after", "before", "until"):
        query[f"{name}_publication"] = draw(maybe_index)
    ages = draw(st.lists(st.tuples(RULED, st.integers(0, count + 1)), max_size=2))
    return segments, query, ages


@settings(max_examples=50, deadline=None)
@given(logs_and_queries(), st.sampled_from([64, 1, 0]), st.sampled_from([20_000, 3]), st.booleans())
def test_paging_either_way_to_the_end_gives_exactly_what_was_asked_for(made, most_pairs, most_rows, by_publication):
    """All combinations of filters, over segments, clock steps, audiences and purged rows, with and without an index."""
    segments, options, ages = made
    rules = Rules([(pattern, 60, True) for pattern, _ in ages])
    for (_, start), rule in zip(ages, rules.all[4:], strict=False):
        rule.start = max(start, 1)
    with pytest.MonkeyPatch.context() as patch, log(segments, rules) as (reader, _, rows):
        patch.setattr("halley.history.query.MOST_PAIRS", most_pairs)
        patch.setattr("halley.history.query.MOST_ROWS", most_rows)
        for name in ("from", "after", "before", "until"):
            index = options[f"{name}_publication"]
            options[f"{name}_publication"] = None if index is None else rows[index].publication
        query = Query(**options)
        found, _ = all_pages(reader, query, by_publication=by_publication)
        assert found == expected(rows, query, rules)


def offsets_of(segments, skip):
    """Return the offsets in each segment, if `skip` offsets are lost between two of them."""
    begin = 1
    for rows in segments:
        yield range(begin, begin + len(rows))
        begin += len(rows) + skip


@settings(max_examples=25, deadline=None)
@given(logs_and_queries(), st.sets(st.integers(1, 160)), st.integers(0, 3), st.sampled_from([64, 0]))
def test_what_is_damaged_or_lost_is_never_served_and_always_told(made, damaged, skip, most_pairs):
    """H3: a segment with a wrong checksum is a gap, and so is a hole between two; the rows of others are found."""
    segments, options, _ = made
    lost = set()
    end = 0
    for rows in segments[:-1]:
        end += len(rows)
        lost |= {*range(end + 1, end + skip + 1)}
        end += skip
    with pytest.MonkeyPatch.context() as patch, log(segments, skip=skip, damaged=damaged) as (reader, folder, rows):
        patch.setattr("halley.history.query.MOST_PAIRS", most_pairs)
        options |= {f"{name}_publication": None for name in ("from", "after", "before", "until")}
        options["last"] = max(options["last"], rows[-1].offset)
        query = Query(**options)
        found, gaps = all_pages(reader, query)
        here = expected(rows, query, Rules())
        told = {offset for first, last in gaps for offset in range(first, last + 1)}
        assert found == [offset for offset in here if offset in set(found)]  # each once, in order, as it was asked for
        assert not set(found) & damaged
        assert set(here) - set(found) <= told
        parts = [range(part[0], part[-1] + 1) for part in offsets_of(segments, skip) if damaged & set(part)]
        assert told <= {offset for part in parts for offset in part} | lost
        low = max(query.first, min(after for _, after in query.wanted) + 1)
        assert {offset for offset in here if offset in damaged} <= told
        assert {offset for offset in lost if low <= offset} <= told
        if told - lost:
            assert folder.damage


def test_an_event_for_many_audiences_is_found_by_each_of_them():
    """With too many audiences to search one by one, all offsets are looked at; each user finds their own events."""
    rows = [Row("a", audience=Audience(eligible_authids=(f"user{number % 100}",))) for number in range(1_000)]
    with log([rows]) as (reader, _, _):
        page = reader.read(Query(((Pattern(Match.EXACT, "a"), 0),), 1_000, authid="user7"))
        assert [event.position for event in page.events] == [*range(8, 1_001, 100)]
        assert reader.read(Query(((Pattern(Match.EXACT, "a"), 0),), 1_000)).events == []


def test_an_event_is_read_as_it_was_published():
    """All that is stored of an event is returned, including its audience."""
    with log([[Row("a/b", 77, AUDIENCES[1], '{"x":"\\u0000é"}')]]) as (reader, _, [row]):
        [event] = reader.read(Query(((Pattern(Match.EXACT, "a/b"), 0),), 1, authid="ann")).events
        assert (event.topic, event.payload, event.time_us) == ("a/b", '{"x":"\\u0000é"}'.encode(), 77)
        assert (event.position, event.publication, event.audience) == (1, row.publication, AUDIENCES[1])


def test_a_call_touches_so_many_rows_and_says_where_to_go_on():
    """A reader that may see nothing of a long log gets a short page; the next one continues where it ended."""
    rows = [[Row(f"many/{number}", audience=AUDIENCES[1]) for number in range(5_000)] for _ in range(5)]
    with log(rows) as (reader, _, _):
        page = reader.read(Query(((Pattern(Match.DESCENDANTS, "many"), 0),), 25_000))
        assert (page.events, page.is_end) == ([], False)
        assert 10_000 < page.reached <= 20_000
        rest = reader.read(Query(((Pattern(Match.DESCENDANTS, "many"), page.reached),), 25_000))
        assert (rest.events, rest.is_end, rest.reached) == ([], True, 25_000)


@pytest.mark.parametrize("is_reverse", [False, True])
def test_a_page_without_events_names_a_publication_to_go_on_from(is_reverse):
    """W40: pages without readable events make progress towards a single one far away."""
    rows = [[Row(f"many/{number % 200}", audience=AUDIENCES[1]) for number in range(15_000)] for _ in range(3)]
    rows[1][7_000] = Row("many/1")
    with log(rows) as (reader, _, stored):
        query = Query(((Pattern(Match.DESCENDANTS, "many"), 0),), 45_000, is_reverse=is_reverse)
        page = reader.read(query)
        assert (page.events, page.is_end) == ([], False)
        assert page.publication == stored[page.reached - 1].publication
        assert all_pages(reader, query, by_publication=True) == ([22_001], [])


@pytest.mark.parametrize("damaged", [{*range(1, 60)}, {*range(40, 61)}, {1, *range(3, 61)}])
@pytest.mark.parametrize("is_reverse", [False, True])
def test_the_publication_to_go_on_from_is_never_one_that_cannot_be_read(damaged, is_reverse):
    """H3: whether a page ends before, in or behind a damaged segment, the next continues, and reaches the end."""
    rows = [[Row("b")] * 30, [Row(f"a/{number % 3}", audience=AUDIENCES[1]) for number in range(60)], [Row("a/x")] * 5]
    damaged = {30 + each for each in damaged}
    with pytest.MonkeyPatch.context() as patch, log(rows, damaged=damaged) as (reader, _, _):
        patch.setattr("halley.history.query.MOST_ROWS", 10)
        query = Query(((ALL, 0),), 95, is_reverse=is_reverse, authid="ann", limit=4)
        found, gaps = all_pages(reader, query, by_publication=True)
        told = {each for first, last in gaps for each in range(first, last + 1)}
        assert len(set(found)) == len(found)
        assert not set(found) & damaged
        assert set(found) | told == set(range(1, 96))
        assert told <= set(range(31, 91))


@pytest.mark.parametrize(
    ("filters", "forward", "backward"),
    [
        ({}, True, True),
        ({"first": 4}, True, True),
        ({"first": 5}, False, False),
        ({"from_time_us": 40}, True, True),
        ({"from_time_us": 50}, True, True),
        ({"from_time_us": 51}, False, False),
        ({"until_time_us": 10}, True, True),
        ({"from_publication": 3}, True, True),
        ({"after_publication": 4}, False, False),
        ({"limit": 2}, True, False),
        ({"limit": 2, "first": 5}, False, False),
    ],
)
def test_a_page_says_whether_older_events_are_gone(filters, forward, backward):
    """W40, W41: a page that reaches the log's beginning reports whether older events were requested too."""
    rules = Rules([(Pattern(Match.DESCENDANTS, "a"), 60, True)])
    rules.of("a/b").start = 5
    with log([[Row("a/b", number * 10) for number in range(1, 11)]], rules) as (reader, _, rows):
        filters = {
            name: rows[value - 1].publication if name.endswith("publication") else value
            for name, value in filters.items()
        }
        query = Query(((Pattern(Match.EXACT, "a/b"), 0),), 10, **filters)
        assert reader.read(query).is_cut_off is forward
        assert reader.read(replace(query, is_reverse=True)).is_cut_off is backward


@pytest.mark.parametrize("is_again", [False, True], ids=["at once", "after restarts"])
@pytest.mark.parametrize("set_back", [(), (1,), (2,), (1, 2)], ids=str)
def test_times_are_found_in_the_segment_that_is_being_written(tmp_path, set_back, is_again):
    """Also where the clock was set back: before a restart, or meanwhile."""
    with ExitStack() as stack:
        log = stack.enter_context(ClockedLog(tmp_path))
        for part in range(3):
            if is_again and part:
                stack.close()
                log = stack.enter_context(ClockedLog(tmp_path, wall=log.clock.wall))
            if part in set_back:
                log.clock.wall -= 45
            log.publish(times=10, every_s=2)
            log.publish(times=5, every_s=0)
            if part in set_back:
                log.publish(times=1, every_s=-3)
            rows = log.rows()
            times = sorted({row.time_us for row in rows})
            for since, until in product([None, *times[::3], times[-1]], repeat=2):
                wanted = [
                    row.offset
                    for row in rows
                    if (since is None or row.time_us >= since) and (until is None or row.time_us <= until)
                ]
                assert log.offsets(from_time_us=since, until_time_us=until) == wanted
            assert log.offsets(from_time_us=times[-1] + 1) == log.offsets(until_time_us=times[0] - 1) == []


def within(there, low, high, since, until):
    """Return the offsets from `low` to `high` of a time; `there` are the times of rows by offset."""
    return [
        offset
        for offset in range(low, high + 1)
        if offset in there and (since is None or since <= there[offset]) and (until is None or there[offset] <= until)
    ]


@pytest.mark.parametrize("low", [1, 3, 6, 8])
@pytest.mark.parametrize("high", [8, 9, 11, 12])
def test_a_search_for_a_time_passes_over_holes(tmp_path, low, high):
    """Rows that are missing in the middle or at the ends, and rows behind the range, do not mislead it."""
    times_us = (5, 5, 6, 6, 7, 9, 9, 9, 9, 12, 12, 15, 1, 1, 1)
    folder, rows = write(tmp_path, [[Row("a", time_us) for time_us in times_us]])
    with closing(folder), closing(SegmentPool(folder)) as pool:
        [newest] = folder.segments
        with closing(sqlite3.connect(newest.path)) as connection:
            connection.execute("delete from stored where offset in (4, 5, 8, 9, 10)")
            connection.commit()
        there = {row.offset: row.time_us for row in rows if row.offset not in (4, 5, 8, 9, 10)}
        with pool.open(newest) as reader:
            for since, until in product([None, *range(4, 17)], repeat=2):
                first, last = reader.within_time(low, high, since, until)
                wanted = within(there, low, high, since, until)
                assert [offset for offset in there if first <= offset <= last] == wanted
                assert low <= first <= last + 1 <= high + 1


@pytest.mark.parametrize("is_indexed", [False, True], ids=["", "as an earlier version"])
def test_times_are_found_in_long_segments_while_they_grow_and_when_they_are_sealed(tmp_path, is_indexed):
    """In each state the range found for a time is the shortest one; earlier versions had an index on the time."""
    chance = Random(7)
    with closing(Folder(tmp_path)) as folder, closing(SegmentPool(folder)) as pool:
        publications = Publications(folder.identity.publication_key)
        path = folder.segment_path(1)
        with closing(segment.create(path, folder.log_id, 1)) as writer:
            folder.add(Segment(path, 1, None))
            there, time_us = {}, 10_000
            for is_over in (False, False, True):
                rows = []
                for _ in range(2_500):
                    time_us += chance.choice([0, 1, 1, 2, -1_000 if chance.random() < 0.002 else 3])
                    rows.append(Row("a", time_us))
                found = stored(rows, publications, len(there) + 1)
                there |= {row.offset: row.time_us for row in found}
                writer.write(found)
                if is_over:
                    if is_indexed:
                        writer.connection.execute("create index by_time on stored (time_us)")
                    seals.seal(path, folder.log_id, 1, len(there), writer)
                    folder.change(1, last=len(there), is_sealed=True)
                times = sorted(there.values())
                with pool.open(folder.segments[0]) as reader:
                    for _ in range(60):
                        low, high = sorted(chance.choices(range(1, len(there) + 1), k=2))
                        middle = chance.choice(times)
                        since, until = chance.choice([(middle, None), (None, middle), (middle, middle + 30)])
                        wanted = within(there, low, high, since, until)
                        shortest = (wanted[0], wanted[-1]) if wanted else (high + 1, high)
                        assert reader.within_time(low, high, since, until) == shortest


def test_a_time_is_found_without_reading_the_segment_again(tmp_path):
    """Whether the clock was set back or not, a second search has work for a few rows of many thousands."""
    rows = [Row("a", 10 * number - 9_000 * (number > 5_000)) for number in range(20_000)]
    folder, found = write(tmp_path, [rows])
    with closing(folder), closing(SegmentPool(folder)) as pool:
        there = {row.offset: row.time_us for row in found}
        work = []
        for since, until in [(1, 2), (190_960, None), (95_000, 95_040), (None, 90), (45_000, 45_900)]:
            with pool.open(folder.segments[0]) as reader:
                steps = []
                reader._connection.set_progress_handler(lambda steps=steps: steps.append(100), 100)
                first, last = reader.within_time(1, 20_000, since, until)
                work.append(sum(steps))
            wanted = within(there, 1, 20_000, since, until)
            assert (first, last) == ((wanted[0], wanted[-1]) if wanted else (20_001, 20_000))
        assert work[0] > 100_000
        assert max(work[1:]) < work[0] / 5


def test_a_time_that_is_none_is_damage(tmp_path):
    """Nothing is left out of an answer silently where a flipped bit makes another type of a time."""
    folder, _ = write(tmp_path, [[Row("a", number) for number in range(50)]])
    with closing(folder), closing(SegmentPool(folder)) as pool:
        with closing(sqlite3.connect(folder.segments[0].path)) as connection:
            connection.execute("update stored set time_us = 'x' where offset = 20")
            connection.commit()
        page = LogReader(folder, Rules(), pool).read(Query(((ALL, 0),), 50, from_time_us=40))
        assert (page.events, page.gaps) == ([], [(1, 50)])
        assert [each.file for each in folder.damage] == [folder.segments[0].path.name]


def test_connections_are_kept_but_only_so_many():
    """However many segments are read, the pool keeps a limited number of files open, and none that are deleted."""
    with log([[Row("a")] for _ in range(MOST_IDLE + 20)]) as (reader, folder, rows):
        query = Query(((Pattern(Match.EXACT, "a"), 0),), len(rows))
        assert len(reader.read(query).events) == len(rows)
        assert len(open_segments(folder)) == MOST_IDLE
        folder.remove(folder.segments[:-1])
        assert len(reader.read(query).events) == 1
        assert open_segments(folder) == []


def open_segments(folder):
    """Return the segment files of a folder that this process has open."""
    targets = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            targets.append(str(link.readlink()))
    return [target for target in targets if target.startswith(f"{folder.path}/seg-")]


@pytest.mark.nightly
def test_pages_are_whole_while_the_log_is_written_sealed_and_deleted(tmp_path):
    """Readers that page through the log miss only reported offsets, whatever happens to its segments meanwhile."""
    with OpenLog(tmp_path / "log", Rules(), segment_bytes=65_536, max_bytes=1_048_576) as opened:
        history, is_written = opened.history, threading.Event()

        def follow(wanted):
            reached, seen = 0, 0
            while not (is_written.is_set() and reached == history.head):
                head = history.head
                page = history.read(Query(((wanted, reached),), head, limit=50))
                at = [event.position for event in page.events]
                told = {offset for first, last in page.gaps for offset in range(first, last + 1)}
                assert not told & set(at)
                first = reached + 1 if reached else min(at, default=1)  # from the first event that exists
                assert told | set(at) == {*range(first, page.reached + 1)}
                reached, seen = page.reached, seen + len(at)
            return seen

        with ThreadPoolExecutor(4) as pool:
            wanted = [ALL, Pattern(Match.EXACT, "news")] * 2
            readers = [pool.submit(follow, pattern) for pattern in wanted]
            try:
                for number in range(60):
                    opened.write(*("x" * 500 for _ in range(100)))
                    history.retain(50.0 + number)
            finally:
                is_written.set()
            assert all(reader.result(timeout=60) for reader in readers)
        assert history.start > 1
        assert not history.folder.damage


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_segment_is_not_taken_for_damaged_where_a_resource_is_short(number, tmp_path, monkeypatch):
    """Its digests cannot be compared without a file descriptor: then the page fails, and the next one is whole."""

    def load(path):
        raise OSError(number, "short", str(path))

    with OpenLog(tmp_path, segment_bytes=65_536) as log:
        for _ in range(4):
            log.write(*("x" * 2_000 for _ in range(20)))
        log.until_sealed()
        assert len(log.history.folder.segments) > 1
        query = Query(((ALL, 0),), log.history.head)
        with monkeypatch.context() as patched:
            patched.setattr(seals.Seal, "load", load)
            with pytest.raises(OSError, match="short"):
                log.history.read(query)
            log.history.check_next_segment(1)
        assert log.history.folder.damage == ()
        page = log.history.read(query)
        assert (len(page.events), page.gaps) == (80, [])
