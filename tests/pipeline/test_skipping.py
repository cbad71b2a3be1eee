"""Which files a query needs: as few as possible, and never too few, since a wrong skip would give a wrong result."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow.parquet as pq
import pytest
from support.lakes import DAY_US, LIFTED, START_US, TOPICS, add, make_lake, row

from halley.pipeline.lake import tables
from halley.pipeline.queries import sql
from halley.pipeline.queries.skipping import ANYTHING, Every, Null, Some, Within, extent, may_hold, widened
from halley.pipeline.queries.sql import _conditions, ask
from halley.pipeline.queries.views import as_column, views_of

FILE = tables.File(
    "f", {"protocol": "nt4", "odd": None}, 10, 100, {"n": 3, "t": "b/c"}, {"n": 7, "t": "d"}, {"n": 2, "t": 0, "v": 10}
)


@pytest.mark.parametrize(
    ("condition", "is_possible"),
    [
        (Within("n", 3, 3), True),
        (Within("n", 7, 7), True),
        (Within("n", 2, 2), False),
        (Within("n", 8, 8), False),
        (Within("n", None, 2), False),
        (Within("n", None, 3), True),
        (Within("n", 8), False),
        (Within("n", 7), True),
        (Within("other", 1, 1), True),
        (Within("v", 1, 1), False),
        (Within("t", "b", "c"), True),
        (Within("t", "da"), False),
        (Within("t", None, "a"), False),
        (Within("v"), False),
        (Within("n"), True),
        (Within("protocol", "nt4", "nt4"), True),
        (Within("protocol", "wamp", "wamp"), False),
        (Within("odd"), False),
        (Null("odd"), True),
        (Null("protocol"), False),
        (Null("t"), False),
        (Null("n"), True),
        (Null("other"), True),
        (Every((Within("n", 1), Within("n", None, 2))), False),
        (Some((Within("n", 1, 1), ANYTHING)), True),
        (Some(()), False),
        (ANYTHING, True),
    ],
)
def test_the_extremes_of_a_file_say_whether_it_can_hold_such_rows(condition, is_possible):
    """Null is in no relation to any value; an unknown value can be any."""
    assert may_hold(FILE, condition) is is_possible


def test_a_query_that_looks_at_the_clock_is_read_with_some_slack():
    """A query with the clock is planned again after its files are chosen, so its times are widened."""
    once = Every((Within("time_us", 1_000), Within("topic", "a", "a")))
    assert widened(once, 10) == Every((Within("time_us", 990), Within("topic", "a", "a")))
    assert widened(Some((Within("time_us", None, 5), Null("time_us"))), 3) == Some(
        (Within("time_us", None, 8), Null("time_us"))
    )


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Make a lake of 600 events of three days, in several files for each day and protocol."""
    folder = tmp_path_factory.mktemp("a lake")
    make_lake(folder)
    add(folder, "gaps", [{"first": 20, "last": 30, "reason": "hole", "found_us": START_US}])
    return folder


