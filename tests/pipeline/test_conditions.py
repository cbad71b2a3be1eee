"""Which files a query needs: as few as possible, and never too few, since a wrong skip would give a wrong result."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction
from support.lakes import DAY_US, LIFTED, START_US, TOPICS, add, make_lake, row

from halley.pipeline.lake import tables
from halley.pipeline.queries import sql
from halley.pipeline.queries.conditions import ANYTHING, MOST_PARTS, NOTHING, and_, between, is_in, or_, plan_scan
from halley.pipeline.queries.sql import _conditions, ask
from halley.pipeline.queries.views import in_spark, views_of

FOLDER = {"day": "2026-06-02", "protocol": "nt4"}


def test_parts_are_joined():
    """AND and OR are flat where they can be, and what is known not to matter is left out."""
    a, b, c = between("a", 1), between("b", None, "it's"), is_in("c", ["x", "y", "x"])
    assert (a, b, c) == ("`a` >= 1", "`b` <= 'it''s'", "`c` in ('x', 'y')")
    assert between("a", 1, 2) == "`a` >= 1 and `a` <= 2"
    assert (between("a"), is_in("a", [True]), is_in("a", [])) == (
        "`a` is not null",
        "`a` >= true and `a` <= true",
        NOTHING,
    )
    assert and_([a, or_([b, c, b]), ANYTHING]) == f"{a} and ({b} or {c})"
    assert (and_([]), and_([ANYTHING]), and_([a, NOTHING])) == (ANYTHING, ANYTHING, NOTHING)
    assert (or_([]), or_([NOTHING, a]), or_([a, ANYTHING])) == (NOTHING, a, ANYTHING)
    assert and_(between("a", n) for n in range(500)).count(" and ") == MOST_PARTS - 1
    assert or_(between("a", n) for n in range(500)) == ANYTHING


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Make a lake of 600 events of three days, in several files for each day and protocol."""
    folder = tmp_path_factory.mktemp("a lake")
    make_lake(folder)
    add(folder, "gaps", [{"first": 20, "last": 30, "reason": "hole", "found_us": START_US}])
    return folder


VALUES = {
    "offset": lambda chance: chance.randrange(-20, 640),
    "time_us": lambda chance: START_US + chance.randrange(3 * DAY_US),
    "topic": lambda chance: chance.choice(TOPICS)[: chance.randrange(12)],
    "protocol": lambda chance: chance.choice(["bayeux", "nt4", "wamp", "x"]),
    "price": lambda chance: chance.choice([0.0, -0.0, 25.0, 0.1, 1e9, -100.25, 1e300, 1e-300]),
    "count": lambda chance: chance.randrange(-600, 600),
    "kind": lambda chance: chance.choice(["x", "y\u00e9", "y'\\%_`", "100% \u2028\n", "\U0010fffe"]),
    "nt4_time_us": lambda chance: chance.randrange(5),
}


def condition_and_choice(chance, files, depth=0):
    """Return a random condition, and the files that can hold such rows, chosen by their bounds one by one."""
    if depth < 3 and chance.random() < 0.5:
        parts = [condition_and_choice(chance, files, depth + 1) for _ in range(chance.randrange(4))]
        texts, choices = [text for text, _ in parts], [choice for _, choice in parts]
        if chance.random() < 0.5:
            return and_(texts), set(files).intersection(*choices)
        return or_(texts), set().union(*choices)
    column = chance.choice([*VALUES])
    if chance.random() < 0.1:
        return f"`{column}` is null", {path for path, bounds in files.items() if bounds[column][2]}
    known = {path for path, bounds in files.items() if bounds[column][0] is not None}
    if chance.random() < 0.1:
        return between(column), known
    values = [VALUES[column](chance) for _ in range(chance.choice((1, 2, 30)))]
    if chance.random() < 0.5:
        choice = {
            path for path in known if any(files[path][column][0] <= each <= files[path][column][1] for each in values)
        }
        return is_in(column, values), choice
    low, high = chance.choice([(min(values), None), (None, max(values)), (min(values), max(values))])
    choice = {
        path
        for path in known
        if not (high is not None and files[path][column][0] > high)
        and not (low is not None and files[path][column][1] < low)
    }
    return between(column, low, high), choice


def test_delta_rs_chooses_the_files_that_can_hold_such_rows(lake):
    """For 400 random conditions the choice is that of each file's bounds: of numbers, times, odd texts and nulls."""
    table = tables.open_table(lake, "events")
    nulls = {row["path"]: row["null_count"] for row in pa.table(table.get_add_actions()).to_pylist()}
    files = {
        file.path: {
            column: (file.partition[column],) * 2 + (False,)
            if column in file.partition
            else (file.least.get(column), file.greatest.get(column), nulls[file.path][column])
            for column in VALUES
        }
        for file in table.data_files()
    }
    chance = random.Random(5)
    sizes = set()
    for _ in range(400):
        condition, choice = condition_and_choice(chance, files)
        assert {file.path for file in plan_scan("events", table, condition).files} == choice, condition
        sizes.add(len(choice))
    assert {0, 1, len(files)} <= sizes


