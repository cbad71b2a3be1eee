"""Rows of queries published by the sink `halley` in real Spark to a real server: each delivered once, or refused."""

import asyncio
import os
import re
from contextlib import asynccontextmanager

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamArrowWriter
from pyspark.sql.streaming import StreamingQueryListener
from readme.table import block
from support.log import ClockedLog, OpenLog
from support.server import brisk, serving
from support.tcp_proxy import relaying

from halley.access.tokens import hash_of
from halley.client import Client, IdempotentPublish
from halley.pipeline.errors import JobFailed, JobRejected, cause_of
from halley.pipeline.jobs.publishing import Publisher
from halley.pipeline.sink.writer import SinkOptions, batch_writer, stream_writer
from halley.pipeline.source.source import HalleySource
from halley.settings import Access, Token

TOKEN = "a-token-that-is-long-enough-for-halley"
NOBODY = "http://127.0.0.1:9"
LONGEST_S = 300
"""How long a query may take: it starts several processes for each batch, which is long on a busy machine."""


def recording(folder, limits=None, **changed):
    """Run a server with a history in `folder`; the rate of publishes is not limited unless `limits` says so."""
    history = {"enabled": True, "free_bytes": 0} | changed.pop("history", {})
    limits = limits or {"publishes_per_s": 0}
    return serving(brisk(data_dir=str(folder / "server"), history=history, limits=limits, **changed))


@asynccontextmanager
async def subscribed(url, pattern="/**", **options):
    """Yield a client that is subscribed to a pattern."""
    async with Client(url, **options) as client:
        await client.subscribe(pattern)
        yield client


async def received(client, count):
    """Return the next `count` events."""
    async with asyncio.timeout(LONGEST_S):
        return [await anext(client) for _ in range(count)]


async def until_end(client):
    """Publish an event, and return the data of all events before it, in their order."""
    await client.publish("/end", "end")
    found = []
    while (event := (await received(client, 1))[0]).channel != "/end":
        found.append(event.data)
    return found


async def in_thread(work, *arguments, **options):
    """Do a work of Spark's in a thread, in which Spark finds data sources only once it has an active session."""

    def active():
        SparkSession.builder.getOrCreate().createDataFrame([], "x int")  # which makes it that
        return work(*arguments, **options)

    return await asyncio.to_thread(active)


def write(frame, server, /, **options):
    """Publish a DataFrame as one batch."""
    frame.write.format("halley").mode("append").options(server=server, **options).save()


async def written(frame, server, /, **options):
    """Publish a DataFrame as one batch, in a thread."""
    await in_thread(write, frame, server, **options)


def warnings(spark, words):
    """Return what the sink has logged with these words, each line once; its logging ends."""
    logs = spark.tvf.python_worker_logs().where("logger = 'halley.pipeline.sink.writer'").collect()
    spark.conf.unset("spark.sql.pyspark.worker.logging.enabled")
    return sorted({row.msg for row in logs if words in row.msg})


def failure(work, *arguments, **options):
    """Return the error of the pipeline with which a work of Spark's fails."""
    with pytest.raises(Exception) as failed:  # noqa: PT011 - Spark's, of one kind or another
        work(*arguments, **options)
    return cause_of(failed.value)


def numbered(spark, count, partitions=1, key=""):
    """Return a DataFrame of rows with the numbers from 0 on for the channel /n, with keys of their own if wanted."""
    frame = spark.range(0, count, numPartitions=partitions)
    return frame.selectExpr("'/n' channel", "string(id) data", *filter(None, [key]))


def log_of(folder, numbers):
    """Make a log of events with numbers."""
    with OpenLog(folder / "log") as log:
        log.write(*({"n": number} for number in numbers))


