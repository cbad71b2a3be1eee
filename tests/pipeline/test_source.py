"""The data source `halley` in real Spark, as a table and as a stream: every offset is accounted for."""

import asyncio
import threading
from pathlib import Path

import orjson
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql.types import StructType
from support.archive import BEGAN_US, given
from support.damage import files, flip, remove_rows
from support.log import SMALL, OpenLog
from support.server import brisk, serving

from halley.access.tokens import hash_of
from halley.broker.names import Match, Pattern
from halley.broker.ports import Erasure
from halley.history import checksummed_json
from halley.history.stored import COLUMNS, Stored, checksum
from halley.pipeline.errors import JobFailed, JobRejected, cause_of
from halley.pipeline.source.columns import lifts_of
from halley.pipeline.source.log import GapFound, Gone
from halley.pipeline.source.options import SourceOptions
from halley.pipeline.source.source import HalleySource, Table
from halley.protocols.bayeux.names import to_channel
from halley.settings import Access, Lift, Settings, Token

pytestmark = pytest.mark.slow

PADDING = "x" * 400
TOKEN = "a-token-that-is-long-enough-for-halley"


def write(opened, first, last, topic="news"):
    """Write numbered events in groups of fifty; a segment ends with a group."""
    for begin in range(first, last + 1, 50):
        numbers = range(begin, min(begin + 50, last + 1))
        opened.write(*({"number": number, "padding": PADDING} for number in numbers), topic=topic)


@pytest.fixture
def folder(tmp_path):
    """Make a log of 600 events in several segments: one purged, a segment damaged, ten in a known hole, ten missing."""
    with OpenLog(tmp_path, **SMALL) as opened:
        opened.write({"number": 1}, topic="private")
        write(opened, 2, 600)
        opened.history.purge(Erasure(Pattern(Match.EXACT, "private"), None), lambda _done, _of: None)
        write(opened, 601, 650)
    first = sorted(files(tmp_path))
    flip(files(tmp_path)[damaged(tmp_path)[0]], b'"number":300,')
    newest = files(tmp_path)[first[-1]]
    assert first[-1] <= 620
    remove_rows(newest, 621, 630)
    remove_rows(newest, 641, 650)
    checksummed_json.save(tmp_path / "log.json", checksummed_json.load(tmp_path / "log.json") | {"holes": [(621, 630)]})
    return tmp_path


def read(spark, folder, **options):
    """Return a DataFrame of the log."""
    return spark.read.format("halley").options(**options).load(str(folder))


def account(rows, first, until):
    """Return the faults among rows; assert that events and faults together cover each offset of a range once."""
    told = []
    for row in rows:
        told += range(row.offset, (row.fault_last or row.offset) + 1)
    assert sorted(told) == list(range(first, until))
    return {(row.offset, row.fault_last, row.fault) for row in rows if row.fault is not None}


def damaged(folder):
    """Return the first and the last offset of the segment that is damaged."""
    return max(first for first in files(folder) if first <= 300), min(
        first for first in files(folder) if first > 300
    ) - 1


def lost(folder):
    """Return how many events are in that segment."""
    first, last = damaged(folder)
    return last - first + 1


# As a table


def test_every_offset_is_accounted_for(spark, folder):
    """Events and faults together are the range, for any size of partitions; events are as they were stored (L7)."""
    rows = read(spark, folder, faults="true", accept_gap="true", partition_rows="97").collect()
    faults = account(rows, 1, 651)
    assert {fault for fault in faults if fault[2] == "purged"} == {(1, 1, "purged")}
    first, last = damaged(folder)
    parts = [range(low, high + 1) for low, high, why in faults if why == "damaged"]
    assert sorted(offset for part in parts for offset in part) == list(range(first, last + 1))
    events = [Stored(*row[: len(COLUMNS)]) for row in rows if row.fault is None]
    assert all(row.channel == "/news" for row in rows if row.fault is None)
    assert all(row.crc == checksum(row[:-1]) for row in events)
    assert {orjson.loads(row.payload)["number"] for row in events} == {row.offset for row in events}
    whole = read(spark, folder, faults="true", accept_gap="true", partition_rows="1000").collect()
    expected = {(1, 1, "purged"), (first, last, "damaged"), (621, 630, "hole"), (641, 650, "missing")}
    assert account(whole, 1, 651) == expected
    purged = next(row for row in whole if row.fault == "purged")
    assert purged.time_us is not None
    assert (purged.topic, purged.payload, purged.crc) == (None, None, None)
    part = read(spark, folder, faults="true", from_offset="600", until_offset="625").collect()
    assert account(part, 600, 625) == {(621, 624, "hole")}


