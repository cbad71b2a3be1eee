"""The output of a query's rows: a table for people, CSV or JSON lines for programs, or a Parquet file.

Rows are written one by one, so a result may be larger than memory. Spark converts the values to strings: times are in
UTC, regardless of this machine's time zone.
"""

from __future__ import annotations

import csv
import io
import itertools
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, NumericType

Texts = Iterator[Sequence[str | None]]

SAMPLED_ROWS = 500
"""The number of first rows by which the widths of a table's columns are chosen."""

_LEAST_CHARS = 4
_MOST_CHARS = 60
_GAP = "  "
_MOMENT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"


def texts(rows: DataFrame) -> Texts:
    """Yield each row as strings, nested values as JSON; null is None."""
    frame = rows.toDF(*(f"c{number}" for number in range(len(rows.columns))))
    columns = [_text(frame[field.name], field.dataType).alias(field.name) for field in frame.schema.fields]
    return iter(frame.select(columns).toLocalIterator())


def as_csv(rows: DataFrame) -> Iterator[str]:
    """Yield lines of CSV (RFC 4180), the first with the column names; null is empty."""
    for row in itertools.chain([rows.columns], texts(rows)):
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(row)
        yield line.getvalue()


def as_json(rows: DataFrame) -> Iterator[str]:
    """Yield lines with a JSON object each. If two columns have the same name, the second gets the suffix `_2`."""
    options = {"ignoreNullFields": "false", "timestampFormat": _MOMENT, "timestampNTZFormat": _MOMENT[:-3]}
    frame = rows.toDF(*_unique(rows.columns))
    columns = [_json(f.col(f"`{name}`"), frame.schema[name].dataType).alias(name) for name in frame.columns]
    for (line,) in frame.select(f.to_json(f.struct(*columns), options)).toLocalIterator():
        yield f"{line}\n"


def as_table(rows: DataFrame, width: int | None) -> Iterator[str]:
    """Yield the lines of a table as wide as its first rows need, numbers right-aligned.

    `width` is the maximum number of characters in a line, to which values are cut; None: no maximum. Unprintable
    characters are escaped, so that values cannot control the terminal.
    """
    are_numbers = [isinstance(field.dataType, NumericType) for field in rows.schema.fields]
    body = ([_tame(text) for text in row] for row in texts(rows))
    known = list(itertools.islice(body, SAMPLED_ROWS))
    heading = [_tame(name) for name in rows.columns]
    widths = _widths([heading, *known], width)
    yield _line(heading, widths, are_numbers)
    yield _line(["-" * chars for chars in widths], widths, are_numbers)
    for row in itertools.chain(known, body):
        yield _line(row, widths, are_numbers)


def write_parquet(rows: DataFrame, file: Path) -> None:
    """Write one Parquet file, which must not exist. On a cluster all nodes must share its folder."""
    folder = Path(tempfile.mkdtemp(prefix=f".{file.name}-", dir=file.parent))
    try:
        frame = rows.toDF(*_unique(rows.columns))
        frame.coalesce(1).write.mode("append").parquet(folder.as_uri())
        (part,) = folder.glob("part-*.parquet")
        part.rename(file)
    finally:
        shutil.rmtree(folder)


def _text(column: Column, kind: DataType) -> Column:
    match kind.typeName():
        case "timestamp":
            return f.date_format(column, _MOMENT)
        case "binary":
            return f.base64(column)
        case "struct" | "array" | "map" | "variant":
            return f.to_json(column, {"ignoreNullFields": "false", "timestampFormat": _MOMENT})
        case _:
            return column.cast("string")


def _json(column: Column, kind: DataType) -> Column:
    """Convert intervals to strings, since JSON has no type for them."""
    return column.cast("string") if "interval" in kind.typeName() else column


def _unique(names: Iterable[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        numbered = (f"{name}_{number}" for number in itertools.count(2))
        lower = {each.lower() for each in found}
        found.append(next(each for each in itertools.chain([name], numbered) if each.lower() not in lower))
    return found


def _tame(text: str | None) -> str:
    if text is None:
        return "null"
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _widths(rows: Sequence[Sequence[str]], width: int | None) -> list[int]:
    """The width of each column: that of its longest value, within bounds; if lines are too long, the widest shrink."""
    widths = [min(max(map(len, column)), _MOST_CHARS if width is not None else 1_000) for column in zip(*rows)]  # noqa: B905 - of one length
    if width is None:
        return widths
    while sum(widths) + len(_GAP) * (len(widths) - 1) > width and max(widths, default=0) > _LEAST_CHARS:
        widths[widths.index(max(widths))] -= 1
    return widths


def _line(row: Iterable[Any], widths: Sequence[int], are_numbers: Sequence[bool]) -> str:
    cells = []
    for text, chars, is_number in zip(row, widths, are_numbers, strict=True):
        cut = text if len(text) <= chars else text[: chars - 1] + "…"
        cells.append(cut.rjust(chars) if is_number else cut.ljust(chars))
    return _GAP.join(cells).rstrip() + "\n"
