"""Memory is bounded by bytes, whatever the payloads are: where rows are written, read, sorted, erased and replayed."""

import random
from contextlib import closing, contextmanager
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.lake import INGEST, ingested, offsets, stored
from support.log import OpenLog

from halley.broker.names import Match, Pattern
from halley.broker.ports import Erasure
from halley.history import segment_reader
from halley.history.stored import COLUMNS
from halley.pipeline.lake import files, tables, upkeep
from halley.pipeline.lake.files import write_files
from halley.pipeline.lake.forget import forget
from halley.pipeline.lake.verify import verify
from halley.pipeline.portions import cut, read
from halley.pipeline.queries import events, replay
from halley.pipeline.queries.events import EventReader, Selection
from halley.pipeline.queries.replay import Plan, Replay
from halley.pipeline.source import http_log
from halley.pipeline.source.log import BATCH_BYTES
from halley.pipeline.source.source import SourceOptions, Table

MB = 1_048_576
ALL = Selection(Pattern(Match.DESCENDANTS, ""))


@contextmanager
def arrow():
    """Yield Arrow's memory pool for the block, which has its own peak."""
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(before)


def batches(sizes, days=1, at_once=8):
    """Yield rows with payloads of these sizes, a few at a time, in turn of some days."""
    for first in range(0, len(sizes), at_once):
        some = range(first, min(first + at_once, len(sizes)))
        columns = {
            "offset": [*some],
            "payload": [random.Random(n).randbytes(sizes[n] // 2).hex() for n in some],
            "day": [f"d{n % days:03}" for n in some],
        }
        yield pa.RecordBatch.from_pydict(columns)


def groups(file):
    """Return the rows of each row group of a file, and their bytes in memory."""
    with pq.ParquetFile(file) as parquet:
        found = [parquet.read_row_group(number) for number in range(parquet.num_row_groups)]
    return [(each.num_rows, each.nbytes) for each in found]


def test_a_row_group_ends_by_its_bytes(tmp_path):
    """40 MB of payloads of 45 KB are written in row groups of at most 1 MiB, in little more memory than that."""
    with arrow() as pool:
        [written] = write_files(tmp_path, batches([45_000] * 900), group_bytes=MB)
        peak = pool.max_memory()
    assert written.rows == 900
    found = groups(written.path)
    assert all(nbytes <= MB for _, nbytes in found)
    assert max(nbytes for _, nbytes in found) > MB / 2
    assert peak < 6 * MB
    assert [each for rows in read(written.path, ["offset"]) for each in rows["offset"].to_pylist()] == [*range(900)]


@pytest.mark.slow
def test_the_bound_holds_for_all_files_together(tmp_path):
    """After a long pause a batch has events of many days, more than files can be open, and needs no more memory."""
    with arrow() as pool:
        written = write_files(tmp_path, batches([20_000] * 2_000, days=200), ["day"], group_bytes=MB)
        peak = pool.max_memory()
    assert peak < 6 * MB
    rows = {}
    for each in written:
        with pq.ParquetFile(each.path) as parquet:
            rows.setdefault(each.path.parent.name, []).extend(parquet.read()["offset"].to_pylist())
    assert {name: sorted(found) for name, found in rows.items()} == {
        f"day=d{day:03}": [*range(day, 2_000, 200)] for day in range(200)
    }
    assert len({each.path for each in written}) == len(written)


def test_a_row_that_is_larger_than_the_bound_is_a_row_group(tmp_path):
    """Payloads of any size can be written: a large one has a row group of its own."""
    sizes = [100, 100, 3 * MB, 100, 2 * MB, 2 * MB, 100]
    [written] = write_files(tmp_path, batches(sizes, at_once=100), group_bytes=MB)
    assert [rows for rows, _ in groups(written.path)] == [2, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("at_once", [1, 30, 1_000])
def test_files_and_row_groups_have_as_many_rows_as_they_may(tmp_path, monkeypatch, at_once):
    """Small rows fill row groups and files by their number, however they come."""
    monkeypatch.setattr(files, "ROW_GROUP_ROWS", 20)
    written = write_files(tmp_path, batches([10] * 120, at_once=at_once), file_rows=50)
    assert [each.rows for each in written] == [50, 50, 20]
    assert [[rows for rows, _ in groups(each.path)] for each in written] == [[20, 20, 10], [20, 20, 10], [20]]


def test_values_of_partitions_are_in_the_names_of_folders(tmp_path):
    """Any text can be one, and null; the columns are not in the files."""
    rows = pa.table({"offset": [1, 2, 3, 4], "kind": ["a/b", None, "a/b", "ü %"], "n": [1, 1, 2, None]})
    written = write_files(tmp_path, rows.to_batches(), ["kind", "n"])
    null = tables.NULL_FOLDER
    assert {str(each.path.parent.relative_to(tmp_path)) for each in written} == {
        *("kind=a%2Fb/n=1", f"kind={null}/n=1", "kind=a%2Fb/n=2", f"kind=%C3%BC%20%25/n={null}")
    }
    assert {pq.read_schema(each.path).names[0] for each in written} == {"offset"}


def test_a_file_that_cannot_be_written_leaves_nothing_open(tmp_path, capfd):
    """An error in the middle is raised as it is, and nothing is written to the terminal later."""

    def failing():
        yield from batches([1_000] * 20)
        raise RuntimeError("the log has ended")

    with pytest.raises(RuntimeError, match="the log has ended"):
        write_files(tmp_path, failing())
    assert capfd.readouterr() == ("", "")


def test_rows_are_cut_within_both_bounds():
    """Parts are in order and complete; a row that is too large is a part by itself."""
    sizes = [10, 10, 5_000, 10, *[100] * 100]
    [rows] = batches(sizes, at_once=1_000)
    parts = [*cut(rows, 30, 2_000)]
    assert [each for part in parts for each in part["offset"].to_pylist()] == [*range(len(sizes))]
    assert all(part.num_rows == 1 or (part.num_rows <= 30 and part.nbytes <= 2_000) for part in parts)
    assert len(parts) < 20


def test_a_file_is_read_in_portions_whatever_the_sizes_of_its_rows(tmp_path):
    """Many small rows and then some large ones: no portion has more bytes than a row group has."""
    [written] = write_files(tmp_path, batches([50] * 5_000 + [100_000] * 200), group_bytes=MB)
    with arrow() as pool:
        sizes = [rows.nbytes for rows in read(written.path, most_bytes=MB)]
        peak = pool.max_memory()
    assert max(sizes) <= 1.1 * MB
    assert peak < 8 * MB


def test_a_range_that_is_large_is_not_one_table(tmp_path):
    """A job reads small ranges itself, by their bytes too."""
    with OpenLog(tmp_path) as log:
        log.write(*["x" * 1_000] * 50)
    table = Table(SourceOptions({"path": str(tmp_path)}))
    assert table.table(1, 51, MB).num_rows == 50
    assert table.table(1, 51, 10_000) is None


def test_a_server_reads_few_large_events_at_a_time(tmp_path, monkeypatch):
    """Of a full segment so many rows are read at a time as have the bound's bytes, if they are of one size."""
    monkeypatch.setattr(segment_reader, "_BATCH_BYTES", 500_000)
    with OpenLog(tmp_path, segment_bytes=2_000_000) as log:
        for _ in range(12):
            log.write(*["x" * 100_000] * 10)
        found = [[row.offset for row in rows] for rows in log.history.rows(1, 120)]
    assert [each for rows in found for each in rows] == [*range(1, 121)]
    assert max(map(len, found[:10])) <= 5


def test_a_servers_response_is_taken_in_parts():
    """One batch of Arrow with 20 MB, as a server sends it for large events, becomes lists of rows within the bound."""
    rows = pa.table({name: pa.array(["x" * 500_000] * 40 if name == "payload" else [1] * 40) for name in COLUMNS})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    answer = SimpleNamespace(iter_bytes=lambda: iter([sink.getvalue().to_pybytes()]))
    found = [*http_log._gathered(http_log._arrow_rows(answer))]
    assert sum(map(len, found)) == 40
    assert max(sum(len(row[6]) for row in part) for part in found) < 2 * BATCH_BYTES


@pytest.fixture
def lake(tmp_path):
    """Make a lake of small events, with large ones of another channel among them, in ten files."""
    rows = [stored(n, *(("large", "x" * 30_000) if n % 5 == 0 else ("small",))) for n in range(1, 501)]
    ingested(tmp_path, *(rows[at : at + 50] for at in range(0, 500, 50)))
    return tmp_path


@pytest.mark.parametrize("is_compacted", [False, True])
@pytest.mark.parametrize("after", [0, 123])
def test_events_are_read_in_stretches_of_bounded_bytes(lake, monkeypatch, is_compacted, after):
    """Where the sizes vary, a stretch has not more than the bound, and every event comes once and in order."""
    if is_compacted:
        assert upkeep.compact(lake, "events").after == 1
    monkeypatch.setattr(events, "_STRETCH_BYTES", 200_000)
    found = [*EventReader(lake, ALL).rows(after)]
    assert [row["offset"] for rows in found for row in rows] == [*range(after + 1, 501)]
    assert max(sum(len(row["payload"]) for row in rows) for rows in found) <= 200_000
    large = Selection(Pattern(Match.EXACT, "large"))
    assert [row["offset"] for rows in EventReader(lake, large).rows() for row in rows] == [*range(5, 501, 5)]


def test_what_is_sorted_at_a_time_has_bounded_bytes(lake, monkeypatch):
    """Compaction makes a file of what it can sort at a time, and leaves such files alone, small as they are on disk."""
    monkeypatch.setattr(upkeep, "_MOST_BYTES", 500_000)
    before = tables.open_table(lake, "events").dataset().to_table().sort_by("offset")
    done = upkeep.compact(lake, "events")
    assert (done.before, done.rows) == (10, 500)
    assert done.after == 5
    now = tables.open_table(lake, "events")
    assert now.dataset().to_table().sort_by("offset").to_pylist() == before.to_pylist()
    assert max(file.nbytes for file in now.data_files()) < 100_000
    assert upkeep.compact(lake, "events") == (0, 0, 0)
    assert [each for each in verify(lake, is_thorough=True) if not each.is_sound] == []


def test_a_portion_is_not_held_when_the_next_is_read(lake, monkeypatch):
    """The sum of what a table has never is in memory."""
    monkeypatch.setattr(upkeep, "_MOST_BYTES", 300_000)
    table = tables.open_table(lake, "events")
    columns = pa.schema([each for each in table.columns() if each.name not in table.shape.partition_by])
    paths = [each.path for each in table.data_files()]
    with arrow() as pool, closing(upkeep._portions(table, paths, columns)) as portions:
        assert sum(each.num_rows for each in portions) == 500
        assert pool.max_memory() < 3 * MB


def test_erasing_large_events_leaves_the_others(lake):
    """A file is rewritten in portions; what is left of it has its order, and each offset stays accounted for."""
    assert upkeep.compact(lake, "events").after == 1
    assert forget(lake, Erasure(Pattern(Match.EXACT, "large"), None))["events"] == 100
    table = tables.open_table(lake, "events")
    assert offsets(table) == [n for n in range(1, 501) if n % 5]
    assert table.position(INGEST) == 501
    assert [each for each in verify(lake, is_thorough=True) if not each.is_sound] == []


async def test_a_replay_sends_large_events_a_few_at_a_time(lake, monkeypatch):
    """A batch ends by the length of its payloads too."""
    monkeypatch.setattr(replay, "_BATCH_CHARS", 100_000)
    work = Replay(lake, Plan(ALL, 0, "/replay", "http://127.0.0.1:9"))
    found = [batch async for batch in work._batches(replay._Pace(0))]
    assert [row["offset"] for batch in found for row in batch] == [*range(1, 501)]
    assert max(sum(len(row["payload"]) for row in batch) for batch in found) < 100_000 + 30_100
