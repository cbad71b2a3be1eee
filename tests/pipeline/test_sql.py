"""`halley lake sql`: its views, its formats, and what it refuses."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import random
import shlex

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from readme.table import block
from support.lakes import START_US, TOPICS, add, make_lake, row

from halley.cli import main
from halley.pipeline.errors import JobFailed, JobRejected
from halley.pipeline.lake.dictionary import LIFTED as LIFTED_MEANING
from halley.pipeline.lake.shapes import TABLES
from halley.pipeline.queries import output
from halley.pipeline.queries.sql import ask, computing
from halley.protocols.bayeux.names import to_channel


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lake")
    make_lake(folder, 60, commits=2)
    return folder


def test_channels_and_times_are_those_of_the_server(spark, tmp_path):
    """The view's `channel` equals `to_channel` of the topic, `time` is the time of `time_us`, and `day` is its day."""
    topics = [
        *TOPICS,
        "!21",
        "!2141/!21!21",
        "a!2141",
        "!7e!28!29!24!40",
        "x!20y/!c3!a9",
        "a!21!7e0",
        "!217e",
        "v2!2141",
        *("!212e", "!21212e", "!2121!2e", "!21202e/!2e!217c", "!2121217c"),
        *("caf!21c3!21a9", "!21c3!c3!a9", "!21e2!2182", "!21e2!2182!21ac", "!21ff", "!21c0!21ae", "!21e0!2180!2180"),
        *("!21ed!21a0!2180", "!21ed!219f!21bf", "!21f0!219f!21a4!2196", "!21f4!2190!2180!2180", "!21f4!218f!21bf!21bf"),
    ]
    chance = random.Random(14)
    pieces = ["!21", "21", "2e", "41", "c3", "a9", "e2", "82", "ac", "ed", "a0", "f4", "8f", "90", "!c3!a9", "!2e", "x"]
    topics += ["x" + "".join(chance.choices(pieces, k=chance.randrange(2, 9))) for _ in range(500)]
    add(tmp_path, "events", [row(number, topic=topic) for number, topic in enumerate(topics, 1)])
    query = "select topic, channel, unix_micros(time) = time_us, day = cast(time as date), nt4_time from events"
    for topic, channel, *are_right, nt4_time in ask(spark, tmp_path, query).rows.collect():
        assert channel == to_channel(topic)
        assert are_right == [True, True]
        assert nt4_time is None


def test_the_trace_of_an_event_is_a_column(spark, tmp_path):
    """It is there by either name, and found by queries."""
    one, two = (f"00-{digit * 32}-{digit * 16}-01" for digit in "12")
    details = [None, '{"binary":{}}', f'{{"x":1,"traceparent":"{one}"}}', f'{{"_traceparent":"{two}"}}']
    add(tmp_path, "events", [row(number, details=each) for number, each in enumerate(details, 1)])
    add(tmp_path, "events", [row(number) for number in (5, 6)])
    for condition, found in (
        ("true", [None, None, one, two, None, None]),
        (f"traceparent = '{two}'", [two]),
        (f"traceparent in ('{one}', '{two}')", [one, two]),
        ("traceparent is not null", [one, two]),
        ("traceparent is null", [None] * 4),
        (f"traceparent like '{two[:20]}%'", [two]),
        (f"traceparent > '{one}'", [two]),
        (f"not traceparent <=> '{one}'", [None, None, two, None, None]),
    ):
        answer = ask(spark, tmp_path, f"select traceparent from events where {condition} order by offset")
        assert [each.traceparent for each in answer.rows.collect()] == found, condition


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("insert into events select * from events", "INSERT INTO"),
        ("with x as (select 1) insert into events select * from x", "INSERT"),
        ("from events insert into gaps select * insert into rejected select *", "INSERT"),
        ("insert overwrite directory '/tmp/x' using csv select 1", "INSERT OVERWRITE"),
        ("drop table events", "DROP TABLE"),
        ("-- it goes\n/* now */ drop\n  table if exists events", "DROP TABLE"),
        ("create view v as select 1", "CREATE VIEW"),
        ("create or replace temp view v as select 1", "CREATE VIEW"),
        ("create table x (a int) using parquet location '/tmp/x'", "CREATE TABLE"),
        *(("set a = b", "SET"), ("set", "SET"), ("add jar 'x.jar'", "ADD JAR"), ("use x", "USE")),
        *(("cache table events", "CACHE TABLE"), ("truncate table events", "TRUNCATE TABLE")),
        *(("delete from events", "DELETE FROM"), ("with x as (select 1) delete from events", "DELETE")),
        ("update events set topic = ''", "UPDATE"),
        ("merge into events a using gaps b on a.offset = b.first when matched then delete", "MERGE INTO"),
        *(("begin select 1; end", "BEGIN"), ("execute immediate 'drop table events'", "EXECUTE IMMEDIATE")),
        *(("set var x = 1", "SET"), ("declare x int", "DECLARE"), ("call x()", "CALL")),
        ("select transform(topic) using 'rm' from events", "TRANSFORM"),
        ("select java_method('java.lang.System', 'exit', 1)", "JAVA_METHOD"),
        ("select `reflect`('java.lang.System', 'exit', 1)", "REFLECT"),
        *(("show functions", "SHOW FUNCTIONS"), ("show create table events", "SHOW CREATE")),
        ("describe function now", "DESCRIBE FUNCTION"),
        *(("explain drop table events", "DROP TABLE"), ("explain show tables", "EXPLAIN")),
    ],
)  # fmt: skip
def test_other_statements_are_refused_by_their_names(spark, lake, query, name):
    """A statement that would change something is refused before any of it is executed, in one sentence."""
    with pytest.raises(JobRejected) as refusal:
        ask(spark, lake, query)
    text = str(refusal.value)
    assert text.startswith(f"{name} is refused")
    assert "\n" not in text


