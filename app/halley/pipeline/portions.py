"""Rows in portions that fit into memory however large their payloads are: bounded by bytes as well as by rows.

A payload has a few bytes or a few megabytes, so a number of rows says nothing about the memory that they need. And an
array of texts in Arrow ends at 2 GiB, since its offsets have 32 bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pyarrow import fs

PORTION_ROWS, PORTION_BYTES = 16_384, 8_388_608
"""The maximum of rows and of bytes in a portion that is read from a file; the one that is reached first counts."""


def cut(rows: pa.RecordBatch, most_rows: int, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield rows in their order, in parts within both bounds, or of one row; nothing is copied."""
    if rows.num_rows <= 1 or (rows.num_rows <= most_rows and rows.nbytes <= most_bytes):
        yield rows
        return
    half = rows.num_rows // 2
    yield from cut(rows.slice(0, half), most_rows, most_bytes)
    yield from cut(rows.slice(half), most_rows, most_bytes)


def read(
    file: Path | str,
    columns: Sequence[str] | None = None,
    most_rows: int = PORTION_ROWS,
    most_bytes: int = PORTION_BYTES,
    filesystem: fs.FileSystem | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file in their order, in portions; `columns`: only these, None: all.

    `filesystem`: where the file is, such as `LakeTable.files`; None: it is a path of this machine.

    A row group is read by itself, and its rows are taken to be of one size: it was closed by its bytes. Raises
    `OSError`, `pa.ArrowException`.
    """
    with pq.ParquetFile(file, filesystem=filesystem) as parquet:
        for number in range(parquet.num_row_groups):
            group = parquet.metadata.row_group(number)
            fitting = most_bytes * group.num_rows // max(group.total_byte_size, 1)
            at_once = max(1, min(most_rows, fitting))
            yield from parquet.iter_batches(at_once, row_groups=[number], columns=columns)