def echo(spark, folder, server, *, form="halley", mode="append", select=None, **options):
    """Run a streaming query that publishes all of a log, ten events in a batch, until it is done."""
    events = spark.readStream.format("halley").option("max_rows", options.pop("max_rows", "10")).load(f"{folder}/log")
    rows = select(events) if select else events.selectExpr("'/echo' channel", "payload data")
    query = (
        rows.writeStream.format(form)
        .options(server=server, checkpointLocation=f"{folder}/checkpoint", **options)
        .outputMode(mode)
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination(LONGEST_S)
    finally:
        query.stop()


# What is published


@pytest.mark.slow
async def test_each_kind_of_data_is_the_json_that_one_expects(spark, tmp_path):
    """JSON text, structs with all that they may have, maps, arrays and variants."""
    kinds = {
        "text": """'{"a": [1, 2.5, "x"]}'""",
        "null": "string(null)",
        "struct": """named_struct('l', 1L, 'd', 0.5D, 'f', float(1.5), 'n', 12.50BD, 'w', 3BD, 'b', true, 's', 'ä"',
            'none', string(null), 'day', date'2026-07-01', 'at', timestamp'2026-07-01 12:00:00.25',
            'local', timestamp_ntz'2026-07-01 12:00:00', 'of', named_struct('x', array(1, null)))""",
        "map": "map('a', 1, 'b', 2)",
        "array": "array(named_struct('x', 1), null)",
        "variant": """parse_json('{"v": [1, {"w": null}]}')""",
    }
    async with recording(tmp_path) as served, subscribed(served.url) as client:
        for name, expression in kinds.items():
            await written(spark.sql(f"select '/{name}' channel, {expression} data"), served.url, run=name)
        data = {event.channel[1:]: event.data for event in await received(client, len(kinds))}
    assert data == {
        "text": {"a": [1, 2.5, "x"]},
        "null": None,
        "struct": {
            "l": 1, "d": 0.5, "f": 1.5, "n": 12.5, "w": 3, "b": True, "s": 'ä"', "none": None, "day": "2026-07-01",
            "at": "2026-07-01T12:00:00.250000Z", "local": "2026-07-01T12:00:00", "of": {"x": [1, None]},
        },
        "map": {"a": 1, "b": 2},
        "array": [{"x": 1}, None],
        "variant": {"v": [1, {"w": None}]},
    }  # fmt: skip


async def test_a_run_is_published_in_order_and_once(spark, tmp_path):
    """A batch that is written again as the same run is not delivered again; as another run it is."""
    async with recording(tmp_path) as served, subscribed(served.url) as client:
        frame = numbered(spark, 2_500, partitions=3)
        for run in ("a", "a", "b"):
            await written(frame, served.url, run=run)
        assert await until_end(client) == [*range(2_500)] * 2


@pytest.mark.slow
async def test_a_key_of_its_own_says_which_event_a_row_is(spark, tmp_path):
    """Rows with the same key are one event, in whatever order and batch they come."""
    async with recording(tmp_path) as served, subscribed(served.url) as client:
        await written(numbered(spark, 50, 2, "'k' || id key").orderBy("data"), served.url)
        await written(numbered(spark, 60, 3, "'k' || id key"), served.url)
        assert sorted(await until_end(client)) == [*range(60)]


@pytest.mark.nightly
async def test_other_data_with_the_key_of_another_row_are_left_out_and_counted(spark, tmp_path):
    """In one batch and in a later one, also where what is refused fails a batch: one line for each batch."""
    async with recording(tmp_path, limits={"publishes_per_s": 0}) as served, subscribed(served.url) as client:
        spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
        await written(numbered(spark, 50, 1, "'k' || id key"), served.url)
        changed = numbered(spark, 60, 1, "'k' || id key").selectExpr(
            "channel", "if(data >= 48, data || '.0', data || '.5') data", "key"
        )
        await written(changed, served.url)
        await written(changed.selectExpr("channel", "data", "'same' key"), served.url)
        found = await until_end(client)
        lines = warnings(spark, "were left out")
    assert found == [*range(60), 0.5]
    left_out = (
        "rows of the batch were left out, since their keys were used for others before, the first: /n with the key"
    )
    assert lines == [f"48 of 60 {left_out} k0", f"59 of 60 {left_out} same"]


@pytest.mark.slow
async def test_the_example(spark, tmp_path):
    """The page's query: a channel is read, means of ten seconds are published, each once it is final."""
    async with recording(tmp_path) as served, subscribed(served.url) as client:
        with ClockedLog(tmp_path / "log") as log:
            for second in range(40):
                log.append({"price": second}, topic="prices/a")
                log.clock.pass_(1)
            log.append({"price": 7}, topic="other")
        text = block("means").replace("halley-data", f"{tmp_path}/log").replace("http://127.0.0.1:8080", served.url)
        text = text.replace('"checkpointLocation", "means"', f'"checkpointLocation", "{tmp_path}/checkpoint"')
        names = {}
        exec(text.removesuffix("query.awaitTermination()\n"), names)
        events = await received(client, 3)
        await in_thread(names["query"].stop)
        assert await until_end(client) == []
    assert {event.channel for event in events} == {"/means/prices/a"}
    ends = [f"2023-11-14T22:13:{second}Z" for second in (30, 40, 50)]
    assert sorted((event.data["end"], event.data["mean"]) for event in events) == [
        *zip(ends, (4.5, 14.5, 24.5), strict=True)
    ]


@pytest.mark.nightly
async def test_complete_mode_publishes_all_rows_in_each_batch_and_update_mode_is_refused_by_spark(spark, tmp_path):
    """Whatever modes Spark knows are either right or refused."""
    log_of(tmp_path, range(20))

    def counted(events):
        return events.groupBy("topic").count().selectExpr("'/count' channel", "struct(count) data")

    async with recording(tmp_path) as served, subscribed(served.url) as client:
        await in_thread(echo, spark, tmp_path, served.url, mode="complete", select=counted)
        assert await until_end(client) == [{"count": 10}, {"count": 20}]
    log_of(tmp_path / "other", range(1))
    error = failure(echo, spark, tmp_path / "other", NOBODY, mode="update", select=counted)
    assert "does not support Update mode" in str(error)


# What is refused


@pytest.mark.slow
@pytest.mark.parametrize(
    ("select", "options", "message"),
    [
        ("'/a' channel, '1' data, 1 offset", {}, "takes the columns channel, data and key, and not offset"),
        ("'/a' channel", {}, "needs the columns channel and data, each once"),
        ("'/a' channel, '1' data, '2' data", {}, "needs the columns channel and data, each once"),
        ("1 channel, '1' data", {}, "the column channel must be a string, not int"),
        ("'/a' channel, '1' data, 7L key", {}, "the column key must be a string, not bigint"),
        ("'/a' channel, 1.5D data", {}, "the column data must be a string with JSON text, a struct, a map, "),
        ("'/a' channel, struct(array(x'00') as x) data", {}, "data.x[] is of the type binary"),
        ("'/a' channel, '1' data", {"server": ""}, "needs the option server"),
        ("'/a' channel, '1' data", {"server": "nonsense"}, "the option server or token is invalid: expected a URL"),
        ("'/a' channel, '1' data", {"token": "a b"}, "the option server or token is invalid: a token consists of"),
        ("'/a' channel, '1' data", {"url": NOBODY}, "the sink halley has no option url"),
        ("'/a' channel, '1' data", {"refused": "perhaps"}, "the option refused must be fail or count, not perhaps"),
        ("'/a' channel, '1' data", {"publish_s": "soon"}, "the option publish_s must be a number of seconds"),
        ("'/a' channel, '1' data", {"keys": "-1"}, "the option keys must be a whole number, not -1"),
        ("'/a' channel, '1' data", {"run": "a/b"}, "the option run must be up to 64 letters"),
        ("'/a' channel, '1' data", {"run": ""}, "a batch needs the option run, "),
        ("'/a' channel, '1' data", {"token": "t", "token_file": "f"}, "token and token_file exclude each other"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_planned(spark, select, options, message):
    """One sentence names the column, its type, or the option; no server is asked."""
    schema = spark.sql(f"select {select}").schema
    with pytest.raises(JobRejected, match=re.escape(message)):
        batch_writer(schema, {"server": NOBODY, "run": "a"} | options, overwrites=False)


def test_options_of_sparks_own_are_not_the_sinks():
    """A stream has them among its options: where its checkpoint is, and what `queryName` has set."""
    assert SinkOptions.of({"server": NOBODY, "checkpointLocation": "/c", "queryName": "means"}).server == NOBODY


@pytest.mark.nightly
def test_nothing_is_overwritten_and_a_stream_has_no_run(spark, tmp_path):
    """What has no meaning for events is refused, in a sentence that is found in Spark's exceptions."""
    frame = numbered(spark, 1)
    error = failure(write, frame.selectExpr("*", "7 offset"), NOBODY, run="a")
    assert str(error) == "the sink halley takes the columns channel, data and key, and not offset"
    error = failure(frame.write.format("halley").mode("overwrite").options(server=NOBODY, run="a").save)
    assert "cannot be overwritten" in str(error)
    log_of(tmp_path, range(1))
    assert "the option run is for a batch" in str(failure(echo, spark, tmp_path, NOBODY, run="a"))


ROLE = (Access("sink", "publish", "/ok/**"), Access("sink", "subscribe", "/**"), Access("sink", "publish", "/end"))
ROWS = [
    ("/ok/a", "1"),
    (None, "2"),
    ("/ok/a", "{"),
    ("no channel", "3"),
    ("/secret", "4"),
    ("/ok/large", f'"{"x" * 2_000}"'),
    ("/ok/larger", f'"{"x" * 400_000}"'),
    ("/ok/a", '{"last": NaN}'),
    ("/ok/a", "5"),
]
WORDS = [
    "row 0 of a/0 cannot be published: its channel is null",
    "row 0 of a/0 cannot be published: its data is not JSON (Expecting property name",
    "the first for no channel: 405::channel_invalid",
    "the first for /secret: 403:denied_by_security_policy:publish_denied",
    "the first for /ok/large: 413::data_too_large",
    "413",
    "its data is not JSON (NaN)",
]


@pytest.mark.nightly
async def test_refused_rows_fail_the_batch_or_are_counted(spark, tmp_path):
    """The server's words fail a batch; with `count` its other rows are published, and a line has the count."""
    tokens = (Token("s", "sink", hash_of(TOKEN)),)
    limits = {"publishes_per_s": 0, "data_bytes": 1_024}
    async with (
        recording(tmp_path, limits, access=ROLE, tokens=tokens) as served,
        subscribed(served.url, token=TOKEN) as client,
    ):
        for row, words in zip(ROWS[1:-1], WORDS, strict=True):
            frame = spark.createDataFrame([row], "channel string, data string").coalesce(1)
            error = await in_thread(failure, write, frame, served.url, token=TOKEN, run="a")
            assert isinstance(error, JobFailed)
            assert words in str(error)
        spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
        frame = spark.createDataFrame(ROWS, "channel string, data string").coalesce(1)
        await written(frame, served.url, token=TOKEN, run="b", refused="count")
        assert await until_end(client) == [1, 5]
        (line,) = warnings(spark, "were refused")
        assert line.startswith("7 of 9 rows of run b were refused, the first: row 1 of b/0 cannot be published")


@pytest.mark.nightly
async def test_more_keys_of_their_own_than_are_remembered_are_refused_before_anything_is_published(spark, tmp_path):
    """Which of them an earlier attempt has published could not be known."""
    async with recording(tmp_path) as served, subscribed(served.url) as client:
        frame = numbered(spark, 30, 2, "'k' || id key")
        error = await in_thread(failure, write, frame, served.url, keys="29")
        assert str(error).startswith("the batch has 30 events with keys of their own, and the server remembers 29 ")
        await written(frame, served.url, keys="30")
        assert sorted(await until_end(client)) == [*range(30)]


# Servers that are away, busy, or do not let it in


@pytest.mark.slow
async def test_a_limited_rate_is_waited_for_and_the_order_is_kept(spark, tmp_path):
    """`limits.publishes_per_s` refuses rows for a moment; none is lost, and none overtakes another."""
    limits = {"publishes_per_s": 200, "publish_burst": 20}
    async with recording(tmp_path, limits) as served, subscribed(served.url) as client:
        await written(numbered(spark, 150), served.url, run="a")
        assert [event.data for event in await received(client, 150)] == [*range(150)]


@pytest.mark.nightly
async def test_an_outage_is_waited_for_until_the_deadline(spark, tmp_path):
    """A batch is published when the server is back; a server that stays away fails it with one sentence."""
    async with recording(tmp_path) as served, relaying(served.port) as proxy, subscribed(served.url) as client:
        proxy.cut()
        task = asyncio.create_task(written(numbered(spark, 20), f"http://127.0.0.1:{proxy.port}", run="a"))
        await served.until(lambda: proxy.accepted > 3)
        proxy.mend()
        await task
        assert await until_end(client) == [*range(20)]
    error = failure(write, numbered(spark, 1), NOBODY, run="a", publish_s="1")
    assert isinstance(error, JobFailed)
    assert str(error).startswith(f"nothing could be published to {NOBODY} for 1 s: ")


@pytest.mark.slow
async def test_a_token_that_is_not_accepted_fails_at_once_and_the_token_is_told_nowhere(spark, tmp_path, capfd):
    """The token is in no plan, event, exception or output of Spark's."""
    log_of(tmp_path, range(3))
    told = []

    class Told(StreamingQueryListener):
        def onQueryStarted(self, event):  # noqa: N802 - Spark's names
            told.append(str(event.__dict__))

        def onQueryProgress(self, event):  # noqa: N802
            told.append(event.progress.json)

        def onQueryIdle(self, event):  # noqa: N802
            pass

        def onQueryTerminated(self, event):  # noqa: N802
            told.append(str(event.__dict__))

    def explained():
        rows = spark.readStream.format("halley").load(f"{tmp_path}/log").selectExpr("'/e' channel", "payload data")
        query = (
            rows.writeStream.format("halley")
            .options(server=server, token=wrong, checkpointLocation=f"{tmp_path}/checkpoint")
            .start()
        )
        with pytest.raises(Exception) as failed:  # noqa: PT011 - Spark's
            query.awaitTermination(LONGEST_S)
        query.explain(extended=True)
        told.extend(
            [
                str(failed.value),
                str(cause_of(failed.value)),
                str(query.exception()),
                str(query.status),
                str(query.lastProgress),
            ]
        )
        return cause_of(failed.value)

    wrong = TOKEN + "-of-another"
    tokens = (Token("s", "sink", hash_of(TOKEN)),)
    listener = Told()
    spark.streams.addListener(listener)
    try:
        async with recording(tmp_path, access=ROLE, tokens=tokens) as served:
            server = served.url
            error = await in_thread(explained)
            assert isinstance(error, JobFailed)
            assert "does not let the pipeline in: " in str(error)
            assert "token_invalid" in str(error)
            url = served.url.replace("//", "//user:secret-word@")
            error = await in_thread(failure, write, numbered(spark, 1), url, run="a")
            assert "the first for /n: 40" in str(error)
            told.append(str(error))
    finally:
        spark.streams.removeListener(listener)
    printed = "".join(capfd.readouterr())
    assert "Physical Plan" in printed
    everything = "\n".join([*told, printed])
    assert wrong not in everything
    assert "secret-word" not in everything


def test_where_the_token_comes_from(tmp_path, monkeypatch):
    """The option, or a file, or the variable of the command line's tools; a file that is missing is named."""
    monkeypatch.setenv("HALLEY_TOKEN", "of-the-variable")
    file = tmp_path / "token"
    file.write_text("of-the-file\n")
    given = {"variable": {}, "file": {"token_file": str(file)}, "option": {"token": "of-the-option"}}
    for token, options in given.items():
        assert SinkOptions.of({"server": NOBODY} | options).find_token() == f"of-the-{token}"
    file.unlink()
    with pytest.raises(JobRejected, match=f"the token file {file} cannot be read"):
        SinkOptions.of({"server": NOBODY, "token_file": str(file)}).find_token()


# Kills


def dying(file, *, parts=False):
    """Return a source `dying`, whose sink dies after it has published a batch, and before Spark knows of that.

    The file has the number of batches that it commits before; without the file it lives. With `parts` it dies within a
    batch, and counts the parts that it has published.
    """

    def die_or_count():
        left = int(file.read_text())
        if left == 0:
            file.unlink()
            os._exit(9)
        file.write_text(str(left - 1))

    def dying_within(settle):
        def settle_some(publisher, messages):
            rejected = settle(publisher, messages)
            if file.exists() and messages[0].after is None:
                die_or_count()
            return rejected

        return settle_some

    class Dying(DataSourceStreamArrowWriter):
        def __init__(self, writer):
            self.writer = writer

        def write(self, iterator):
            return self.writer.write(iterator)

        def commit(self, messages, batchId):  # noqa: N803 - Spark's name
            if parts:
                Publisher.publish_all = dying_within(Publisher.publish_all)
            self.writer.commit(messages, batchId)
            if file.exists():
                die_or_count()

        def abort(self, messages, batchId):  # noqa: N803
            pass

    class DyingSource(HalleySource):
        @classmethod
        def name(cls):
            return "dying"

        def streamWriter(self, schema, overwrite):  # noqa: N802
            return Dying(stream_writer(schema, self.options))

    return DyingSource


@pytest.fixture
def dies(spark, tmp_path):
    """Return a function that runs `echo` until the sink dies between effect and commit, after `count` other batches."""
    file = tmp_path / "dies"
    spark.dataSource.register(dying(file))

    async def run(server, count=0, **options):
        file.write_text(str(count))
        await in_thread(failure, echo, spark, tmp_path, server, form="dying", **options)
        assert not file.exists()

    return run


@pytest.mark.slow
async def test_a_query_that_dies_between_effect_and_commit_delivers_each_event_once(spark, tmp_path, dies):
    """Whatever batch it dies in, also several times: the events that it publishes again are known by their keys."""
    log_of(tmp_path, range(40))
    async with recording(tmp_path) as served, subscribed(served.url) as client:
        for count in (0, 1):
            await dies(served.url, count)
        await in_thread(echo, spark, tmp_path, served.url)
        assert await until_end(client) == [{"n": number} for number in range(40)]


@pytest.mark.nightly
async def test_a_batch_of_more_rows_than_keys_goes_on_where_it_was(spark, tmp_path, dies):
    """Of 2,500 rows the server remembers the last thousand, and none is delivered twice."""
    log_of(tmp_path, range(2_500))
    async with recording(tmp_path, history={"keys": 1_000}) as served, subscribed(served.url) as client:
        await dies(served.url, max_rows="5000")
        await in_thread(echo, spark, tmp_path, served.url, max_rows="5000")
        assert await until_end(client) == [{"n": number} for number in range(2_500)]


@pytest.mark.nightly
async def test_a_batch_of_more_rows_than_keys_that_was_killed_within_goes_on_there(spark, tmp_path, dies):
    """Of 3,500 rows it has published 2,000, of which the server remembers a part; none is delivered twice."""
    log_of(tmp_path, range(3_500))
    spark.dataSource.register(dying(tmp_path / "dies", parts=True))
    async with (
        recording(tmp_path, history={"keys": 1_000}, limits={"publishes_per_s": 0}) as served,
        subscribed(served.url) as client,
    ):
        await dies(served.url, 1, max_rows="5000")
        assert served.house.broker.published == 2_000
        await in_thread(echo, spark, tmp_path, served.url, max_rows="5000")
        assert await until_end(client) == [{"n": number} for number in range(3_500)]


@pytest.mark.nightly
async def test_after_the_keys_have_gone_the_interrupted_batch_is_delivered_again(spark, tmp_path, dies):
    """As the page says: that batch, and none of those before it."""
    log_of(tmp_path, range(30))
    async with recording(tmp_path, history={"keys": 10}) as served, subscribed(served.url) as client:
        await dies(served.url, 1)
        assert (
            await client.publish_keyed(IdempotentPublish("/other", None, f"other {n}") for n in range(10))
            == [None] * 10
        )
        await in_thread(echo, spark, tmp_path, served.url)
        found = [data["n"] for data in await until_end(client) if data is not None]
    assert found == [*range(20), *range(10, 30)]
