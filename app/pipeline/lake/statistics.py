"""The statistics of a file in a table's log, by which queries skip files: rows, least and greatest values, nulls.

They are taken from the file's footer; no row is read. Text columns whose values the log must not repeat, such as
payloads, have the widest bounds: without any bounds, pyarrow's reader of delta-rs assumes that all values are null.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

_LONG_CHARS = 32
"""Longer texts are cut, so that the least may be too small and the greatest too great."""

_LAST_CHAR = "\U0010ffff"


def statistics(file: Path, told: Collection[str]) -> str:
    """Return Delta's statistics of a Parquet file, as JSON; text columns have bounds only if they are in `told`.

    Raises `OSError`, `pa.ArrowException`.
    """
    footer = pq.read_metadata(file)
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name, places in _places(footer).items():
        parts = [footer.row_group(group).column(place).statistics for group, place in places]
        if all(part is not None and part.has_null_count for part in parts):
            nulls[name] = sum(part.null_count for part in parts)
            if nulls[name] == footer.num_rows:
                continue  # there is nothing to bound
            parts = [part for part in parts if part.num_values]
        is_text = footer.schema.column(places[0][1]).physical_type == "BYTE_ARRAY"
        if is_text and name not in told:
            least[name], greatest[name] = "", _LAST_CHAR
        elif all(_is_bounded(part) for part in parts):
            least[name] = _cut(min(part.min for part in parts))
            greatest[name] = _cut_above(max(part.max for part in parts))
    content = {"numRecords": footer.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}
    return orjson.dumps(content).decode()


def _places(footer: Any) -> dict[str, list[tuple[int, int]]]:
    """Return the places of each column that is not nested, as pairs of row group and column index."""
    whole = {field.name for field in footer.schema.to_arrow_schema() if not pa.types.is_nested(field.type)}
    names = {footer.schema.column(place).path: place for place in range(footer.num_columns)}
    groups = range(footer.num_row_groups)
    return {name: [(group, place) for group in groups] for name, place in names.items() if name in whole and groups}


def _is_bounded(part: Any) -> bool:
    """Whether a column has bounds in a row group that can be expressed in JSON."""
    return part is not None and part.has_min_max and _is_plain(part.min) and _is_plain(part.max)


def _is_plain(value: Any) -> bool:
    return isinstance(value, (int, str)) or (isinstance(value, float) and math.isfinite(value))


def _cut(least: Any) -> Any:
    return least[:_LONG_CHARS] if isinstance(least, str) else least


def _cut_above(greatest: Any) -> Any:
    """Return an upper bound of a text: if it is long, one that is greater than all texts with the same beginning."""
    if not isinstance(greatest, str) or len(greatest) <= _LONG_CHARS:
        return greatest
    return greatest[:_LONG_CHARS] + _LAST_CHAR if greatest[_LONG_CHARS] != _LAST_CHAR else _LAST_CHAR
