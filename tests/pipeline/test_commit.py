"""Commits: rows and the job's progress in one step, if the job is where the commit begins, else not at all."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from support.lake import INGEST, LOG_ID, ingested, offsets, rows_of, stored
from support.programs import require_program

from halley.pipeline.errors import JobRejected
from halley.pipeline.lake import tables
from halley.pipeline.lake.commit import AppTransaction, Conflict, commit_files, commit_rows
from halley.pipeline.lake.files import staging_folder, write

FULL = """
import ctypes, os, sys
from pathlib import Path
from support.lake import LOG_ID, rows_of, stored
from halley.pipeline.errors import JobRejected
from halley.pipeline.lake import tables
from halley.pipeline.lake.commit import AppTransaction, commit_rows
table = tables.create(Path(sys.argv[1]), "events", LOG_ID)
OPEN, WRITE, SYNC, RENAME, ENOSPC = 1, 2, 4, 8, 1
ctypes.CDLL(None).faults_arm(int(sys.argv[3]), 1000, globals()[sys.argv[2]], ENOSPC)
try:
    commit_rows(table, rows_of([stored(2)]), AppTransaction("ingest", 2, 3))
except JobRejected as refused:
    print(refused)
"""


@pytest.fixture
def full_disk(tmp_path, tmp_path_factory):
    """Return a function that runs the program above with a disk that is full from the n-th call of a kind on."""
    library = tmp_path_factory.mktemp("faults") / "faults.so"
    source = Path(__file__).parents[1] / "history" / "faults.c"
    subprocess.run([require_program("cc"), "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True, timeout=60)
    path = os.pathsep.join(each for each in sys.path if each)
    environment = os.environ | {"PYTHONPATH": path, "LD_PRELOAD": str(library), "FAULTS_FOLDER": str(tmp_path)}

    def run(kind, n):
        command = [sys.executable, "-c", FULL, tmp_path, kind, str(n)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def files_on_disk(table):
    root = table.folder
    return {str(file.relative_to(root)) for file in root.rglob("*.parquet") if "_delta_log" not in file.parts}


def test_rows_and_progress_are_one_commit(tmp_path):
    """The app version is the next offset, and is committed with the rows."""
    table = ingested(tmp_path, [stored(1), stored(2)])
    assert table.version() == 1
    assert table.position(INGEST) == 3
    assert offsets(table) == [1, 2]


def test_progress_without_rows_is_a_commit_too(tmp_path):
    """A batch without any row that can be stored still advances its job."""
    table = ingested(tmp_path, [stored(1)])
    commit_files(table, [], AppTransaction(INGEST, 2, 50))
    assert tables.LakeTable(table.table_uri).position(INGEST) == 50
    assert offsets(table) == [1]


@pytest.mark.parametrize(("before", "after"), [(None, 9), (1, 9), (3, 9), (2, 1)])
def test_l5_a_commit_that_does_not_start_where_its_job_is_is_refused(tmp_path, before, after):
    """L5, T2: delta-rs would accept any number; here the commit is refused, changes nothing and leaves no file."""
    table = ingested(tmp_path, [stored(1)])
    on_disk = files_on_disk(table)
    with pytest.raises(Conflict):
        commit_rows(table, rows_of([stored(2)]), AppTransaction(INGEST, before, after))
    now = tables.LakeTable(table.table_uri)
    assert (now.position(INGEST), now.version()) == (2, 1)
    assert files_on_disk(table) == on_disk


def test_l6_of_two_that_begin_at_one_place_one_is_refused(tmp_path):
    """L6: even without a lock the second one to commit is refused, and no row is lost or duplicated."""
    ingested(tmp_path, [stored(1)])
    one, other = (tables.open_table(tmp_path, "events") for _ in range(2))
    commit_rows(one, rows_of([stored(2), stored(3)]), AppTransaction(INGEST, 2, 4))
    with pytest.raises(Conflict, match=r"written by another job 'ingest': it is at 4, not 2"):
        commit_rows(other, rows_of([stored(2)]), AppTransaction(INGEST, 2, 3))
    assert offsets(tables.open_table(tmp_path, "events")) == [1, 2, 3]


def test_a_rewrite_beside_an_append_keeps_both(tmp_path):
    """Files can be replaced although another commit was made meanwhile."""
    table = ingested(tmp_path, [stored(1)], [stored(2)])
    old = table.data_files()
    ingested(tmp_path, [stored(3)])
    commit_rows(table, rows_of([stored(1), stored(2)]), removed=old, is_rewrite=True)
    assert offsets(table) == [1, 2, 3]
    assert table.position(INGEST) == 4


def test_of_two_rewrites_of_the_same_files_one_is_refused(tmp_path):
    """delta-rs would accept two rewrites of the same files, and all rows would be duplicated."""
    one = ingested(tmp_path, [stored(1)], [stored(2)])
    other = tables.open_table(tmp_path, "events")
    old = one.data_files()
    commit_rows(one, rows_of([stored(1), stored(2)]), removed=old, is_rewrite=True)
    with pytest.raises(Conflict, match="were replaced by another process meanwhile"):
        commit_rows(other, rows_of([stored(1), stored(2)]), removed=old, is_rewrite=True)
    assert offsets(other) == [1, 2]


@pytest.mark.parametrize("guard", ["none", "no retries", "an application"])
def test_delta_rs_itself_doubles_the_rows_when_two_compact_at_once(tmp_path, guard):
    """The reason for `commit.py`: of two compactions of one version delta-rs 1.6 refuses none.

    When this fails, delta-rs is mended, and `commit.py` and `upkeep.py` can be looked at again.
    """
    for number in range(6):
        write_deltalake(tmp_path, pa.table({"x": range(100 * number, 100 * number + 100)}), mode="append")
    for table in [DeltaTable(tmp_path), DeltaTable(tmp_path)]:
        properties = {
            "none": None,
            "no retries": CommitProperties(max_commit_retries=0),
            "an application": CommitProperties(app_transactions=[Transaction("compact", 1)]),
        }
        assert table.optimize.compact(commit_properties=properties[guard])["numFilesRemoved"] == 6
    assert DeltaTable(tmp_path).count() == 1_200


def test_commits_at_once_all_count(tmp_path):
    """Several jobs commit to one table at the same time, and each row is stored once."""
    tables.create(tmp_path, "gaps", LOG_ID)
    errors = []

    def work(job):
        try:
            table = tables.open_table(tmp_path, "gaps")
            for n in range(5):
                rows = pa.table(
                    {"first": [100 * job + n], "last": [100 * job + n], "reason": ["hole"], "found_us": [0]}
                )
                commit_rows(table, rows, AppTransaction(f"job{job}", n or None, n + 1))
        except JobRejected as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(job,)) for job in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    found = tables.open_table(tmp_path, "gaps").dataset().to_table(columns=["first"])["first"].to_pylist()
    assert sorted(found) == [100 * job + n for job in range(3) for n in range(5)]


def test_rows_are_split_by_partition_and_sorted(tmp_path):
    """A file has the rows of one day and protocol, sorted by topic and offset, compressed with zstd."""
    late = {"time_us": stored(1).time_us + 86_400_000_000}
    table = ingested(tmp_path, [stored(1, "b"), stored(2, "a"), stored(3, protocol="wamp"), stored(4, **late)])
    found = {(file.partition["day"], file.partition["protocol"]): file for file in table.data_files()}
    assert set(found) == {("2025-11-22", "bayeux"), ("2025-11-22", "wamp"), ("2025-11-23", "bayeux")}
    file = table.folder / found["2025-11-22", "bayeux"].path
    assert pq.read_table(file, columns=["offset"], partitioning=None)["offset"].to_pylist() == [2, 1]
    assert pq.read_metadata(file).row_group(0).column(0).compression == "ZSTD"


@pytest.mark.parametrize(
    ("kind", "n"), [("WRITE", 1), ("WRITE", 2), ("SYNC", 1), ("RENAME", 1), ("RENAME", 2), ("OPEN", 1)]
)
def test_a_full_disk_changes_nothing(tmp_path, full_disk, kind, n):
    """At any call at which the disk is full, one sentence reports it, and the table and its folder are unchanged."""
    table = ingested(tmp_path, [stored(1)])
    on_disk = files_on_disk(table)
    assert full_disk(kind, n).rstrip().endswith("is full: make room, and run the same command again")
    now = tables.LakeTable(table.table_uri)
    assert (now.version(), now.position(INGEST), offsets(now)) == (1, 2, [1])
    assert files_on_disk(now) == on_disk


def test_what_a_killed_process_was_writing_goes_when_the_next_one_begins(tmp_path):
    """Staged files of a killed process are deleted when the next one begins; those of running processes stay."""
    leave = "import os, sys; from pathlib import Path; from halley.pipeline.lake.files import staging_folder\n"
    leave += "with staging_folder(Path(sys.argv[1])) as folder: (folder / 'f').touch(); print(folder); os._exit(9)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    command = [sys.executable, "-uc", leave, tmp_path]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    dead = Path(done.stdout.strip())
    assert (dead / "f").exists()
    with staging_folder(tmp_path) as alive:
        assert not dead.exists()
        with staging_folder(tmp_path):
            assert alive.exists()
    assert list((tmp_path / ".staging").iterdir()) == []


def test_a_file_whose_commit_fails_is_taken_back(tmp_path):
    """A refused commit leaves no files in the table's folder."""
    table = ingested(tmp_path, [stored(1)])
    on_disk = files_on_disk(table)
    with staging_folder(tmp_path) as folder:
        written = write(folder, table.shape, rows_of([stored(2)]))
        with pytest.raises(Conflict):
            commit_files(table, written, AppTransaction(INGEST, 99, 100))
    assert files_on_disk(table) == on_disk