def predicate(chance, depth=0):
    """Return a random condition, sensible or not."""
    if depth < 3 and chance.random() < 0.55:
        one, other = predicate(chance, depth + 1), predicate(chance, depth + 1)
        return chance.choice([f"({one} and {other})", f"({one} or {other})", f"not ({one})", f"({one}) is true"])
    topic = chance.choice(TOPICS)
    moment_us = START_US + chance.randrange(3 * DAY_US)
    offset = chance.randrange(-20, 640)
    relation = chance.choice(["=", "<", "<=", ">", ">=", "<>", "<=>"])
    channel = chance.choice(["/chat/den", "/caf!c3!a9/~a", "/a!b", "/a!21b", "chat/den", "/chat/", "/", ""])
    names = ["chat.den", "/café/~a", "/caf!c3!a9/~a", "café.~a", "/a!b", "a!b", "/chat/", "chat.", "/", ""]
    name = chance.choice(names)
    author = chance.choice(["'ann'", "null", "'a'"])
    price = chance.choice(["0", "-0.0", "25", "1e9", "double('nan')", "-100.25"])
    return chance.choice(
        [
            f"topic {relation} '{topic}'",
            f"'{topic}' {relation} topic",
            f"channel {relation} '{channel}'",
            f"channel like '{channel}%'",
            f"channel in ('{channel}', '/chat/lobby', null)",
            f"name {relation} '{name}'",
            f"name like '{name}%'",
            f"name in ('{name}', 'plc.line1.temp', null)",
            "name is not null",
            f"startswith(topic, '{topic[: chance.randrange(8)]}')",
            f"topic in ({', '.join(repr(each) for each in chance.sample(TOPICS, 3))})",
            f"upper(topic) = '{topic.upper()}'",
            f"offset {relation} {offset}",
            f"1 + offset {relation} {offset}",
            f"offset between {offset} and {offset + 40}",
            f"offset {relation} {offset}.5",
            f"cast(offset as string) = '{offset}'",
            f"time_us {relation} {moment_us}",
            f"time {relation} timestamp_micros({moment_us})",
            f"time >= timestamp'2026-06-0{chance.randrange(1, 5)} 1{chance.randrange(10)}:00:00'",
            f"cast(time as date) {relation} date'2026-06-0{chance.randrange(1, 5)}'",
            f"date_trunc('hour', time) = timestamp'2026-06-02 1{chance.randrange(10)}:00:00'",
            f"day {relation} date'2026-06-0{chance.randrange(1, 5)}'",
            f"day in (date'2026-06-01', date'2026-06-0{chance.randrange(1, 5)}')",
            f"protocol {relation} '{chance.choice(('bayeux', 'nt4', 'wamp', 'x'))}'",
            f"authid {relation} {author}",
            "role is null",
            "kind is not null",
            f"price {relation} {price}",
            f"count {relation} {chance.randrange(-600, 600)}",
            "kind = 'yé'",
            "payload like '%text%'",
            "nt4_time_us = 3",
            "details is null",
        ]
    )


@pytest.mark.slow
def test_no_row_is_lost_by_a_skipped_file_whatever_is_asked(spark, lake):
    """For random conditions, each file with a row for which the condition is true in Spark is among those read.

    The filter for Parquet's readers accepts these rows too.
    """
    chance = random.Random(6)
    asked = [predicate(chance) for _ in range(30)]
    views = views_of(lake, ["events"])
    queries = [f"select * from events where {text}" for text in asked]
    with ThreadPoolExecutor(2) as side_by_side:
        conditions = [found["events"] for found in side_by_side.map(partial(_conditions, spark, views), queries)]
    files = views["events"].files()
    file_of = {
        offset: file
        for file in files
        for offset in pq.read_table(lake / "events" / file.path, columns=["offset"], partitioning=None)[
            "offset"
        ].to_pylist()
    }
    assert len(file_of) == 600
    rows = views["events"].rows(spark, files, ANYTHING)
    filters = [as_column(condition) for condition in conditions]
    from pyspark.sql import functions as f

    truths = [f.expr(text).alias(f"p{number}") for number, text in enumerate(asked)]
    passed = [each.alias(f"f{number}") for number, each in enumerate(filters)]
    for found in rows.select("offset", *truths, *passed).collect():
        file = file_of[found["offset"]]
        for number, (text, condition) in enumerate(zip(asked, conditions, strict=True)):
            if found[f"p{number}"] is True:
                assert may_hold(file, condition), (text, condition, found["offset"])
                assert found[f"f{number}"] is True, (text, condition, found["offset"])
    skipped = sum(not may_hold(file, condition) for condition in conditions for file in files)
    assert skipped > len(files) * 5, "hardly anything is skipped"


SELF_JOIN = """
    select count(*) from events e join events f on e.offset + 1 = f.offset
    where e.day = date'2026-06-01' and f.time < timestamp'2026-06-02 06:00:00'
"""
OUTER_JOIN = """
    select max(e.offset), count(f.offset) from events e left join events f on e.offset = f.offset and f.offset < 10
    where e.offset < 50
"""
UNION = """
    with a as (select * from events where offset < 50), b as (select * from events where offset > 590)
    select sum(x.offset) from (select * from a union all select * from b) x
"""