def test_a_gap_fails_the_query_and_is_named(spark, folder):
    """L9: rows that are missing or damaged fail the query, with or without `faults`; with accept_gap it continues."""
    first, last = damaged(folder)
    for begin, told in [
        (1, f"offsets {first} to {last} are in a damaged segment of the log: "),
        (last + 1, "offsets 641 to 650 are missing in the log"),
    ]:
        with pytest.raises(Exception) as failed:  # noqa: PT011 - Spark's, of one kind or another
            read(spark, folder, from_offset=str(begin)).count()
        said = cause_of(failed.value)
        assert isinstance(said, GapFound)
        assert str(said).startswith(told)
        assert "\n" not in str(said)
    assert read(spark, folder, accept_gap="true").count() == 650 - 21 - lost(folder)
    assert read(spark, folder, from_offset=str(last + 1), until_offset="631").count() == 630 - 10 - last


def test_filters_of_one_query_are_not_the_next_ones(spark, folder):
    """T12: a DataFrame that was filtered gives all rows, or those of other filters, in the next query."""
    frame = read(spark, folder, until_offset="601", accept_gap="true")
    assert frame.filter("offset < 20 and topic = 'news'").count() == 18
    assert frame.count() == 599 - lost(folder)
    low, high = frame.filter("offset < 20"), frame.filter("offset >= 590")
    assert low.union(high).count() == 18 + 11


def test_what_is_lifted_has_columns(spark, tmp_path):
    """The columns of settings' [[lift]] tables are available in Spark, together with the faults."""
    with OpenLog(tmp_path) as opened:
        opened.write({"price": 1.5, "count": 3}, {"price": 2, "count": "many"}, topic="market/a")
        opened.write({"price": 9.0}, topic="else")
    lifts = Settings(lift=(Lift("/market/*", "/price", "price", "double"), Lift("/market/*", "/count", "n", "long")))
    frame = read(spark, tmp_path, lift=lifts_of(lifts), faults="true")
    assert frame.columns == [*COLUMNS, "fault", "fault_last", "price", "n", "channel", "name", "time", "traceparent"]
    assert [tuple(row) for row in frame.select("price", "n").orderBy("offset").collect()] == [
        (1.5, 3),
        (2.0, None),
        (None, None),
    ]


def test_an_empty_log_has_no_rows(spark, tmp_path):
    """An empty log and an empty range have no rows."""
    with OpenLog(tmp_path) as opened:
        assert read(spark, tmp_path, faults="true").count() == 0
        opened.write(1)
        assert read(spark, tmp_path, from_offset="2").count() == 0
        assert read(spark, tmp_path, from_offset="1", until_offset="1").count() == 0


# Only some events, and only some columns

NAMED = [
    ("com/shop/order", "wamp", "/com/shop/order", "com.shop.order"),
    ("com/shop/a!2fb", "wamp", "/com/shop/a!2fb", "com.shop.a/b"),
    ("robot/weird!20name!20!25d!2ex", "nt4", "/robot/weird!20name!20!25d!2ex", "/robot/weird name %d.x"),
    ("a!2fb", "nt4", "/a!2fb", "/a!2fb"),
    ("prices/!7ex", "bayeux", "/prices/~x", "/prices/~x"),
    (":other/com/shop", "wamp", "/!3aother/com/shop", "com.shop"),
    ("halley/sessions", "halley", "/halley/sessions", "/halley/sessions"),
]


@pytest.fixture
def shop(tmp_path):
    """Make a log of 420 events of seven channels, one a second from 2026-07-01T12:00:00Z on."""
    with OpenLog(tmp_path / "shop", **SMALL) as opened:
        for number in range(420):
            topic, protocol, _, _ = NAMED[number % len(NAMED)]
            opened.append_to(topic, PADDING, time_us=BEGAN_US + number * 1_000_000, protocol=protocol)
            if number % 50 == 0:
                assert opened.history.written(20)
    return tmp_path / "shop"


def test_channels_names_and_times_are_columns(spark, shop):
    """They are those of the lake's SQL: the name is what the event's publisher wrote."""
    rows = read(spark, shop, until_offset=str(len(NAMED) + 1)).orderBy("offset").collect()
    assert [(row.topic, row.protocol, row.channel, row.name) for row in rows] == [
        (topic, protocol, to_channel(topic), name) for topic, protocol, _, name in NAMED
    ]
    assert [to_channel(topic) for topic, *_ in NAMED[:5]] == [channel for _, _, channel, _ in NAMED[:5]]
    assert [round(row.time.timestamp() * 1_000_000) for row in rows] == [row.time_us for row in rows]
    assert read(spark, shop).where("name = 'com.shop.order' and time >= '2026-07-01T12:06:30Z'").count() == 4


