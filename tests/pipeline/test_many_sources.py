"""A lake with the logs of several servers: each is there exactly, by its own offsets, under the name of its source.

`lake_of_one_log.tar.xz` was made by the last version whose lakes had only one log: 32 events in `data`, and all of them
in `lake`, with their rollups, the session in them, and two kinds of values that a lifted column could not take.
"""

import json
import tarfile
import threading
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from support.lake import NOON_US, rows_of, stored
from support.log import OpenLog
from support.process import launched
from support.rollups import Heard, recount
from support.tarballs import unpack

from halley.broker.names import Match, Pattern
from halley.broker.ports import Erasure
from halley.cli import main
from halley.client import Client
from halley.history import checksummed_json
from halley.history.stored import COLUMNS, Stored
from halley.pipeline.errors import JobRejected
from halley.pipeline.jobs.alerts import Alerts
from halley.pipeline.jobs.ingest import Ingest
from halley.pipeline.jobs.rollup import Rollup
from halley.pipeline.jobs.sessions import Sessions
from halley.pipeline.lake import locks, shapes, tables, upkeep
from halley.pipeline.lake.commit import AppTransaction, commit_rows
from halley.pipeline.lake.forget import forget
from halley.pipeline.lake.sources import LogSource, labelled
from halley.pipeline.lake.verify import verify
from halley.pipeline.queries.events import Selection, lines
from halley.pipeline.queries.replay import Plan, Replay
from halley.pipeline.queries.sql import ask
from halley.pipeline.source.columns import lifts_of
from halley.settings import Pipeline, Settings
from halley.settings.history import Lift

pytestmark = pytest.mark.slow

OPTIONS = Pipeline(batch_rows=120, partition_rows=50, ingest_s=0.1, behind_s=0, compact_s=0)
ALL = Selection(Pattern(Match.DESCENDANTS, ""))
LABELS = ("source", "log_id")
PRICE = lifts_of(Settings(lift=(Lift("/prices/**", "/price", "price", "double"),)))


def write(folder, count, text="x", **options):
    """Write events with `text` and their numbers to the log in a folder; return the log's id."""
    with OpenLog(folder, **options) as log:
        for number in range(count):
            log.append({"text": text, "number": number}, topic="chat/lobby" if number % 3 else "halley/sessions")
        log.write({"text": text, "price": count}, topic="prices/abc")
        return log.history.log_id


def log_of(folder):
    return checksummed_json.load(folder / "log.json")["log_id"]


def expected(folder):
    with OpenLog(folder) as log:
        return log.rows()


@pytest.fixture
def lake(tmp_path):
    return tmp_path / "lake"


@pytest.fixture
def ingest(spark, lake):
    """Return a function that brings all of a log into the lake, under the name of a source."""

    def run(log, source="", options=OPTIONS, **more):
        given = {"path": str(log)} if isinstance(log, Path) else {"url": log}
        return [each.next for each in Ingest(spark, given, lake, replace(options, source=source), **more).once()][-1]

    return run


@pytest.fixture
def verb(spark, lake, monkeypatch):
    """Return a function that runs a command on the shared Spark session, and returns its exit code and output."""
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)

    def invoke(*arguments):
        done = CliRunner().invoke(main, [*arguments, "--lake", str(lake)], catch_exceptions=False)
        return done.exit_code, done.stdout + done.stderr

    return invoke


def by_log(lake, name="events"):
    """Return the rows of a table as any reader sees them, by their source and log."""
    found = defaultdict(list)
    for row in DeltaTable(str(lake / name)).to_pyarrow_dataset().to_table().to_pylist():
        found[row.pop("source", None), row.pop("log_id", None)].append(row)
    return found