def test_show_tables_lists_the_tables(spark, lake):
    """All tables are listed with their meanings, also those that do not exist yet; a pattern selects some."""
    rows = ask(spark, lake, "show tables").rows.collect()
    assert [each.tableName for each in rows] == sorted(TABLES)
    assert rows[2].asDict() == {"tableName": "gaps", "comment": "a range of offsets that the log has lost (bronze)"}
    assert [each.tableName for each in ask(spark, lake, "show tables like 're*|a*'").rows.collect()] == [
        "alerts",
        "rejected",
    ]


@pytest.mark.parametrize("statement", ["describe events", "DESC TABLE events", "describe table extended events"])
def test_describe_shows_columns_with_types_and_meanings(spark, lake, statement):
    """Every column is listed, the computed and the lifted ones too; all have a meaning."""
    columns = ask(spark, lake, "select * from events").rows.columns
    rows = ask(spark, lake, statement).rows.collect()
    found = {each.col_name: (each.data_type, each.comment) for each in rows[: len(columns)]}
    assert found["offset"] == ("bigint", "the position in the log, from 1")
    assert found["name"][0] == "string"
    assert found["time"] == ("timestamp", "time_us as a timestamp")
    assert found["price"] == ("double", LIFTED_MEANING)
    assert [*found] == columns
    assert all(comment for _, comment in found.values())


def test_describe_knows_every_table(spark, lake):
    """Tables that do not exist yet have their columns; a column can be described alone, and columns be listed."""
    for name in TABLES:
        found = [each.col_name for each in ask(spark, lake, f"describe {name}").rows.collect()]
        assert found == ask(spark, lake, f"select * from {name}").rows.columns
    rows = ask(spark, lake, "describe rollups numbers").rows.collect()
    assert {each.info_name: each.info_value for each in rows}["col_name"] == "numbers"
    listed = ask(spark, lake, "show columns in alerts").rows.collect()
    assert [each.col_name for each in listed] == ask(spark, lake, "select * from alerts").rows.columns


@pytest.mark.parametrize(
    ("statement", "title"),
    [
        ("explain select count(*) from events where offset > 50", "== Physical Plan =="),
        ("EXPLAIN /* all */ EXTENDED select count(*) from events where offset > 50", "== Optimized Logical Plan =="),
        ("explain formatted\nselect count(*) from events where offset > 50", "== Physical Plan =="),
        ("-- why\nexplain cost select count(*) from events where offset > 50", "sizeInBytes"),
    ],
)
def test_explain_is_answered_with_the_plan(spark, lake, statement, title):
    """EXPLAIN gives the files that would be read, and the plan in its mode; nothing is read."""
    answer = ask(spark, lake, statement)
    assert answer.explained
    assert answer.plan.startswith("reads events: 3 of 12 files, ")
    assert title in answer.plan


@pytest.mark.parametrize("kind", ["text", "csv", "json", "parquet", "orc", "binaryFile"])
def test_files_cannot_be_named_in_a_query(spark, lake, tmp_path, kind):
    """A query reads the lake's tables and nothing else on the disk."""
    file = tmp_path / "x"
    file.write_text("1\n")
    for words in ("select * from", "describe", "explain select * from"):
        with pytest.raises(JobRejected, match="cannot be found"):
            ask(spark, lake, f"{words} {kind}.`{file}`")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("selec 1", "Syntax error at or near 'selec'"),
        ("select nix from events", "`nix` cannot be resolved"),
        ("select * from nowhere", "`nowhere` cannot be found"),
        ("select explode(1) from events", "data type mismatch"),
        ("select 1; select 2", "Syntax error"),
        ("", "Syntax error"),
    ],
)
def test_a_mistake_is_one_sentence(spark, lake, query, said):
    """A mistake in a query is reported in Spark's words, without its codes, its plan and its traces."""
    with pytest.raises(JobRejected, match=said) as refusal:
        ask(spark, lake, query)
    text = str(refusal.value)
    assert "\n" not in text
    assert "SQLSTATE" not in text
    assert len(text) <= 300