CHOICES = [
    ({"channel": "/com/shop/order"}, 60),
    ({"channel": "/com/**"}, 120),
    ({"channel": "/**"}, 300),
    ({"channel": "/halley/**"}, 60),
    ({"channel": "/none"}, 0),
    ({"protocol": "nt4"}, 120),
    ({"channel": "/com/**", "protocol": "nt4"}, 0),
    ({"from_time": "2026-07-01T12:01:00Z", "until_time": "2026-07-01T14:02:00.9+02:00"}, 61),
    ({"channel": "/com/shop/order", "from_time": "2026-07-01T12:01:00Z", "from_offset": "100"}, 45),
]


@pytest.mark.parametrize(("options", "count"), CHOICES)
def test_only_some_events_as_a_table(spark, shop, options, count):
    """A channel, a pattern, a protocol and a time, also together with a range of offsets, in many small tasks."""
    rows = read(spark, shop, partition_rows="100", **options).select("offset").collect()
    assert len(rows) == len({row.offset for row in rows}) == count


def test_one_frame_gives_the_right_count_to_each_of_its_queries(spark, shop):
    """T12: filtered, unfiltered, filtered otherwise, as a frame and as a view, with an option and without one."""
    for options, counts in (({}, (60, 420, 120)), ({"channel": "/com/**"}, (60, 120, 0))):
        frame = read(spark, shop, **options)
        frame.createOrReplaceTempView("shop")
        conditions = ("topic = 'com/shop/order'", "true", "protocol = 'nt4'")
        assert tuple(frame.where(each).count() for each in conditions) == counts
        counted = (spark.sql(f"select count(*) from shop where {each}").first()[0] for each in conditions)
        assert tuple(counted) == counts


def test_a_schema_chooses_columns(spark, shop):
    """A user's schema is read as it is, in its order, in batches and streams; the columns are those of a full read."""
    whole = read(spark, shop)
    for schema in ("offset long, topic string", "name string, time timestamp, offset bigint", "payload string"):
        frame = spark.read.format("halley").schema(schema).load(str(shop))
        names = [each.split()[0] for each in schema.split(", ")]
        assert frame.columns == names
        assert sorted(frame.collect()) == sorted(whole.select(*names).collect())
        assert frame.count() == 420
    assert spark.read.format("halley").schema(whole.schema).load(str(shop)).columns == whole.columns
    lifts = lifts_of(Settings(lift=(Lift("/prices/*", "", "text", "string"),)))
    frame = spark.read.format("halley").schema("text string, offset long").option("lift", lifts).load(str(shop))
    assert frame.where("text is not null").count() == 60
    frame = spark.read.format("halley").schema("fault string, fault_last long").option("faults", "true").load(str(shop))
    assert frame.where("fault is null").count() == 420


REFUSED = [
    ("offset long, colour string", "has no column colour; with these options it has offset, time_us, topic, "),
    ("offset long, fault string", "has no column fault;"),
    ("Offset long", "has no column Offset;"),
    ("offset int", "the column offset of the source halley has the type long, and may be null"),
    ("topic string, time string", "the column time of the source halley has the type timestamp, and may be null"),
    ("topic string not null", "the column topic of the source halley has the type string, and may be null"),
]


def test_a_schema_of_other_columns_is_refused_by_name(spark, tmp_path):
    """Each is refused with its column, in batches and streams."""
    source = HalleySource({"path": str(tmp_path)})
    for schema, reason in REFUSED:
        for reader in (source.reader, source.streamReader):
            with pytest.raises(JobRejected, match=reason):
                reader(StructType.fromDDL(schema))
    with pytest.raises(JobRejected, match="at least one of its columns"):
        source.reader(StructType([]))