def assert_exact(lake, *logs):
    """Assert that the lake has exactly the rows of these logs: each a folder, and the source and log id in its rows."""
    found = by_log(lake)
    assert found.keys() == {(source, log_id) for _, source, log_id in logs}
    for folder, source, log_id in logs:
        rows = sorted(found[source, log_id], key=lambda row: row["offset"])
        assert [Stored(*(row[name] for name in COLUMNS)) for row in rows] == expected(folder)
    assert [each for each in verify(lake, is_thorough=True) if not each.is_sound] == []


def findings(lake):
    return {each.what: each.text for each in verify(lake, is_thorough=True)}


def test_three_logs_are_each_exact(tmp_path, lake, ingest):
    """Logs with the same offsets do not disturb each other; each is verified by itself, also after compaction."""
    ids = {name: write(tmp_path / name, count, name) for name, count in (("west", 150), ("east", 40), ("south", 290))}
    logs = [(tmp_path / name, name, log_id) for name, log_id in ids.items()]
    for _ in range(2):
        for name in ids:
            ingest(tmp_path / name, name)
        assert_exact(lake, *logs)
        for name in shapes.TABLES:
            upkeep.compact(lake, name)
        assert_exact(lake, *logs)
        write(tmp_path / "east", 30, "later")
    told = findings(lake)
    assert told["offsets of west"] == "1 to 151: each is present once"
    assert told["ingest of east"] == "all offsets below 73 are done"
    for file in tables.open_table(lake, "events").data_files():
        assert file.least["source"] == file.greatest["source"], "a file has rows of one source"


@pytest.mark.nightly
async def test_logs_come_at_once_also_from_a_server(tmp_path, lake, ingest):
    """Three ingests that start together, into a lake that is not there yet, lose nothing; one is over `GET /log`."""
    ids = {name: write(tmp_path / name, 200, name) for name in ("west", "east")}
    async with launched("--data-dir", "south", "--history", "on", "--port", "0", cwd=tmp_path) as server:
        url = f"http://127.0.0.1:{server.port}"
        async with Client(url) as client:
            await client.publish_many("/chat/room", range(100))
        options = replace(OPTIONS, batch_rows=30)
        with ThreadPoolExecutor(3) as executor:
            places = {"west": tmp_path / "west", "east": tmp_path / "east", "south": url}
            for done in [executor.submit(ingest, place, name, options) for name, place in places.items()]:
                done.result()
        last = ingest(url, "south")
    found = by_log(lake)
    south = log_of(tmp_path / "south")
    assert {log_id for _, log_id in found} == {*ids.values(), south}
    assert sorted(row["offset"] for row in found["south", south]) == [*range(1, last)]
    chat = [json.loads(row["payload"]) for row in found["south", south] if row["topic"] == "chat/room"]
    assert sorted(chat) == [*range(100)]
    assert all(each.is_sound for each in verify(lake, is_thorough=True))


@pytest.mark.nightly
def test_two_sources_that_join_at_once_are_both_there(tmp_path):
    """Each of two processes that add a log to a lake at the same time succeeds, whichever is faster."""
    for number in range(20):
        place, barrier = tmp_path / str(number), threading.Barrier(4)

        def join(name, place=place, barrier=barrier):
            barrier.wait()
            for table in ("events", "gaps", "rejected"):
                tables.create(place, table, f"id-of-{name}", source=name)

        with ThreadPoolExecutor(4) as executor:
            for done in [executor.submit(join, name) for name in "abcd"]:
                done.result()
        sources = tables.sources_of(place)
        assert sources.logs == {name: (f"id-of-{name}",) for name in sources.logs}
        assert sorted(sources.logs) == [*"abcd"]
        assert all(tables.open_table(place, name).log_id == sources.first for name in ("events", "gaps", "rejected"))