def test_tables_that_are_not_there_have_no_rows(spark, lake):
    """Tables that do not exist yet can be queried, and have no rows."""
    for name in ("rejected", "gaps", "mismatches", "rollups", "sessions", "alerts"):
        answer = ask(spark, lake, f"select * from {name}")
        assert answer.rows.collect() == []
        assert [(reading.table, reading.of) for reading in answer.readings] == [(name, 0)]
    assert "channel" in ask(spark, lake, "select * from rollups").rows.columns


@pytest.mark.parametrize("name", ["q?x", "a b{c,d}[e]*=ü"])
def test_the_folder_of_a_lake_may_have_any_name(spark, tmp_path, name):
    """Characters of patterns mean nothing in the name of a lake's folder: each row is counted once."""
    make_lake(tmp_path / name, 60)
    query = "select count(*), count(distinct offset, protocol, day) from events"
    assert ask(spark, tmp_path / name, query).rows.collect() == [(60, 60)]


def test_it_can_be_asked_what_columns_could_not_take(spark, tmp_path):
    """The query of the pipeline's page, and the time at which it was found as a timestamp."""
    row = {"first": 1, "last": 9, "found_us": START_US, "column_name": "price", "column_type": "long", "kind": "string"}
    add(tmp_path, "mismatches", [row | {"events": 3}, row | {"first": 10, "last": 20, "events": 4}])
    *_, query = shlex.split(block("mismatches"))
    assert ask(spark, tmp_path, query).rows.collect() == [("price", "string", 7)]
    assert ask(spark, tmp_path, "select count(*) from mismatches where found < now()").rows.collect() == [(2,)]


def test_rollups_can_be_asked_for_their_numbers(spark, tmp_path):
    """Maps, structs and dates are returned as JSON."""
    numbers = {"price": {"count": 2, "min": 1.0, "mean": 1.5, "max": 2.0, "p50": 1.0, "p95": 2.0, "p99": 2.0}}
    rollup = {"window": "10s", "start_us": START_US, "end_us": START_US + 10_000_000, "topic": "a/b", "protocol": "nt4"}
    from datetime import date

    add(tmp_path, "rollups", [rollup | {"events": 2, "bytes": 9, "publishers": 1, "numbers": [*numbers.items()],
                                    "day": date(2026, 6, 1)}])  # fmt: skip
    query = (
        "select channel, numbers['price'].mean as mean, start, day from rollups where start < now() and window = '10s'"
    )
    (found,) = output.as_json(ask(spark, tmp_path, query).rows)
    assert json.loads(found) == {
        "channel": "/a/b",
        "mean": 1.5,
        "start": "2026-06-01T00:00:00.000000Z",
        "day": "2026-06-01",
    }


ODD = (
    "select 7 as n, 'a,\"b\"\n\u001b[31m' as t, null as v, array(1, null) as l, "
    "timestamp'2026-01-02 03:04:05.5' as w, 1 as n"
)


def test_csv_is_what_programs_read(spark, lake):
    """RFC 4180: values can have quotes, commas and line ends; nested values are JSON, and times are in UTC."""
    text = "".join(output.as_csv(ask(spark, lake, ODD).rows))
    heading, values = csv.reader(io.StringIO(text))
    assert heading == ["n", "t", "v", "l", "w", "n"]
    assert values == ["7", 'a,"b"\n\u001b[31m', "", "[1,null]", "2026-01-02T03:04:05.500000Z", "1"]


def test_json_lines_are_objects(spark, lake):
    """JSON lines have nulls too, values keep their types, and a second column of the same name gets a number."""
    (line,) = output.as_json(ask(spark, lake, ODD).rows)
    assert json.loads(line) == {
        "n": 7,
        "t": 'a,"b"\n\u001b[31m',
        "v": None,
        "l": [1, None],
        "w": "2026-01-02T03:04:05.500000Z",
        "n_2": 1,
    }