@pytest.mark.parametrize(
    ("query", "most_files"),
    [
        ("select count(*) from events where time >= timestamp'2026-06-03 00:00:00'", 6),
        ("select count(*) from events where time > now() - interval 1 hour", 0),
        ("select count(*) from events where day = date'2026-06-02' and protocol = 'nt4'", 2),
        ("select count(*) from events where channel = '/zzz'", 0),
        (SELF_JOIN, 12),
        pytest.param(OUTER_JOIN, 3, marks=pytest.mark.slow),
        pytest.param(UNION, 6, marks=pytest.mark.slow),
        ("select count(*) from events where offset in (select first from gaps)", 18),
        pytest.param(
            "select (select max(offset) from events where offset < 40), count(*) from gaps", 3, marks=pytest.mark.slow
        ),
        pytest.param(
            "select count(*) from events where offset < (select min(last) from gaps where reason = 'hole')",
            18,
            marks=pytest.mark.slow,
        ),
        ("select count(*) from (select offset + 1 as next, topic as t from events) where t = 'zzz'", 0),
        pytest.param(
            "select t.o, count(*) over () from (select offset o from events where offset > 595) t order by 1",
            3,
            marks=pytest.mark.slow,
        ),
        ("select count(*) from events where exists (select 1 from gaps where first = offset) and offset < 60", 3),
        pytest.param("select count(*) from events where 1 = 0", 18, marks=pytest.mark.slow),
        pytest.param(
            "select offset from events where offset < 10 except select offset from events where offset < 5 order by 1",
            3,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "select count(*) from events tablesample (100 percent) where offset < 20", 18, marks=pytest.mark.slow
        ),
        ("select count(*) from (select * from events order by offset limit 30) where offset > 20", 18),
    ],
)
def test_the_answer_is_the_same_as_from_all_files(spark, lake, query, most_files):
    """Self joins, outer joins, common tables, subqueries, windows and samples give equal rows, from few files."""

    def asked(skips):
        answer = ask(spark, lake, query, skips=skips)
        return answer.rows.collect(), {reading.table: len(reading.files) for reading in answer.readings}

    with ThreadPoolExecutor(2) as side_by_side:
        (rows, read), (all_rows, all_read) = side_by_side.map(asked, [True, False])
    assert rows == all_rows
    assert read["events"] <= most_files
    assert all_read["events"] == 18


def test_when_the_clock_has_moved_too_far_between_the_plannings_all_files_are_read(spark, lake, monkeypatch):
    """If the machine slept or a day ended in between, all files are read: slow rather than wrong."""
    query = "select count(*) from events where time > now() - interval 1 hour"
    assert [len(reading.files) for reading in ask(spark, lake, query).readings] == [0]
    plans = iter([{"events": Within("time_us", START_US + 9 * DAY_US)}, {"events": Within("time_us", START_US)}])
    monkeypatch.setattr(sql, "_conditions", lambda *_: next(plans))
    assert [len(reading.files) for reading in ask(spark, lake, query).readings] == [18]


def test_a_day_without_statistics_is_known_by_its_folder():
    """A file of another writer can lack statistics; then its partition's day bounds its times."""
    bare = tables.File("x", {"day": "2026-06-02", "protocol": "nt4"}, 5, 100, {}, {}, {})
    assert extent(bare, "time_us") == (START_US + DAY_US, START_US + 2 * DAY_US - 1)
    assert not may_hold(bare, Within("time_us", None, START_US))
    assert may_hold(bare, Within("offset", 1, 1))


def test_long_names_are_found_though_statistics_cut_them(spark, tmp_path):
    """Delta's statistics keep only the beginnings of strings."""
    topics = [f"{'x' * 40}{end}" for end in "abc"]
    for offset, topic in enumerate(topics, 1):
        add(tmp_path, "events", [row(offset, topic=topic)])

    def found(condition):
        return [
            each.offset for each in ask(spark, tmp_path, f"select offset from events where {condition}").rows.collect()
        ]

    conditions = [
        (condition, [offset])
        for offset, topic in enumerate(topics, 1)
        for condition in (f"topic = '{topic}'", f"channel = '/{topic}'", f"topic >= '{topic}' and topic <= '{topic}'")
    ]
    with ThreadPoolExecutor(2) as side_by_side:
        assert list(side_by_side.map(found, [each for each, _ in conditions])) == [offsets for _, offsets in conditions]


def test_no_text_is_greater_than_a_bound_that_says_nothing(spark, tmp_path):
    """Strings of several last Unicode characters are greater than that character, which is used as an upper bound."""
    odd = "\U0010ffff" * 40
    add(tmp_path, "events", [row(1, kind=odd, authid=odd, price=None, count=None)], LIFTED)
    for name in ("kind", "authid"):
        found = ask(spark, tmp_path, f"select offset from events where {name} = '{odd}' and {name} > '{odd[:2]}'")
        assert [each.offset for each in found.rows.collect()] == [1]
