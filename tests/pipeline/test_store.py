"""Lakes in an object store: processes at once, kills, a store that is gone, and refusals; on a real S3 server."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pipeline.store_job import GONE
from support.lake import ingested, offsets, rows_of, stored
from support.log import OpenLog
from support.object_store import BUCKET, ObjectStore

from halley.pipeline.errors import JobRejected
from halley.pipeline.lake import tables, upkeep
from halley.pipeline.lake.commit import (
    VACUUM,
    AppTransaction,
    Conflict,
    acquire_epoch,
    begin_deletion,
    commit_files,
    commit_rows,
    unchanged,
)
from halley.pipeline.lake.files import add_of, staging_folder, write
from halley.pipeline.lake.forget import forget
from halley.pipeline.lake.place import place_of, put, sizes
from halley.pipeline.lake.verify import verify
from halley.pipeline.queries.conditions import between, plan_scan

pytestmark = pytest.mark.slow

JOB = Path(__file__).with_name("store_job.py")
PATHS = os.pathsep.join(path for path in sys.path if path)
LONGEST_S = 300
EVENTS = 2_000


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Start a store, and set the variables with which this process finds it."""
    opened = ObjectStore(tmp_path_factory.mktemp("store"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in opened.variables().items():
            patch.setenv(name, value)
        opened.start()
        yield opened
        opened.kill()


@pytest.fixture
def lake(store, request):
    """Return the place of a new lake."""
    return place_of(f"s3://{BUCKET}/{request.node.name.partition('[')[0]}-{os.getpid()}-{random.randrange(1 << 30)}")


@pytest.fixture
def data(tmp_path):
    """Make a log of 2,000 events, every tenth of which is below `/gone`."""
    with OpenLog(tmp_path / "data", segment_bytes=65_536) as log:
        for number in range(1, EVENTS + 1):
            log.append({"n": number}, topic="gone/x" if number % 10 == 0 else f"c{number % 7}")
        assert log.history.written(60)
    return tmp_path / "data"


def job_of(role, lake, *more):
    """Start a job as a separate process."""
    return subprocess.Popen(
        [sys.executable, JOB, role, str(lake), *map(str, more)],
        env=os.environ | {"PYTHONPATH": PATHS},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def outcome(process):
    """Return a process' exit code and the last line that it wrote; there must be nothing else than lines."""
    out, err = process.communicate(timeout=LONGEST_S)
    assert (process.returncode, err) in ((0, ""), (2, "")), err
    return process.returncode, (out.splitlines() or [""])[-1]


def ingest(lake, data):
    """Ingest all that the log has."""
    code, said = outcome(job_of("ingest", lake, data))
    assert code == 0, said


def check(lake):
    """Assert that the lake is sound."""
    wrong = [f"{each.what}: {each.text}" for each in verify(lake, is_thorough=True) if not each.is_sound]
    assert not wrong, wrong


def names(lake):
    """Return the paths of the files that the table `events` has."""
    return {file.path for file in tables.open_table(lake, "events").data_files()}


def test_a_lake_is_made_filled_compacted_and_read(lake):
    """Tables, commits, compaction, vacuum and verification are as in a folder."""
    assert tables.open_all(lake) == {}
    table = ingested(lake, *([stored(n) for n in range(at, at + 10)] for at in range(1, 81, 10)))
    assert offsets(table) == list(range(1, 81))
    assert [file.least["offset"] for file in plan_scan("events", table, between("offset", 25, 29)).files] == [21]
    assert upkeep.compact(lake, "events").after == 1
    assert offsets(tables.open_table(lake, "events")) == list(range(1, 81))
    assert upkeep.vacuum(lake, 3_600).files == 0
    assert upkeep.vacuum(lake, 0).files == 8
    assert sizes(lake / "events").keys() == names(lake)
    check(lake)


def test_of_two_commits_and_two_compactions_from_one_place_one_is_refused(lake):
    """No lock keeps them apart, and no row is lost or doubled."""
    ingested(lake, [stored(1)], [stored(2)])
    one, other = (tables.open_table(lake, "events") for _ in range(2))
    commit_rows(one, rows := _rows(3), AppTransaction("ingest", 3, 4))
    with pytest.raises(Conflict, match="was written by another job 'ingest': it is at 4, not 3"):
        commit_rows(other, rows, AppTransaction("ingest", 3, 4))
    old = other.data_files()
    commit_rows(one, _rows(1, 2, 3), removed=old, is_rewrite=True)
    with pytest.raises(Conflict, match="were replaced by another process meanwhile"):
        commit_rows(other, _rows(1, 2, 3), removed=old, is_rewrite=True)
    assert offsets(tables.open_table(lake, "events")) == [1, 2, 3]
    assert sizes(lake / "events").keys() - {file.path for file in old} == names(lake)  # refused commits leave nothing


def _rows(*numbers):
    return rows_of([stored(number) for number in numbers])


def test_t5_vacuum_never_takes_the_files_of_a_commit_in_progress(lake):
    """T5: files that workers have put are deleted by a vacuum regardless of age; their commit is refused, not torn."""
    table = ingested(lake, [stored(1)])
    condition = unchanged(table, VACUUM)
    with staging_folder(lake) as folder:
        (file,) = write(folder, table.shape, _rows(2))
        add = add_of(file, file.relative_to(folder).as_posix(), table.shape)
        put(file, lake / "events" / add.path)
    assert upkeep.vacuum(lake, 0).files == 1
    with pytest.raises(Conflict) as refused:
        commit_files(table, [add], AppTransaction("ingest", 2, 3), condition)
    assert refused.value.app == VACUUM
    condition = unchanged(table, VACUUM)
    begin_deletion(tables.open_table(lake, "events"))
    with pytest.raises(Conflict) as refused:  # rows that were read before a deletion
        commit_rows(table, _rows(2), AppTransaction("ingest", 2, 3), condition)
    assert refused.value.app == VACUUM
    commit_rows(table, _rows(2), AppTransaction("ingest", 2, 3))  # what is put by the commit itself is put again
    assert offsets(table) == [1, 2]
    check(lake)


def test_l6_the_ingest_that_was_started_last_goes_on(lake, data):
    """L6: an ingest that another one has followed stops with a sentence, whatever they were doing."""
    first = job_of("ingest", lake, data)
    assert first.stdout.readline() == "201\n"
    ingest(lake, data)
    code, said = outcome(first)
    assert code == 0 or said == f"another ingest into {lake} was started later, and goes on in place of this one"
    check(lake)
    assert offsets(tables.open_table(lake, "events")) == list(range(1, EVENTS + 1))
    counted = tables.open_table(lake, "mismatches").dataset().to_table()
    assert sum(counted["events"].to_pylist()) == EVENTS
    made = [tables.open_table(lake, name) for name in ("events", "rejected", "gaps", "mismatches")]
    numbers = [acquire_epoch(made), acquire_epoch(made)]
    assert numbers == sorted(set(numbers))


@pytest.mark.nightly
def test_ingests_of_several_sources_go_on_together(lake, data, tmp_path):
    """Three logs are brought in at once, into a lake that is not there yet, while files are compacted and deleted."""
    folders = {name: tmp_path / name for name in ("west", "east")}
    for name, folder in folders.items():
        with OpenLog(folder) as log:
            log.write(*({"n": number} for number in range(700)), topic=name)
    jobs = [job_of("ingest", lake, folder, name) for name, folder in {**folders, "south": data}.items()]
    assert jobs[0].stdout.readline() == "201\n"
    others = [job_of("compact", lake), job_of("vacuum", lake)]
    for job in jobs:
        code, said = outcome(job)
        assert code == 0, said
    for job in others:
        outcome(job)
    check(lake)
    events = tables.open_table(lake, "events")
    counts = {each.source: sum(file.rows for file in events.files_of(each.log_id)) for each in events.sources.origins}
    assert counts == {"west": 700, "east": 700, "south": EVENTS}
    made = [tables.open_table(lake, name) for name in ("events", "rejected", "gaps", "mismatches")]
    before = events.position("ingest/owner/east")
    acquire_epoch(made, "west")
    events.refresh()
    assert events.position("ingest/owner/east") == before, "an ingest of one source does not end those of others"


@pytest.mark.nightly
def test_all_at_once_and_killed(lake, data):
    """Two ingests, two compactions, a vacuum and an erasure at once, killed again and again: every offset once."""
    with OpenLog(data, segment_bytes=65_536) as log:
        first = job_of("ingest", lake, data)
        assert first.stdout.readline() == "201\n"  # events of the channel are in the lake, and in a batch in progress
        log.history.purge(GONE, lambda *_: None)
    chance = random.Random(37)
    roles = ["ingest", "compact", "compact", "vacuum", "forget"]
    running = [(role, job_of(role, lake, *([data] if role == "ingest" else []))) for role in roles]
    for _ in range(5):
        time.sleep(chance.uniform(0.5, 2))  # the duration is the random choice
        at = chance.randrange(len(running))
        role, process = running[at]
        process.kill()
        process.communicate()
        running[at] = role, job_of(role, lake, *([data] if role == "ingest" else []))
    for _, process in running:
        outcome(process)
    outcome(first)
    ingest(lake, data)
    assert forget(lake, GONE).keys() >= {"events", "rejected"}
    check(lake)
    assert offsets(tables.open_table(lake, "events")) == [n for n in range(1, EVENTS + 1) if n % 10]
    upkeep.vacuum(lake, 0)
    assert sizes(lake / "events").keys() == names(lake)
    check(lake)


@pytest.mark.nightly
def test_a_store_that_is_gone_for_some_seconds(store, lake, data):
    """Jobs end with one sentence; with the store back, the same command does the rest."""
    job = job_of("ingest", lake, data)
    assert job.stdout.readline() == "201\n"
    store.kill()
    try:
        code, said = outcome(job)
        assert (code, "the store does not answer" in said) == (2, True), said
        with pytest.raises(JobRejected, match="the store does not answer"):
            upkeep.compact(lake, "events")
    finally:
        store.start()
    check(lake)
    ingest(lake, data)
    check(lake)
    assert offsets(tables.open_table(lake, "events")) == list(range(1, EVENTS + 1))


def halley(store, *arguments, who="owner", **more):
    """Run `halley` in a process of its own, since delta-rs writes to the standard error itself."""
    variables = store.environment(who, **{"PYTHONPATH": PATHS, **more})
    command = [sys.executable, "-m", "halley", *map(str, arguments)]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=LONGEST_S, check=False)


WRITERS = {
    "ingest": ("pipeline", "ingest", "--once"),
    "compact": ("pipeline", "compact"),
    "vacuum": ("pipeline", "vacuum"),
    "forget": ("lake", "forget", "/c1", "--yes"),
    "sessions": ("pipeline", "sessions", "--once"),
}
NOBODY = "http://127.0.0.1:1"
KEY = "the store refuses the key"


@pytest.mark.parametrize(
    ("verb", "bucket", "who", "more", "sentence"),
    [
        *((verb, BUCKET, "reader", {}, KEY) for verb in WRITERS),
        ("ingest", "nosuch", "owner", {}, "there is no such bucket"),
        ("ingest", BUCKET, "stranger", {}, KEY),
        ("ingest", BUCKET, "owner", {"AWS_SECRET_ACCESS_KEY": "wrong"}, KEY),
        ("ingest", BUCKET, "owner", {"AWS_SESSION_TOKEN": "expired"}, KEY),
        ("ingest", BUCKET, "owner", {"AWS_ENDPOINT_URL": NOBODY}, "the store does not answer"),
        ("compact", BUCKET, "stranger", {}, KEY),
        ("compact", BUCKET, "owner", {"AWS_ENDPOINT_URL": NOBODY}, "the store does not answer"),
    ],
)
def test_bad_input_gets_one_sentence(store, data, verb, bucket, who, more, sentence):
    """Exit code 2, one line on standard error without the key, and nothing changed."""
    lake = place_of(f"s3://{bucket}/refused")
    if bucket == BUCKET and not tables.open_all(lake):
        ingested(lake, [stored(1, "c1")])
    before = store.listing()
    done = halley(store, *WRITERS[verb], "--data-dir", data, "--lake", lake, who=who, **more)
    assert (done.returncode, done.stdout) == (2, ""), done
    (line,) = done.stderr.splitlines()
    assert line.startswith("halley: ")
    assert sentence in line
    assert "secret" not in line.lower().replace("aws_secret", "")
    assert store.listing() == before


@pytest.mark.nightly
def test_who_may_only_read_reads(store, lake, data):
    """Verification, history and the report need no right to write."""
    ingest(lake, data)
    report = ("lake", "report", "--out", data / "page")
    for verb in (("pipeline", "verify", "--all"), ("lake", "history", "/c1"), report):
        done = halley(store, *verb, "--lake", lake, who="reader")
        assert done.returncode == 0, done.stderr
    assert f"the lake at {lake}" in done.stderr


@pytest.mark.nightly
def test_every_verb_with_spark(store, lake, data, tmp_path):
    """Spark's workers put the files of ingest; statistics, alerts, sessions and SQL work, and no key is told."""
    own = {"XDG_STATE_HOME": str(tmp_path / "state"), "TMPDIR": str(tmp_path)}
    at = ("--lake", lake, "--data-dir", data)
    done = halley(store, "pipeline", "run", "--once", "--no-publish", *at, **own)
    assert done.returncode == 0, done.stderr
    done = halley(store, "pipeline", "sessions", "--once", *at, **own)
    assert done.returncode == 0, done.stderr
    query = "select count(*) as n, count(distinct channel) as channels, min(day) = max(day) as one from events"
    done = halley(store, "lake", "sql", query, *at, **own)
    assert (done.returncode, done.stdout) == (0, f"n,channels,one\n{EVENTS},8,true\n"), done.stderr
    assert "secret" not in done.stdout + done.stderr
    check(lake)
    assert list((tmp_path / "state" / "halley" / "lakes").glob("*/checkpoints/alerts/*"))
