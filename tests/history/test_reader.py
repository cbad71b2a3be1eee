"""Pages of the history: every filter alone and with others, against a list that is looked through from end to end."""

from __future__ import annotations

from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.logs import Row, write

from app.broker.events import Audience
from app.broker.log import Keeping, Query
from app.broker.topics import Match, Pattern, matches
from app.history.connections import Connections
from app.history.reader import Reader
from app.history.rules import Rules
from app.history.stored import audience_of

ALL = Pattern(Match.DESCENDANTS, "")
TOPICS = ["a", "a/b", "a/b/c", "a/d", "b", "ab/c", "halley/x", "service/x"]
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
)


@contextmanager
def log(segments, rules=None, **more):
    """A log with these rows, a reader of it, and what it should find."""
    with TemporaryDirectory() as name, ExitStack() as stack:
        folder, rows = write(Path(name) / "log", segments, **more)
        stack.callback(folder.close)
        connections = stack.enter_context(closing(Connections(folder)))
        reader = Reader(folder, rules or Rules(), connections)
        yield reader, folder, rows


def expected(rows, query, rules):
    """All that a query finds, in its order, by looking at every row."""
    places = {row.publication: row.offset for row in rows}
    found = []
    for row in rows:
        if row.is_purged or rules.keeping(row.topic) is Keeping.NOT or row.offset < rules.of(row.topic).start:
            continue
        audience = audience_of(row.audience)
        if (
            any(matches(pattern, row.topic) and after < row.offset for pattern, after in query.wanted)
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


def all_pages(reader, query):
    """What a client gets that pages to the end, and the gaps it is told of."""
    found, gaps = [], []
    for _ in range(10_000):
        page = reader.read(query)
        found += [event.position for event in page.events]
        gaps += page.gaps
        assert len(page.events) <= query.limit
        if page.is_end:
            return found, gaps
        changes = {field: getattr(query, field) for field in query.__slots__}
        if query.is_reverse:
            assert page.reached <= query.last
            changes["last"] = page.reached - 1
        else:
            assert page.reached >= query.first - 1
            changes["first"] = page.reached + 1
        query = Query(**changes)
    raise AssertionError("no end")


@st.composite
def logs_and_queries(draw):
    segments = draw(st.lists(st.lists(ROWS, min_size=1, max_size=40), min_size=1, max_size=4))
    if draw(st.booleans()):  # times that grow, but for steps
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
    ages = draw(st.lists(st.tuples(PATTERNS, st.integers(0, count + 1)), max_size=2))
    return segments, query, ages


@settings(max_examples=150, deadline=None)
@given(logs_and_queries(), st.sampled_from([64, 1, 0]), st.sampled_from([20_000, 3]))
def test_paging_either_way_to_the_end_gives_exactly_what_was_asked_for(made, most_pairs, most_rows):
    """Every filter, in every combination, over segments, clock steps, audiences, purged rows; by index or not."""
    segments, options, ages = made
    rules = Rules([(pattern, 60, True) for pattern, _ in ages])
    for (_, start), rule in zip(ages, rules.all[4:], strict=False):
        rule.start = max(start, 1)
    with pytest.MonkeyPatch.context() as patch, log(segments, rules) as (reader, _, rows):
        patch.setattr("app.history.walks.MOST_PAIRS", most_pairs)
        patch.setattr("app.history.walks.MOST_ROWS", most_rows)
        for name in ("from", "after", "before", "until"):
            index = options[f"{name}_publication"]
            options[f"{name}_publication"] = None if index is None else rows[index].publication
        query = Query(**options)
        found, _ = all_pages(reader, query)
        assert found == expected(rows, query, rules)