@pytest.mark.nightly
def test_a_query_reads_the_files_of_its_source(spark, tmp_path, lake, ingest):
    """`source = 'west'` is answered from the files of that source; counts and checksums are those of its log."""
    for name, count in (("west", 150), ("east", 40)):
        write(tmp_path / name, count, name)
        ingest(tmp_path / name, name)
    found = ask(spark, lake, "select count(*), sum(crc) from events where source = 'west'")
    assert [*map(tuple, found.rows.collect())] == [(151, sum(row.crc for row in expected(tmp_path / "west")))]
    [reading] = found.readings
    assert (len(reading.files), reading.of) == (3, 4)
    grouped = ask(spark, lake, "select source, count(*) from events group by source order by source").rows.collect()
    assert [*map(tuple, grouped)] == [("east", 41), ("west", 151)]


@pytest.mark.nightly
def test_rollups_are_those_of_each_log(spark, tmp_path, lake, ingest):
    """Windows of one channel on two servers are two rows, each a recount of its log; each is published by its job."""
    wanted = {}
    for name, count in (("west", 150), ("east", 40)):
        times = iter(range(10_000))
        clock = lambda times=times: 1_780_272_000.0 + next(times)  # noqa: E731 - a test's clock
        write(tmp_path / name, count, name, clock=clock)
        ingest(tmp_path / name, name)
        wanted[name] = recount(expected(tmp_path / name))
    for name, windows in wanted.items():
        heard = Heard()
        options = replace(OPTIONS, source=name, batch_rows=1_000)
        for _ in range(2):
            job = Rollup(spark, {"path": str(tmp_path / name)}, lake, options, publisher=heard)
            list(job.once())
        assert {each["source"] for each in heard.finals()} == {name}
        assert len(heard.finals()) == len(windows)
    found = by_log(lake, "rollups")
    for name, windows in wanted.items():
        rows = {
            (r["window"], r["start_us"], r["topic"], r["protocol"]): r for r in found[name, log_of(tmp_path / name)]
        }
        assert {key: row["events"] for key, row in rows.items()} == {
            key: each["events"] for key, each in windows.items()
        }
    assert all(each.is_sound for each in verify(lake, is_thorough=True))
    total = Counter()
    for windows in wanted.values():
        for (window, *_), each in windows.items():
            total[window] += each["events"]
    query = "select window, sum(events) from rollups group by window"
    assert dict(map(tuple, ask(spark, lake, query).rows.collect())) == total


@pytest.mark.nightly
def test_alerts_learn_from_each_log_by_itself(spark, tmp_path, lake):
    """Each has a checkpoint of its own, and goes on there; what is found has the name of the source."""
    for name in ("west", "east"):
        clock = [1_780_272_000.0]
        with OpenLog(tmp_path / name, clock=lambda clock=clock: clock[0]) as log:
            for count in [20] * 14 + [200 if name == "east" else 20] + [20] * 2:
                log.append(*range(count), topic="news")
                clock[0] += 10
            log.write(0, topic="news")
        options = replace(OPTIONS, source=name, batch_rows=1_000)
        for _ in range(2):
            list(Alerts(spark, {"path": str(tmp_path / name)}, lake, options).once())
    found = by_log(lake, "alerts")
    east = log_of(tmp_path / "east")
    assert {key: [row["kind"] for row in rows] for key, rows in found.items()} == {
        ("east", east): ["spike", "recovered"]
    }
    assert {each.name for each in (lake / "checkpoints").iterdir()} == {"alerts", f"alerts-{east}"}


def test_sessions_are_those_of_each_server(lake):
    """A session's id may be in two logs: each has its own row, and what is open in one does not end in the other."""
    for name, log_id, end_us in (("west", "id-of-west", 5_000), ("east", "id-of-east", 9_000)):
        events = tables.create(lake, "events", log_id, source=name)
        opened = {"event": "opened", "session": "s", "authid": name}
        closed = {"event": "closed", "session": "s", "reason": "left"}
        story = [
            stored(1, "halley/sessions", opened, time_us=NOON_US),
            stored(2, "halley/sessions", closed, time_us=NOON_US + end_us),
        ]
        app = events.app(tables.INGEST, log_id)
        for event in story:
            rows = labelled(rows_of([event]), events.labels(LogSource(name, log_id)))
            commit_rows(events, rows, AppTransaction(app, events.position(app), event.offset + 1))
            list(Sessions(lake).once())
    found = by_log(lake, "sessions")
    assert {source: [(row["authid"], row["length_s"]) for row in rows] for (source, _), rows in found.items()} == {
        "west": [("west", 0.005)],
        "east": [("east", 0.009)],
    }


