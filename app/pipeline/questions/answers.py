"""Rows as text: a table for people, CSV or JSON lines for programs; or as a Parquet file.

Rows come and go in turn, so an answer may be larger than the memory. Spark makes texts of the values itself: times are
in UTC, whatever zone this machine is in.
"""

from __future__ import annotations

import csv
import io
import itertools
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

    Texts = Iterator[Sequence[str | None]]

LOOKED_AT = 500
"""Rows that say how wide a table's columns are."""

_LEAST_CHARS = 4
_MOST_CHARS = 60
_GAP = "  "
_MOMENT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"


def texts(rows: DataFrame) -> Texts:
    """Each row as texts, nested values as JSON; None stands for null."""
    frame = rows.toDF(*(f"c{number}" for number in range(len(rows.columns))))
    columns = [_text(frame[field.name], field.dataType).alias(field.name) for field in frame.schema.fields]
    return iter(frame.select(columns).toLocalIterator())


def as_csv(rows: DataFrame) -> Iterator[str]:
    """Lines of CSV (RFC 4180) with a heading; null is empty."""
    for row in itertools.chain([rows.columns], texts(rows)):
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(row)
        yield line.getvalue()


def as_json(rows: DataFrame) -> Iterator[str]:
    """An object a line. Of two columns with one name the second is called so and `_2`."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - of the extra [pipeline]

    options = {"ignoreNullFields": "false", "timestampFormat": _MOMENT, "timestampNTZFormat": _MOMENT[:-3]}
    frame = rows.toDF(*_unique(rows.columns))
    columns = [_json(f.col(f"`{name}`"), frame.schema[name].dataType).alias(name) for name in frame.columns]
    for (line,) in frame.select(f.to_json(f.struct(*columns), options)).toLocalIterator():
        yield f"{line}\n"


def as_table(rows: DataFrame, width: int | None) -> Iterator[str]:
    """A table as wide as its first rows need, numbers to the right; cut to that many characters a line.

    What is in it cannot steer a terminal.
    """
    are_numbers = [field.dataType.typeName() in _NUMBERS for field in rows.schema.fields]
    body = ([_tame(text) for text in row] for row in texts(rows))
    known = list(itertools.islice(body, LOOKED_AT))
    heading = [_tame(name) for name in rows.columns]
    widths = _widths([heading, *known], width)
    yield _line(heading, widths, are_numbers)
    yield _line(["-" * chars for chars in widths], widths, are_numbers)
    for row in itertools.chain(known, body):
        yield _line(row, widths, are_numbers)


def write_parquet(rows: DataFrame, file: Path) -> None:
    """One file, which is not there yet. On a cluster all nodes must share the folder that it is in."""
    folder = Path(tempfile.mkdtemp(prefix=f".{file.name}-", dir=file.parent))
    try:
        frame = rows.toDF(*_unique(rows.columns))
        frame.coalesce(1).write.mode("append").parquet(folder.as_uri())
        (part,) = folder.glob("part-*.parquet")
        part.rename(file)
    finally:
        shutil.rmtree(folder)


_NUMBERS = frozenset(
    {"tinyint", "smallint", "int", "integer", "bigint", "long", "short", "byte", "float", "double"}
) | {"decimal"}


def _text(column: Column, kind: DataType) -> Column:
    from pyspark.sql import functions as f  # noqa: PLC0415 - of the extra [pipeline]

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
    """Intervals are nothing that JSON knows."""
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
    return text if text.isprintable() else "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode()


def _widths(rows: Sequence[Sequence[str]], width: int | None) -> list[int]:
    """How wide each column is: as its widest text, the widest ones narrower where all together are too wide."""
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