def test_a_table_fits_the_terminal_and_cannot_steer_it(spark, lake):
    """Tables have numbers aligned right and strings left; long values are cut, and control characters are escaped."""
    query = (
        "select * from values (1, 'short', 1.5), (20000, concat('\u001b[2J', repeat('x', 200)), null) as t(n, text, d)"
    )
    heading, rule, one, other = output.as_table(ask(spark, lake, query).rows, 40)
    assert heading == f"    n  text{' ' * 28}d\n"
    assert set(rule) <= {"-", " ", "\n"}
    assert one.split() == ["1", "short", "1.5"]
    assert one.startswith("    1  short ")
    assert other.startswith("20000  \\x1b[2Jxxx")
    assert other.endswith("…  null\n")
    assert all(len(line) <= 41 for line in (heading, rule, one, other))


def test_parquet_keeps_the_types(spark, lake, tmp_path):
    """Parquet output is one file, which any tool can read, and nothing else in its folder."""
    output.write_parquet(
        ask(spark, lake, "select offset, time, day, price from events order by offset").rows, tmp_path / "x"
    )
    found = pq.read_table(tmp_path / "x")
    assert [str(field.type) for field in found.schema] == ["int64", "timestamp[us, tz=UTC]", "date32[day]", "double"]
    assert found["offset"].to_pylist() == list(range(1, 61))
    assert [each.name for each in tmp_path.iterdir()] == ["x"]


def test_a_query_that_fails_on_its_way_is_one_sentence_too(spark, lake):
    """An error that occurs while rows are computed, here a division by zero, is one sentence too."""
    answer = ask(spark, lake, "select offset / (offset - 1) from events order by offset desc")
    with pytest.raises(JobFailed, match="the query failed: Division by zero") as failure, computing():
        list(output.as_csv(answer.rows))
    assert "\n" not in str(failure.value)


@pytest.fixture
def halley(spark, lake, monkeypatch):
    """Return a function that runs verbs in this process, on the shared Spark session."""
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)
    return lambda *arguments: CliRunner().invoke(main, ["lake", *arguments, "--lake", str(lake)])


@pytest.mark.slow
def test_verbs_write_files_whole_and_over_nothing(halley, tmp_path):
    """An existing file is not changed, and a file that cannot be written is reported in one sentence."""
    out = tmp_path / "top.json"
    top_one = ["top", "--limit", "1", "--format", "json", "--out"]
    done = halley(*top_one, str(out))
    assert (done.exit_code, done.output) == (0, "")
    assert json.loads(out.read_text())["events"] > 1
    refused = halley(*top_one, str(out))
    assert (refused.exit_code, refused.stderr) == (2, f"halley: {out} already exists\n")
    refused = halley(*top_one, str(tmp_path / "none" / "x"))
    assert refused.exit_code == 2
    assert "cannot be written: No such file or directory" in refused.stderr
    assert list(tmp_path.iterdir()) == [out]


def test_explain_tells_the_files_and_reads_none(halley):
    """`--explain` prints how many files are skipped, and Spark's plans."""
    query = "select count(*) from events where offset > 50"
    for arguments in ((query, "--explain"), (f"explain {query}", "--format", "json")):
        told = halley("sql", *arguments)
        assert told.exit_code == 0
        assert told.stdout.startswith("reads events: 3 of 12 files, ")
        assert "== Physical Plan ==" in told.stdout


def test_a_mistake_ends_with_code_2(halley):
    """A wrong query gives Spark's sentence, and nothing on standard output."""
    refused = halley("sql", "select nix from events")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith("halley: A column, variable, or function parameter with name `nix` cannot be")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sql", "select 1", "--format", "parquet"], "--format parquet needs --out FILE"),
        (["sql", "select 1", "--conf", "x"], "--conf x: expected KEY=VALUE"),
        (["top", "--last", "soon"], "soon is not a duration such as 90s, 30m, 1h or 7d"),
        (["top", "--by", "size"], "'size' is not one of"),
    ],
)
def test_wrong_use_is_told_before_spark_starts(tmp_path, arguments, said):
    """Wrong options give exit code 2 immediately."""
    refused = CliRunner().invoke(main, ["lake", *arguments, "--lake", str(tmp_path)])
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert said in " ".join(refused.stderr.split())


def test_without_the_extra_the_sentence_says_what_to_install(tmp_path, monkeypatch):
    """Without the extra, which the server does not need, each verb says what to install."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for verb in (
        ["sql", "select 1"],
        ["history", "/a"],
        ["report", "--out", "x"],
        ["replay", "--channel", "/a"],
        ["top"],
    ):
        refused = CliRunner().invoke(main, ["lake", *verb, "--lake", str(tmp_path)])
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert refused.stderr == "halley: the data pipeline is not installed: pip install 'halley-server[pipeline]'\n"
