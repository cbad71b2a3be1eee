"""Compaction and vacuum: fewer files, the same rows, and no file deleted that is needed."""

import threading
from itertools import pairwise

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from support.lake import INGEST, LOG_ID, ingested, rows_of, stored

from halley.pipeline.errors import JobFailed
from halley.pipeline.lake import locks, shapes, tables, upkeep
from halley.pipeline.lake.commit import AppTransaction, commit_files, commit_rows
from halley.pipeline.lake.files import staging_folder, write

pytestmark = pytest.mark.slow


@pytest.fixture
def small_files(monkeypatch):
    """Limit files to a hundred rows, so that a few hundred events make several."""
    monkeypatch.setattr(upkeep, "FILE_ROWS", 100)
    monkeypatch.setattr(upkeep, "_MOST_ROWS", 400)
    monkeypatch.setattr(upkeep, "_BATCH_ROWS", 16)
    monkeypatch.setattr(upkeep, "_SMALL_ROWS", 25)


def everything(table):
    return table.dataset().to_table().sort_by("offset").to_pylist()


def batches(count=8, rows=50, topics=20):
    """Return commits of interleaved channels, as ingest makes them."""
    return [[stored(n, f"c{n % topics:02}") for n in range(1 + rows * at, 1 + rows * (at + 1))] for at in range(count)]


def test_l10_compaction_changes_neither_rows_nor_progress(tmp_path, small_files):
    """L10: rows, app version and codec are unchanged, and there are fewer files."""
    table = ingested(tmp_path, *batches())
    before = everything(table)
    done = upkeep.compact(tmp_path, "events")
    assert done == (8, 4, 400)
    now = tables.open_table(tmp_path, "events")
    assert everything(now) == before
    assert now.position(INGEST) == table.position(INGEST) == 401
    codecs = {pq.read_metadata(now.folder / file.path).row_group(0).column(0).compression for file in now.data_files()}
    assert codecs == {"ZSTD"}


def test_one_channel_is_in_few_files_after_compaction(tmp_path, small_files):
    """By their statistics all files except one can be skipped for a channel; before compaction none could."""
    table = ingested(tmp_path, *batches())

    def with_channel(table):
        return [file for file in table.data_files() if file.least["topic"] <= "c07" <= file.greatest["topic"]]

    assert len(with_channel(table)) == 8
    upkeep.compact(tmp_path, "events")
    assert len(with_channel(tables.open_table(tmp_path, "events"))) == 1


def test_a_channel_that_fills_files_is_divided_by_time(tmp_path, small_files):
    """Each file of a busy channel has a separate range of offsets, so that an hour of it is in few files."""
    ingested(tmp_path, *batches(topics=1))
    upkeep.compact(tmp_path, "events")
    files = tables.open_table(tmp_path, "events").data_files()
    ranges = sorted((file.least["offset"], file.greatest["offset"]) for file in files)
    assert len(ranges) >= 3
    assert all(last < first for (_, last), (first, _) in pairwise(ranges))


def test_what_is_compacted_is_left_alone(tmp_path, small_files):
    """A second compaction has nothing to do, and one after new commits does not rewrite large, sorted files."""
    ingested(tmp_path, *batches())
    upkeep.compact(tmp_path, "events")
    assert upkeep.compact(tmp_path, "events") == (0, 0, 0)
    large = {file.path for file in tables.open_table(tmp_path, "events").data_files()}
    ingested(tmp_path, [stored(401, "new")])
    assert upkeep.compact(tmp_path, "events").before == 1
    assert large < {file.path for file in tables.open_table(tmp_path, "events").data_files()}


def test_what_is_not_much_yet_is_left_for_later_but_of_days_that_are_over(tmp_path, small_files):
    """The newest day waits until it has enough small files; earlier days get no more files, so they do not wait."""
    day_us = 86_400_000_000
    rows = [stored(n, time_us=stored(n).time_us + (n > 30) * day_us) for n in range(1, 61)]
    ingested(tmp_path, *(rows[at : at + 10] for at in range(0, 60, 10)))
    assert upkeep.compact(tmp_path, "events", least=4) == (3, 1, 30)
    assert upkeep.compact(tmp_path, "events", least=4) == (0, 0, 0)
    assert upkeep.compact(tmp_path, "events", least=3) == (3, 1, 30)


def test_each_partition_is_compacted_by_itself(tmp_path, small_files):
    """Days and protocols stay in separate files."""
    day_us = 86_400_000_000
    rows = [
        stored(n, protocol=("bayeux", "wamp")[n % 2], time_us=stored(n).time_us + n % 3 * day_us) for n in range(1, 61)
    ]
    table = ingested(tmp_path, rows[:30], rows[30:])
    before = everything(table)
    assert upkeep.compact(tmp_path, "events") == (12, 6, 60)
    assert everything(tables.open_table(tmp_path, "events")) == before


def test_l12_files_without_a_new_column_are_compacted_with_it(tmp_path, small_files):
    """A lifted column that was added later is null in older rows, even after compaction."""
    ingested(tmp_path, [stored(1)])
    table = tables.create(tmp_path, "events", LOG_ID, shapes.lifted_columns({"price": "double"}))
    commit_rows(table, rows_of([stored(2)], price=[2.5]), AppTransaction(INGEST, 2, 3))
    upkeep.compact(tmp_path, "events")
    found = everything(tables.open_table(tmp_path, "events"))
    assert [row["price"] for row in found] == [None, 2.5]


