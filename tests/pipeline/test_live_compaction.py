"""Compaction during a live ingest, without Spark: it can be stopped at any time, and waits for others."""

import threading
from contextlib import ExitStack

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from support.lake import ingested, stored

from halley.pipeline.jobs.ingest import LiveCompaction
from halley.pipeline.lake import locks, tables, upkeep
from halley.pipeline.lake.files import write_files
from halley.settings import Pipeline

OFTEN = Pipeline(compact_s=0.01, compact_files=4)


@pytest.fixture
def lake(tmp_path):
    """Make a lake of eight small files."""
    ingested(tmp_path, *([stored(n) for n in range(at, at + 10)] for at in range(1, 81, 10)))
    return tmp_path


def files(lake):
    return {file.path for file in tables.open_table(lake, "events").data_files()}


def test_it_ends_in_the_middle_of_a_file_and_changes_nothing(lake, monkeypatch):
    """Stopping does not wait until large files are rewritten, and deletes incomplete ones."""
    before = files(lake)
    compaction = LiveCompaction(lake, OFTEN)
    has_begun = threading.Event()
    write = upkeep.write

    def slowly(*arguments, **options):
        has_begun.set()
        assert compaction._end.wait(30)
        return write(*arguments, **options)

    monkeypatch.setattr(upkeep, "write", slowly)
    with compaction.running():
        assert has_begun.wait(30)
    assert files(lake) == before
    assert (compaction.compacted, compaction.failed) == (0, 0)
    assert list((lake / ".staging").iterdir()) == []


def test_it_gives_way_to_who_rewrites_files_and_comes_back(lake, monkeypatch):
    """While another process compacts or erases, compaction waits, without counting a failure, and is done later."""
    compaction = LiveCompaction(lake, OFTEN)
    looks = threading.Semaphore(0)
    is_done = threading.Event()
    compact = upkeep.compact

    def seen(*arguments, **named):
        looks.release()
        done = compact(*arguments, **named)
        if done.before:
            is_done.set()
        return done

    monkeypatch.setattr(upkeep, "compact", seen)
    with ExitStack() as stack:
        with locks.rewrite(lake):
            stack.enter_context(compaction.running())
            for _ in range(4):
                assert looks.acquire(timeout=30)
            assert len(files(lake)) == 8
        assert is_done.wait(30)
    assert (len(files(lake)), compaction.failed) == (1, 0)


def test_t20_a_scan_that_is_left_early_is_closed(lake, monkeypatch):
    """T20: after an error in the middle of a table, no thread of Arrow reads on while the process ends."""
    monkeypatch.setattr(upkeep, "_MOST_ROWS", 10)
    table = tables.open_table(lake, "events")
    columns = table.columns().remove(table.columns().get_field_index("day"))
    portions = upkeep._portions(
        table,
        sorted(files(lake)),
        columns.remove(columns.get_field_index("protocol")),
    )
    assert next(portions).num_rows
    portions.close()
    assert next(portions, None) is None


def test_t20_a_write_is_done_when_it_returns(tmp_path, monkeypatch):
    """T20: no thread of Arrow writes on, or lets go of a function of Python, perhaps while the process ends."""
    monkeypatch.setattr(ds, "write_dataset", None)
    written = write_files(tmp_path, pa.table({"offset": [1, 2, 3], "day": ["a", "a", "b"]}).to_batches(), ["day"])
    assert [(file.path.parent.name, file.rows) for file in written] == [("day=a", 2), ("day=b", 1)]