def test_a_schema_is_refused_when_the_query_is_planned(spark, tmp_path):
    """No worker reads anything."""
    with OpenLog(tmp_path / "log") as opened:
        opened.write(1, 2)
    schema = "offset long, colour string"
    with pytest.raises(AnalysisException, match="has no column colour"):
        spark.read.format("halley").schema(schema).load(str(tmp_path / "log")).count()
    with pytest.raises(PySparkException) as failed:
        stream(spark, tmp_path / "log", tmp_path, [], schema)
    cause = cause_of(failed.value)
    assert isinstance(cause, JobRejected)
    assert "has no column colour" in str(cause)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"channel": "a/b"}, "the option channel must be a channel, a pattern such as /a/**, or a name of WAMP"),
        ({"channel": ""}, "the option channel must be"),
        ({"channel": "/a//b"}, "the option channel must be"),
        ({"protocol": "a b"}, "the option protocol must be the name of a protocol, such as wamp, not a b"),
        ({"from_time": "2026-07-01"}, "the option from_time must be a time with its offset, such as "),
        ({"until_time": "now"}, "the option until_time must be a time with its offset, such as "),
    ],
)
def test_conditions_that_cannot_be(options, reason):
    """Each is refused with its name and what it may be."""
    with pytest.raises(JobRejected) as refused:
        SourceOptions(options)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"colour": "red"}, "the source halley has no option colour"),
        ({"from_offset": "x"}, "the option from_offset must be a whole number, at least 1, not x"),
        ({"partition_rows": "0"}, "partition_rows must be a whole number, at least 1"),
        ({"faults": "perhaps"}, "the option faults must be true or false, not perhaps"),
        ({"consumer": "../x"}, "the option consumer must be"),
        ({"from_offset": "99"}, "from_offset is 99, but the log ends before 3"),
        ({"until_offset": "4"}, "until_offset is 4, but the log ends before 3"),
    ],
)
def test_options_that_cannot_be(spark, tmp_path, options, said):
    """Invalid options give one sentence, wherever in Spark they were detected."""
    with OpenLog(tmp_path) as opened:
        opened.write(1, 2)
    with pytest.raises(Exception) as failed:  # noqa: PT011 - Spark's, of one kind or another
        read(spark, tmp_path, **options).count()
    cause = cause_of(failed.value)
    assert isinstance(cause, JobRejected)
    assert said in str(cause)


def test_what_retention_has_deleted_is_said(tmp_path):
    """Deleted offsets give one sentence with their range and the log's first offset."""
    with OpenLog(tmp_path, **SMALL) as opened:
        write(opened, 1, 600)
    firsts = sorted(files(tmp_path))
    files(tmp_path)[1].unlink()
    with pytest.raises(
        Gone, match=rf"offsets 5 to {firsts[1] - 1} of the log are deleted, it now begins at {firsts[1]};"
    ):
        list(Table(SourceOptions({"path": str(tmp_path)})).batches(5, 600))
    table = Table(SourceOptions({"path": str(tmp_path), "accept_gap": "true", "faults": "true"}))
    batches = list(table.batches(5, 600))
    assert sum(batch.num_rows for batch in batches) == 600 - firsts[1] + 1
    assert batches[0].column("fault_last").to_pylist() == [firsts[1] - 1]


def test_the_token_is_in_no_plan(spark, tmp_path):
    """Plans are printed and logged, so they must not have the token."""
    with OpenLog(tmp_path) as opened:
        opened.write(1)
    frame = read(spark, tmp_path, token=TOKEN)
    plan = frame._jdf.queryExecution().toString()
    assert "halley" in plan
    assert TOKEN not in plan


async def test_a_server_is_read_from_any_machine(spark, tmp_path):
    """Spark's workers read a server's log over HTTP, with a token: every row and every fault."""
    file = tmp_path / "token"
    file.write_text(TOKEN)
    settings = brisk(access=(Access("reader", "export", "/**"),), tokens=(Token("eve", "reader", hash_of(TOKEN)),))
    async with serving(settings) as served:
        archive = given(served)
        for number in range(1, 301):
            archive.record("news", f'{{"number":{number}}}')
        sound = archive.rows
        archive.rows = lambda *bounds: ([row for row in rows if row.offset != 7] for rows in sound(*bounds))
        archive.damage += [(7, 7)]
        reading = spark.read.format("halley").options(
            url=served.url, token_file=str(file), faults="true", accept_gap="true", partition_rows="100"
        )
        rows = await asyncio.to_thread(lambda: reading.load().collect())
        assert account(rows, 1, 301) == {(7, 7, "damaged")}


def test_relative_paths_are_those_of_the_driver():
    """T13: a worker has another working folder."""
    assert Table(SourceOptions({"path": "halley-data"})).log.path == Path.cwd() / "halley-data"


# As a stream