def test_the_folder_of_a_lake_may_have_any_name(tmp_path):
    """The addresses that delta-rs returns for files are escaped, and name the files of the log nevertheless."""
    folder = tmp_path / "q?x a b{c}100% %zz[e]*=\u00fc#"
    make_lake(folder, 60, commits=3)
    table = tables.open_table(folder, "events")
    read = plan_scan("events", table, between("offset", None, 20))
    assert {file.greatest["offset"] <= 20 for file in read.files} == {True}
    assert 0 < len(read.files) < read.of


def test_where_delta_rs_is_slow_or_refuses_more_files_are_read(lake):
    """Long lists are chosen by exactly; long chains are cut, and what its parser refuses reads all files."""
    table = tables.open_table(lake, "events")

    def read(condition):
        return len(plan_scan("events", table, condition).files)

    assert read(is_in("offset", range(1_000, 6_000))) == 0
    assert read(is_in("offset", [1, *range(1_000, 6_000)])) <= 3
    assert read(and_([*(between("count", -10_000 - n) for n in range(500)), between("offset", None, 20)])) == 18
    with pytest.raises(DeltaError, match="Cannot convert to kernel expression: Like"):
        table.file_uris(file_pruning_predicate="topic like 'zzz%'")
    deep = between("offset", 1_000)
    assert read(deep) == 0
    for _ in range(60):
        deep = and_([or_([deep, between("offset", None, -1)]), between("offset", 0)])
    with pytest.raises(DeltaError, match="recursion limit exceeded"):
        table.file_uris(file_pruning_predicate=deep)
    assert read(deep) == 18


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


@pytest.mark.nightly
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
    files = views["events"].needed(ANYTHING).files
    file_of = {
        offset: file
        for file in files
        for offset in pq.read_table(lake / "events" / file.path, columns=["offset"], partitioning=None)[
            "offset"
        ].to_pylist()
    }
    assert len(file_of) == 600
    rows = views["events"].rows(spark, files, ANYTHING)
    truths = [f"({text}) p{number}" for number, text in enumerate(asked)]
    passed = [f"({in_spark(condition)}) f{number}" for number, condition in enumerate(conditions)]
    chosen = [{file.path for file in views["events"].needed(condition).files} for condition in conditions]
    for found in rows.selectExpr("offset", *truths, *passed).collect():
        file = file_of[found["offset"]]
        for number, (text, condition) in enumerate(zip(asked, conditions, strict=True)):
            if found[f"p{number}"] is True:
                assert file.path in chosen[number], (text, condition, found["offset"])
                assert found[f"f{number}"] is True, (text, condition, found["offset"])
    skipped = sum(len(files) - len(each) for each in chosen)
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
        pytest.param(OUTER_JOIN, 3, marks=pytest.mark.nightly),
        pytest.param(UNION, 6, marks=pytest.mark.nightly),
        ("select count(*) from events where offset in (select first from gaps)", 18),
        pytest.param(
            "select (select max(offset) from events where offset < 40), count(*) from gaps",
            3,
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            "select count(*) from events where offset < (select min(last) from gaps where reason = 'hole')",
            18,
            marks=pytest.mark.nightly,
        ),
        ("select count(*) from (select offset + 1 as next, topic as t from events) where t = 'zzz'", 0),
        pytest.param(
            "select t.o, count(*) over () from (select offset o from events where offset > 595) t order by 1",
            3,
            marks=pytest.mark.nightly,
        ),
        ("select count(*) from events where exists (select 1 from gaps where first = offset) and offset < 60", 3),
        pytest.param("select count(*) from events where 1 = 0", 18, marks=pytest.mark.nightly),
        pytest.param(
            "select offset from events where offset < 10 except select offset from events where offset < 5 order by 1",
            3,
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            "select count(*) from events tablesample (100 percent) where offset < 20", 18, marks=pytest.mark.nightly
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
    plans = iter([{"events": between("time_us", START_US + 9 * DAY_US)}, {"events": between("time_us", START_US)}])
    monkeypatch.setattr(sql, "_conditions", lambda *_: next(plans))
    assert [len(reading.files) for reading in ask(spark, lake, query).readings] == [18]


def test_a_file_of_another_writer_without_statistics_is_read(spark, tmp_path):
    """What is not known of a file can be anything, except what the names of its folders say."""
    make_lake(tmp_path, 60, commits=1)
    table = tables.open_table(tmp_path, "events")
    old = {file.path for file in table.data_files()}
    [source] = [table.folder / each.path for each in table.data_files() if each.partition == FOLDER]
    bare = "day=2026-06-02/protocol=nt4/part-00000-0.c000.zstd.parquet"
    (table.folder / bare).write_bytes(source.read_bytes())
    add = AddAction(bare, source.stat().st_size, FOLDER, 0, True, '{"numRecords":1}')
    table.create_write_transaction([add], "append", table.schema(), ["day", "protocol"])

    def read(where):
        answer = ask(spark, tmp_path, f"select count(*) from events where {where}")
        assert answer.rows.collect()[0][0] >= 0
        return bare in {file.path for file in answer.readings[0].files}

    assert bare not in old
    assert read("offset = 7000")
    assert read("topic = 'zzz'")
    assert read("time > timestamp'2026-06-03 00:00:00'")
    assert not read("protocol = 'wamp'")


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
