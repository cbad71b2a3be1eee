"""Names in SQL: the column `name`, and the files that a condition on it reads."""

from __future__ import annotations

import random
from datetime import date

import pyarrow.parquet as pq
import pytest
from support.lakes import add, add_files, row
from support.names import ODD_NAMES

from halley.pipeline.lake.tables import open_table
from halley.pipeline.queries.conditions import ANYTHING, is_in, plan_scan
from halley.pipeline.queries.plans import _named
from halley.pipeline.queries.sql import ask
from halley.pipeline.queries.views import Computed, in_spark, views_of
from halley.protocols.bayeux.names import to_channel
from halley.protocols.names import name_of, topic_of

NAMED = [(protocol, name, topic_of(name, protocol)) for protocol, names in ODD_NAMES.items() for name in names]
NAME = Computed("name", "topic")


def test_names_are_those_of_the_server(spark, tmp_path):
    """The column equals `name_of`, for each protocol and for topics that spell escapes of each kind."""
    chance = random.Random(15)
    pieces = ["!21", "21", "2e", "20", "23", "41", "c2", "85", "a0", "e2", "80", "a8", "!2180", "!2185", "!e3!80!80",
              "!2e", "!20", "!c2!a0", "!c3!a9", "!f0!9f!a4!96", "!00", "!25", "!2b", "/", "x"]  # fmt: skip
    topics = ["x" + "".join(chance.choices(pieces, k=chance.randrange(2, 9))).rstrip("/") for _ in range(500)]
    topics = [topic for topic in topics if "//" not in topic]
    topics += [topic for _, _, topic in NAMED]
    topics += [":lab/com/x", "::/wamp/session/on_join", "meta/x", "service/x", "wamp/x", "a!2fb"]
    protocols = ("wamp", "nt4", "bayeux", "http")
    rows = [
        row(number, topic=topic, protocol=protocol)
        for number, (topic, protocol) in enumerate(((topic, by) for topic in topics for by in protocols), 1)
    ]
    add(tmp_path, "events", rows)
    found = ask(spark, tmp_path, "select topic, protocol, name, channel from events").rows.collect()
    assert len(found) == len(rows)
    for topic, protocol, name, channel in found:
        assert (name, channel) == (name_of(topic, protocol), to_channel(topic)), (topic, protocol)


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Make a lake with a file for each odd name, and a few with the same names by other protocols."""
    folder = tmp_path_factory.mktemp("lake")
    of_names = [(protocol, topic) for protocol, _, topic in NAMED for _ in range(2)]
    others = [("bayeux", "com/shop/order"), ("nt4", "com/shop/order"), ("wamp", "a/b"), ("http", "a/b")]
    rows = [row(offset, topic=topic, protocol=by) for offset, (by, topic) in enumerate([*of_names, *others], 1)]
    pairs = [rows[at : at + 2] for at in range(0, len(of_names), 2)]
    add_files(folder, "events", [*pairs, *([each] for each in rows[len(of_names) :])])
    return folder


def rows_of(lake):
    """Return the table, its files, and the name and file of each row."""
    table = open_table(lake, "events")
    files = table.data_files()
    found = []
    for file in files:
        topics = pq.read_table(lake / "events" / file.path, columns=["topic"], partitioning=None)["topic"].to_pylist()
        found += [(name_of(topic, file.partition["protocol"]), file) for topic in topics]
    return table, files, found


@pytest.mark.nightly
def test_a_condition_on_a_name_reads_as_few_files_as_on_its_topic(lake):
    """For each odd name: no more files than for its topics, and every file that has a row of this name.

    Most names are a topic's in one protocol; a few are one topic's as a channel and another's in NetworkTables.
    """
    table, _, rows = rows_of(lake)
    for _, name, _ in NAMED:
        read = plan_scan("events", table, _named(NAME, [name], is_whole=True)).files
        assert {file.path for each, file in rows if each == name} <= {file.path for file in read}, name
        topics = {topic for protocol in ODD_NAMES if (topic := topic_of(name, protocol)) is not None}
        assert len(read) <= len(plan_scan("events", table, is_in("topic", topics)).files), name


@pytest.mark.slow
def test_no_file_is_left_out_by_the_beginning_of_a_name(lake):
    """For beginnings of odd names, and for channels as well, files with such rows are read."""
    table, files, rows = rows_of(lake)
    read = 0
    beginnings = random.sample(sorted({name[:chars] for _, name, _ in NAMED for chars in range(len(name) + 1)}), 300)
    for beginning in beginnings:
        chosen = {file.path for file in plan_scan("events", table, _named(NAME, [beginning], is_whole=False)).files}
        for name, file in rows:
            assert file.path in chosen or not name.startswith(beginning), (beginning, name)
        read += len(chosen)
    assert read < len(beginnings) * len(files) / 4, "hardly anything is skipped"


@pytest.mark.slow
def test_the_filter_for_the_rows_accepts_all_of_a_name(spark, lake):
    """A row of a name passes the condition that was made of it, in Spark too."""
    view = views_of(lake, ["events"])["events"]
    wanted = sorted({name for _, name, _ in NAMED})
    passed = [f"({in_spark(_named(NAME, [name], is_whole=True))}) p{number}" for number, name in enumerate(wanted)]
    rows = view.rows(spark, view.needed(ANYTHING).files, ANYTHING).selectExpr("name", *passed).collect()
    assert {each.name for each in rows} >= {*wanted}
    for each in rows:
        assert each.name not in wanted or each[f"p{wanted.index(each.name)}"], each.name


@pytest.mark.parametrize(
    ("condition", "on_topic", "count"),
    [
        ("name = 'com.shop.order'", "topic = 'com/shop/order'", 2),
        ("name like 'com.shop.%'", "topic like 'com/shop/%'", 4),
        ("name in ('com.shop.order', '/robot/speed')", "topic in ('com/shop/order', 'robot/speed')", 4),
        ("name = '/robot/weird name %d.x'", "topic = 'robot/weird!20name!20!25d!2ex'", 2),
        ("name like '/robot/weird name %'", "topic like 'robot/weird!20name!20%'", 2),
        ("name = '/a/b'", "topic = 'a/b'", 5),
        ("name = '/com/shop/order'", "topic = 'com/shop/order'", 4),
        ("name = '/a!212eb' or name = 'a!2eb'", "topic in ('a!212eb', 'a!2eb')", 4),
    ],
)
def test_queries_by_name_find_all_rows_in_few_files(spark, lake, condition, on_topic, count):
    """A name, several and a beginning: the rows that all files have, from no more files than by topic."""
    found = ask(spark, lake, f"select count(*) from events where {condition}")
    by_topic = ask(spark, lake, f"select count(*) from events where {on_topic}")
    assert found.rows.collect() == [(count,)]
    assert len(found.readings[0].files) <= len(by_topic.readings[0].files) < found.readings[0].of / 10


def test_a_uri_is_found_in_every_realm(spark, tmp_path):
    """Topics of further realms have the same URIs, in spaces of their own."""
    for offset, topic in enumerate(["com/x", ":lab/com/x", ":other/com/y", "zoo"], 1):
        add(tmp_path, "events", [row(offset, topic=topic, protocol="wamp")])
    for condition, offsets, files in [
        ("name = 'com.x'", [1, 2], 3),
        ("name like 'com.%'", [1, 2, 3], 3),
        ("channel = '/:lab/com/x'", [2], 2),
        ("name = 'zoo'", [4], 3),
    ]:
        answer = ask(spark, tmp_path, f"select offset from events where {condition} order by offset")
        assert [each.offset for each in answer.rows.collect()] == offsets, condition
        assert len(answer.readings[0].files) == files, condition


def test_rollups_and_alerts_have_names(spark, tmp_path):
    """Every view with a topic has the name next to the channel; an alert without a protocol has the channel."""
    day = date(1970, 1, 1)
    add(tmp_path, "rollups", [{"window": "10s", "start_us": 0, "topic": "com/x", "protocol": "wamp", "day": day}])
    add(tmp_path, "alerts", [{"at_us": 1, "topic": "a!20b", "protocol": by, "kind": "silence"} for by in ("nt4", None)])
    assert ask(spark, tmp_path, "select channel, name from rollups where name = 'com.x'").rows.collect() == [
        ("/com/x", "com.x")
    ]
    found = ask(spark, tmp_path, "select name from alerts where name like '/a%' order by name").rows.collect()
    assert [each.name for each in found] == ["/a b", "/a!20b"]