def stream(spark, folder, tmp_path, seen, schema=None, **options):
    """Run a streaming query until it has read all, and add the offsets of each micro-batch to `seen`."""
    reader = spark.readStream.format("halley").options(**options)
    frame = (reader if schema is None else reader.schema(schema)).load(str(folder))

    def note(batch, _number):
        seen.append(sorted(row.offset for row in batch.select("offset").collect()))

    query = (
        frame.writeStream.foreachBatch(note)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(60)
    assert not query.isActive


def test_a_stream_reads_every_row_once(spark, tmp_path):
    """A stream reads a log that is written in bounded batches, resumes at its checkpoint, and reports its position."""
    seen = []
    with OpenLog(tmp_path / "log", **SMALL) as opened:
        write(opened, 1, 200)
        writer = threading.Thread(target=write, args=(opened, 201, 500))
        writer.start()
        stream(spark, tmp_path / "log", tmp_path, seen, max_rows="150", consumer="test")
        writer.join(30)
        stream(spark, tmp_path / "log", tmp_path, seen, max_rows="150", consumer="test")
    assert max(map(len, seen)) <= 150
    assert [offset for batch in seen for offset in batch] == list(range(1, 501))
    position = checksummed_json.load(tmp_path / "log" / "consumers" / "test.json")["offset"]
    assert position in {1 + sum(map(len, seen[:count])) for count in range(1, len(seen) + 1)}


def test_a_stream_passes_over_what_it_does_not_want(spark, shop, tmp_path):
    """Its position goes on behind events of other channels, and quiet ranges are no micro-batches of their own."""
    seen, options = [], {"channel": "/prices/*", "consumer": "test", "max_rows": "25"}
    stream(spark, shop, tmp_path, seen, "offset long, name string", **options)
    assert [len(offsets) for offsets in seen] == [25, 25, 10]
    assert [offset for offsets in seen for offset in offsets] == list(range(5, 421, 7))
    position = checksummed_json.load(shop / "consumers" / "test.json")
    with OpenLog(shop, **SMALL) as opened:
        opened.write(*range(500), topic="other")
    stream(spark, shop, tmp_path, seen, "offset long, name string", **options)
    assert seen[3:] in ([[]], [])  # Spark may leave out a micro-batch without rows
    with OpenLog(shop, **SMALL) as opened:
        opened.write(1, topic="prices/x")
    stream(spark, shop, tmp_path, seen, "offset long, name string", **options)
    assert seen[-1] == [921]
    assert checksummed_json.load(shop / "consumers" / "test.json")["offset"] > position["offset"]


def test_a_stream_of_one_channel_stops_at_a_gap_of_the_log(spark, folder, tmp_path):
    """L9: a gap is reported although none of its events may have been wanted; with faults it is in the rows."""
    options = {"channel": "/private", "from_offset": str(damaged(folder)[1] + 1)}
    with pytest.raises(PySparkException) as failed:
        stream(spark, folder, tmp_path, [], **options)
    assert str(cause_of(failed.value)).startswith("offsets 641 to 650 are missing in the log")
    rows = read(spark, folder, channel="/private", faults="true", accept_gap="true").collect()
    assert {(row.offset, row.fault_last, row.fault) for row in rows} == {
        (*damaged(folder), "damaged"),
        (621, 630, "hole"),
        (641, 650, "missing"),
    }


def test_a_checkpoint_of_another_log_is_refused(spark, tmp_path):
    """A checkpoint of another log is refused with one sentence, and nothing of that log is read."""
    seen = []
    for name in ("one", "other"):
        with OpenLog(tmp_path / name) as opened:
            opened.write(1, 2)
    stream(spark, tmp_path / "one", tmp_path, seen)
    with pytest.raises(Exception) as failed:  # noqa: PT011 - Spark's, of one kind or another
        stream(spark, tmp_path / "other", tmp_path, seen)
    cause = cause_of(failed.value)
    assert isinstance(cause, JobRejected)
    assert str(cause).startswith("the checkpoint belongs to the log ")
    assert seen == [[1, 2]]


# Errors


def test_a_cause_is_found_wherever_it_is():
    """A cause is found in a chain of exceptions or a worker's traceback, and any other error is one sentence too."""
    ours = JobRejected("no")
    wrapped = RuntimeError("wrapped")
    wrapped.__cause__ = ours
    assert cause_of(wrapped) is ours
    worker = "Traceback (most recent call last):\nhalley.pipeline.source.log.GapFound: offset 5 is gone\n\n\tat java"
    assert isinstance(cause_of(RuntimeError(worker)), GapFound)
    assert str(cause_of(RuntimeError(worker))) == "offset 5 is gone"
    other = "An error:\nTraceback (most recent call last):\n  File x\nMemoryError: too much\n\n\tat java"
    assert str(cause_of(RuntimeError(other))) == "Spark failed: MemoryError: too much"
    assert str(cause_of(ValueError("plain\nmore"))) == "Spark failed: plain"
    assert type(cause_of(ValueError())) is JobFailed