@pytest.mark.nightly
def test_a_lost_log_is_joined_again_when_the_operator_says_so(tmp_path, lake, ingest, verb):
    """The rows of the lost log stay, those of the new one are added, and each is exact by the id of its log."""
    old = write(tmp_path / "west", 150, "old")
    east = write(tmp_path / "east", 40)
    ingest(tmp_path / "west", "west")
    ingest(tmp_path / "east", "east")
    (tmp_path / "west").rename(tmp_path / "lost")
    new = write(tmp_path / "west", 200, "new")
    command = ("pipeline", "ingest", "--once", "--data-dir", str(tmp_path / "west"), "--source", "west")
    code, said = verb(*command)
    assert code == 2
    assert said.startswith(
        f"halley: source west of {lake} is log {old}, but this is log {new}: choose another --source, "
    )
    assert "--accept-new-log" in said
    assert_exact(lake, (tmp_path / "lost", "west", old), (tmp_path / "east", "east", east))
    assert verb(*command, "--accept-new-log")[0] == 0
    assert verb(*command)[0] == 0, "it is the log of that source from then on"
    write(tmp_path / "west", 10, "newer")
    ingest(tmp_path / "west", "west")
    logs = [(tmp_path / "lost", "west", old), (tmp_path / "west", "west", new), (tmp_path / "east", "east", east)]
    assert_exact(lake, *logs)
    upkeep.compact(lake, "events")
    assert_exact(lake, *logs)
    assert findings(lake)[f"offsets of west, log {old}"] == "1 to 151: each is present once"
    chat = Selection(Pattern(Match.DESCENDANTS, "chat"))
    texts = [json.loads(line)["data"]["text"] for page in lines(lake, chat, "west") for line in page]
    assert Counter(texts) == {"old": 100, "new": 133, "newer": 6}
    assert texts == sorted(texts, key=("old", "new", "newer").index)


def test_a_lake_of_one_log_may_lose_it_too(tmp_path, lake, ingest):
    """Where no log has a name, the same option adds the new one; without it, it is refused as ever."""
    old, new = write(tmp_path / "old", 20), write(tmp_path / "new", 30)
    ingest(tmp_path / "old")
    with pytest.raises(JobRejected, match=rf"was made from log {old}, but this is log {new}: .* --accept-new-log"):
        ingest(tmp_path / "new")
    ingest(tmp_path / "new", accept_new_log=True)
    assert_exact(lake, (tmp_path / "old", None, None), (tmp_path / "new", None, new))


def test_two_ingests_of_a_source_refuse_each_other(tmp_path, lake, ingest):
    """Of one source only one ingest runs, while that of another source does."""
    for name in ("west", "east"):
        write(tmp_path / name, 20)
    with locks.ingest(lake, "west"):
        with pytest.raises(locks.Busy, match=r"an ingest of source west into .* is already running"):
            ingest(tmp_path / "west", "west")
        ingest(tmp_path / "east", "east")
    ingest(tmp_path / "west", "west")


