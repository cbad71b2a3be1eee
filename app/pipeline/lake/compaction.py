"""Compaction: the rows of many files as a few large files that are sorted by channel, in bounded memory.

It takes two passes, and memory for one file. The first pass counts the rows of each topic, and divides the topics into
ranges of about one file each. The second pass distributes the rows to one draft per range; a full draft is read back,
sorted and written. Rows come in the order of offsets, so that a channel with more rows than a file is divided by time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from app.pipeline.lake.commit import write_file
from app.pipeline.lake.tables import Shape

FILE_ROWS = 250_000
"""The approximate number of rows of a compacted file."""

_MOST_ROWS, _MOST_BYTES = FILE_ROWS * 5 // 4, 134_217_728
"""The most of a file, plus one batch: its rows, and their bytes in memory."""

SORTED = "sorted-"
"""The beginning of the names of compacted files."""

_BATCH_ROWS = 16_384
_MOST_RANGES = 200
"""The most drafts that are open at a time."""


class Compaction:
    """The compaction of one partition of a table.

    columns  the columns of its files
    drafts   the folder for drafts
    place    the folder for the files that are written
    tell     called with the number of further rows that are done
    """

    def __init__(
        self, shape: Shape, columns: pa.Schema, drafts: Path, place: Path, tell: Callable[[int], None] = lambda _: None
    ) -> None:
        self._shape = shape
        self._columns = columns
        self._drafts = drafts
        self._place = place
        self._tell = tell

    def run(
        self, files: Sequence[Path], keep: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda rows: rows
    ) -> list[Path]:
        """Write the rows of files as compacted files, without those that `keep` leaves out; return the new paths.

        The files must be in the order of their offsets. Raises `Refused`, `OSError`.
        """
        rows = ds.dataset([str(file) for file in files], schema=self._columns, format="parquet")
        bounds = self._bounds(rows)
        drafts = [_Draft(self._drafts / f"{number}.arrow", self._columns) for number in range(len(bounds) + 1)]
        written = []
        with closing(rows.to_batches(batch_size=_BATCH_ROWS, batch_readahead=2, fragment_readahead=1)) as batches:
            for batch in batches:
                for number, part in self._shared_out(keep(batch), bounds):
                    drafts[number].add(part)
                    if drafts[number].is_full:
                        written.append(self._write(drafts[number]))
                self._tell(batch.num_rows)
        return written + [self._write(draft) for draft in drafts if draft.rows]

    def _bounds(self, rows: ds.Dataset) -> list[str]:
        """Return the first topics of the second and each further range."""
        key = self._shape.sorted_by[0]
        if self._columns.field(key).type != pa.string():
            return []
        counts: Counter[str] = Counter()
        with closing(rows.to_batches(columns=[key], batch_size=_BATCH_ROWS)) as batches:
            for batch in batches:
                for count in pc.value_counts(batch[key]):
                    counts[count["values"].as_py() or ""] += count["counts"].as_py()
        ranges = min(_MOST_RANGES, -(-counts.total() // FILE_ROWS))
        wanted = -(-counts.total() // max(1, ranges)) + FILE_ROWS // 20  # of about the same size
        bounds = []
        here = 0
        for topic, count in sorted(counts.items()):
            if here and here + count > wanted:
                bounds.append(topic)
                here = 0
            here += count
        return bounds

    def _shared_out(self, batch: pa.RecordBatch, bounds: list[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the number and the rows of each range that has rows in a batch."""
        if not bounds:
            yield 0, batch
            return
        topics = batch[self._shape.sorted_by[0]].dictionary_encode()
        numbers = pa.array([bisect_right(bounds, topic) for topic in topics.dictionary.to_pylist()], pa.int32())
        numbers = numbers.take(topics.indices)
        order = pc.array_sort_indices(numbers)
        batch = batch.take(order)
        at = 0
        for run in pc.value_counts(numbers.take(order)):  # in the order of their first occurrence
            count = run["counts"].as_py()
            yield run["values"].as_py(), batch.slice(at, count)
            at += count

    def _write(self, draft: _Draft) -> Path:
        return write_file(self._place, self._shape, draft.take(), SORTED)


class _Draft:
    """Rows of one range, collected on disk until there are enough for a file."""

    def __init__(self, path: Path, columns: pa.Schema) -> None:
        self._path = path
        self._columns = columns
        self._writer: Any = None
        self.rows = self._nbytes = 0

    @property
    def is_full(self) -> bool:
        return self.rows > _MOST_ROWS or self._nbytes > _MOST_BYTES

    def add(self, part: pa.RecordBatch) -> None:
        if not part.num_rows:
            return
        if self._writer is None:
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            self._writer = pa.ipc.new_file(str(self._path), self._columns, options=options)
        self._writer.write_batch(part)
        self.rows += part.num_rows
        self._nbytes += part.nbytes

    def take(self) -> pa.Table:
        """Return all rows that were added, and empty the draft."""
        self._writer.close()
        self._writer = None
        self.rows = self._nbytes = 0
        with pa.OSFile(str(self._path)) as file:
            rows = pa.ipc.open_file(file).read_all()
        self._path.unlink()
        return rows