def test_an_ingest_goes_on_beside_compaction(tmp_path, small_files):
    """Commits that are made while files are rewritten are kept, and so is their progress."""
    ingested(tmp_path, *batches())
    added = []

    def commit_more(done, of):
        if not added:
            added.append(ingested(tmp_path, [stored(401)]))

    upkeep.compact(tmp_path, "events", commit_more)
    now = tables.open_table(tmp_path, "events")
    assert added
    assert [row["offset"] for row in everything(now)] == list(range(1, 402))
    assert now.position(INGEST) == 402


def test_faults_of_a_batch_that_is_not_committed_are_not_compacted(tmp_path):
    """Ingest replaces these faults by file when it repeats the batch, so their files must stay."""
    ingested(tmp_path, [stored(1)])
    gaps = tables.create(tmp_path, "gaps", LOG_ID)
    columns = shapes.TABLES["gaps"].columns
    for first in (2, 3):
        row = {"first": [first], "last": [first], "reason": ["hole"], "found_us": [0]}
        commit_rows(gaps, columns.empty_table().from_pydict(row, schema=columns))
    assert upkeep.compact(tmp_path, "gaps") == (0, 0, 0)


def test_other_readers_read_compacted_files(tmp_path, small_files):
    """Numbers that are stored as differences are plain Parquet for duckdb and polars."""
    ingested(tmp_path, *batches(2))
    upkeep.compact(tmp_path, "events")
    folder = str(tables.path(tmp_path, "events"))
    assert pl.scan_delta(folder).select(pl.col("offset").sum()).collect().item() == sum(range(1, 101))
    files = DeltaTable(folder).file_uris()
    assert duckdb.sql(f'select sum("offset") from read_parquet({files})').fetchall() == [(sum(range(1, 101)),)]


def test_l11_vacuum_removes_what_is_not_named_and_nothing_else(tmp_path, small_files):
    """L11, T6: files that compaction replaced and those of a killed attempt are deleted; every row stays."""
    table = ingested(tmp_path, *batches())
    before = everything(table)
    orphan = table.folder / "day=2025-11-22" / "protocol=bayeux" / "orphan.parquet"
    orphan.write_bytes(b"torn")
    upkeep.compact(tmp_path, "events")
    told = []
    assert upkeep.vacuum(tmp_path, 0, lambda done, of: told.append((done, of))).files == 9
    assert told == [(done, len(shapes.TABLES)) for done in range(len(shapes.TABLES) + 1)]
    assert not orphan.exists()
    assert everything(tables.open_table(tmp_path, "events")) == before


def test_l11_vacuum_spares_what_is_younger_than_its_age(tmp_path, small_files):
    """L11: readers can still have open what was compacted recently."""
    table = ingested(tmp_path, *batches())
    upkeep.compact(tmp_path, "events")
    assert upkeep.vacuum(tmp_path, 7 * 86_400) == (0, 0)
    assert len(everything(tables.LakeTable(table.table_uri, version=table.version()))) == 400


def test_t5_vacuum_never_takes_the_files_of_a_commit_under_way(tmp_path, monkeypatch):
    """T5: a vacuum of age 0 that begins between moving files and committing them waits, and they are committed."""
    table = ingested(tmp_path, [stored(1)])
    vacuumed = []
    vacuum = threading.Thread(target=lambda: vacuumed.append(upkeep.vacuum(tmp_path, 0)))
    update = DeltaTable.update_incremental

    def vacuum_now(table):
        if not vacuum.ident:
            vacuum.start()
            vacuum.join(0.5)
            assert vacuum.is_alive()
        update(table)

    monkeypatch.setattr(DeltaTable, "update_incremental", vacuum_now)
    with staging_folder(tmp_path) as folder:
        files = write(folder, table.shape, rows_of([stored(2)]))
        commit_files(table, files, AppTransaction(INGEST, 2, 3))
    vacuum.join(60)
    assert vacuumed == [(0, 0)]
    assert [row["offset"] for row in everything(tables.open_table(tmp_path, "events"))] == [1, 2]


def test_two_compactions_at_once_are_refused(tmp_path):
    """The second compaction is refused, and can be started again later."""
    ingested(tmp_path, [stored(1)])
    with locks.rewrite(tmp_path), pytest.raises(locks.Busy, match="another process already compacts"):
        upkeep.compact(tmp_path, "events")


def test_a_lake_without_a_table_is_nothing_to_do(tmp_path):
    """A table that does not exist yet has nothing to compact."""
    assert upkeep.compact(tmp_path, "rollups") == (0, 0, 0)


def test_a_damaged_file_stops_compaction(tmp_path):
    """A deleted file is reported in one sentence, and the table is unchanged."""
    table = ingested(tmp_path, [stored(1)], [stored(2)])
    (table.folder / table.data_files()[0].path).unlink()
    with pytest.raises(JobFailed, match="cannot be read: No such file or directory; halley pipeline verify"):
        upkeep.compact(tmp_path, "events")
    assert tables.open_table(tmp_path, "events").version() == table.version()