def test_names_that_do_not_fit_are_refused(tmp_path, lake, ingest, verb):
    """One sentence each, exit code 2, and nothing is changed."""
    west, east = write(tmp_path / "west", 20), write(tmp_path / "east", 20)
    ingest(tmp_path / "west", "west")
    before = {name: tables.open_table(lake, name).version() for name in ("events", "rejected", "gaps", "mismatches")}

    def refused(folder, *arguments):
        code, said = verb("pipeline", "ingest", "--once", "--data-dir", str(tmp_path / folder), *arguments)
        [line] = said.splitlines()
        assert code == 2
        return line

    other = f"source west of {lake} is log {west}, but this is log {east}: choose another --source"
    assert other in refused("east", "--source", "west")
    assert f"log {west} is in {lake} already, as source west: give --source west" in refused("west", "--source", "home")
    assert f"log {west} is in {lake} already, as source west: give --source west" in refused("west")
    assert f"{lake} has the sources west: --source says which of them log {east} is" in refused("east")
    for name in ("a/b", "..", "w\u00e9st", "two words", "x" * 33, "a\nb"):
        assert "--source: pipeline.source: expected up to 32 letters, digits, _ and -, found" in refused(
            "east", "--source", name
        )
    assert {name: tables.open_table(lake, name).version() for name in before} == before
    assert tables.sources_of(lake).logs == {"west": (west,)}


@pytest.fixture
def old(tmp_path, lake):
    """The lake of the last version that knew only one log; return the folder of its log."""
    with tarfile.open(Path(__file__).with_name("lake_of_one_log.tar.xz")) as archive:
        unpack(archive, tmp_path)
    return tmp_path / "data"


def schemas(lake):
    found = {name: tables.open_table(lake, name) for name in shapes.TABLES}
    return {name: (table.columns(), properties(table)) for name, table in found.items() if table}


def properties(table):
    """Return a table's properties, but for the one that names the columns with statistics."""
    return {name: value for name, value in table.metadata().configuration.items() if name != tables.STATISTICS}


def test_a_lake_of_one_log_goes_on_unchanged(old, lake, ingest, spark):
    """Without --source an existing lake gets no columns, no property but that of statistics, and rows as before."""
    before = schemas(lake)
    with OpenLog(old) as log:
        log.write({"price": 7.5}, {"price": "none"}, topic="prices/abc")
    ingest(old, lift=PRICE)
    list(Rollup(spark, {"path": str(old)}, lake, replace(OPTIONS, batch_rows=1_000), lift=PRICE).once())
    list(Sessions(lake).once())
    assert schemas(lake) == before
    assert_exact(lake, (old, None, None))
    told = findings(lake)
    assert told["offsets"] == "1 to 34: each is present once"
    assert told["ingest"] == "all offsets below 35 are done"
    newest = max(tables.open_table(lake, "events").data_files(), key=lambda file: file.greatest["offset"])
    assert not {*LABELS} & {*pa.parquet.read_schema(lake / "events" / newest.path).names}
    assert ask(spark, lake, "select count(*) from events where source is null").rows.collect()[0][0] == 34
    assert ask(spark, lake, "select count(*) from events where source = 'west'").rows.collect()[0][0] == 0


def test_a_lake_of_one_log_takes_another(old, tmp_path, lake, ingest, spark):
    """The first log goes on without a name, the second has one; their rows are never mixed."""
    first, east = log_of(old), write(tmp_path / "east", 50)
    with pytest.raises(JobRejected, match="already, without a name: give no --source"):
        ingest(old, "home", lift=PRICE)
    running = Ingest(spark, {"path": str(old)}, lake, OPTIONS, lift=PRICE)
    running.step()
    ingest(tmp_path / "east", "east", lift=PRICE)
    with OpenLog(old) as log:
        log.write({"price": 7.5}, {"price": "none"}, topic="prices/abc")
    running.step()
    options = replace(OPTIONS, batch_rows=1_000)
    for path, source in ((old, ""), (tmp_path / "east", "east")):
        list(Rollup(spark, {"path": str(path)}, lake, replace(options, source=source), lift=PRICE).once())
    list(Sessions(lake).once())
    logs = [(old, None, None), (tmp_path / "east", "east", east)]
    assert_exact(lake, *logs)
    for name in shapes.TABLES:
        upkeep.compact(lake, name)
    assert_exact(lake, *logs)
    assert tables.sources_of(lake).logs == {"": (first,), "east": (east,)}
    counted = Counter(source for (source, _), rows in by_log(lake, "mismatches").items() for _ in rows)
    assert counted == {None: 3}
    [reading] = ask(spark, lake, "select count(*) from events where source = 'east'").readings
    assert len(reading.files) < reading.of


def test_a_lifted_column_cannot_have_the_name_of_a_label(old, tmp_path, lake, ingest):
    """A lake that has such a column keeps it, and takes no other log; nothing is changed."""
    write(tmp_path / "east", 5)
    lift = lifts_of(Settings(lift=(Lift("/chat/**", "/text", "source", "string"),)))
    with OpenLog(old) as log:
        log.write({"text": "mine"}, topic="chat/lobby")
    ingest(old, lift=lift)
    before = schemas(lake)
    with pytest.raises(JobRejected, match="its own column source, so it cannot have a lifted one"):
        ingest(tmp_path / "east", "east")
    assert schemas(lake) == before
    found = DeltaTable(str(lake / "events")).to_pyarrow_dataset().to_table(columns=["source"])["source"].to_pylist()
    assert Counter(found)["mine"] == 1


@pytest.mark.nightly
def test_an_erasure_may_be_of_one_source(tmp_path, lake, ingest):
    """`--source` erases only there; without it, from all logs. Each offset stays accounted for in its own log."""
    for name in ("west", "east", "south"):
        write(tmp_path / name, 30)
        ingest(tmp_path / name, name)
    chat = Erasure(Pattern(Match.DESCENDANTS, "chat"), None)

    def chats():
        found = by_log(lake)
        return {source: sum(row["topic"] == "chat/lobby" for row in rows) for (source, _), rows in found.items()}

    assert forget(lake, chat, source="west")["events"] == 20
    assert chats() == {"west": 0, "east": 20, "south": 20}
    assert [source for source, _ in by_log(lake, "rejected")] == ["west"]
    assert all(each.is_sound for each in verify(lake, is_thorough=True))
    assert forget(lake, chat)["events"] == 40
    assert chats() == {"west": 0, "east": 0, "south": 0}
    assert all(each.is_sound for each in verify(lake, is_thorough=True))
    with pytest.raises(JobRejected, match="the lake has no source north: it has west, east, south"):
        forget(lake, chat, source="north")


def test_what_is_in_order_needs_a_source(tmp_path, lake, ingest, verb):
    """History and replay are of one log, whose order its offsets say; without a name they are refused."""
    for name in ("west", "east"):
        write(tmp_path / name, 12, name)
        ingest(tmp_path / name, name)
    code, said = verb("lake", "history", "/chat/**")
    assert (code, said) == (2, "halley: the lake has events of west, east: choose with --source\n")
    assert verb("lake", "replay", "--channel", "/chat/**")[0] == 2
    code, said = verb("lake", "history", "/chat/**", "--source", "east")
    assert (code, {json.loads(line)["data"]["text"] for line in said.splitlines()}) == (0, {"east"})
    assert verb("lake", "history", "/chat/**", "--source", "nix")[0] == 2


def test_a_replay_is_of_one_log(tmp_path, lake, ingest):
    """Of a source whose log was replaced, a replay takes the log that has the events, and refuses events of both."""
    clock = iter(range(1_780_272_000, 1_790_000_000)).__next__
    old, new = (write(tmp_path / name, 12, clock=lambda: float(clock())) for name in ("old", "new"))
    ingest(tmp_path / "old", "west")
    ingest(tmp_path / "new", "west", accept_new_log=True)
    until = expected(tmp_path / "old")[-1].time_us + 1
    plan = Plan(ALL, 0, "/replay", "http://127.0.0.1:1", "west")
    with pytest.raises(
        JobRejected, match=r"these events are in 2 logs .* choose those of one log with --from and --to"
    ):
        Replay(lake, plan)
    for selection, log_id in ((ALL._replace(to_us=until), old), (ALL._replace(from_us=until), new)):
        assert Replay(lake, plan._replace(selection=selection))._reader.log_id == log_id
