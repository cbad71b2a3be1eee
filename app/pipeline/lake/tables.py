"""The tables of the lake: their columns, where they are, and how one is opened.

A table belongs to one log: its properties say which (`halley.log_id`), so that offsets of two logs never meet in one.
Whoever opens one gets it, or a sentence that says why not.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable, Field, Schema
from deltalake.exceptions import DeltaError
from pyarrow import fs

from app.history.stored import COLUMNS
from app.pipeline.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyarrow.dataset import Dataset

INGEST = "ingest"
"""The application whose version, in the table events, is the next offset to be read from the log."""

FORMAT = "1"
"""Of the tables; one of another format is refused."""

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
"""How a partition's folder is called whose value is null."""

SKIPPED = ("stats/", "alerts/", "halley/", "replay/")
"""Below these topics is what the server and the pipeline say themselves: rolling that up would never end."""

LOG_ID, FORMAT_KEY = "halley.log_id", "halley.format"

_LONGS = frozenset({"offset", "time_us", "publication", "nt4_time_us", "crc"})
STORED = pa.schema([(name, pa.int64() if name in _LONGS else pa.string()) for name in COLUMNS])
"""The columns of a stored event."""

_TYPES: Mapping[str, pa.DataType] = {
    "double": pa.float64(),
    "long": pa.int64(),
    "string": pa.string(),
    "boolean": pa.bool_(),  # these four are what a lifted column can be
    "date": pa.date32(),
}


def _columns(**types: str | pa.DataType) -> pa.Schema:
    return pa.schema([(name, _TYPES[each] if isinstance(each, str) else each) for name, each in types.items()])


_NUMBERS = pa.struct(
    _columns(count="long", min="double", mean="double", max="double", p50="double", p95="double", p99="double")
)


class Shape(NamedTuple):
    """What is in a table.

    columns       of all its rows; events have lifted columns besides
    partition_by  those whose values stand in the names of folders instead of in files
    sorted_by     the order within a file, so that statistics tell most files apart
    statistics    the texts whose least and greatest value are told for each file; those of numbers always are
    ordered_by    the column that puts files in order
    """

    columns: pa.Schema
    partition_by: tuple[str, ...]
    sorted_by: tuple[str, ...]
    statistics: tuple[str, ...]
    ordered_by: str


TABLES: Mapping[str, Shape] = {
    # Every stored event that the lake can hold. `day` is that of time_us in UTC.
    "events": Shape(
        STORED.append(pa.field("day", pa.date32())),
        ("day", "protocol"),
        ("topic", "offset"),
        ("topic", "shape"),  # who published would stay in the table's log when it is erased
        "offset",
    ),
    # Offsets `first` to `last` that the log has and the lake does not, and why. `row` is the row as JSON, where it is
    # known and sound.
    "rejected": Shape(
        _columns(
            first="long",
            last="long",
            reason="string",
            time_us="long",
            publication="long",
            protocol="string",
            row="string",
        ),
        (),
        ("first",),
        ("reason", "protocol"),
        "first",
    ),
    # Offsets that the log has lost: `reason` is "hole" where it has recorded that itself, else "missing".
    "gaps": Shape(
        _columns(first="long", last="long", reason="string", found_us="long"), (), ("first",), ("reason",), "first"
    ),
    # One row for each window ("10s" or "1m"), channel and protocol; `numbers` by the name of the lifted column.
    "rollups": Shape(
        _columns(
            window="string",
            start_us="long",
            end_us="long",
            topic="string",
            protocol="string",
            events="long",
            bytes="long",
            publishers="long",
            numbers=pa.map_(pa.string(), _NUMBERS),
            day="date",
        ),
        ("day",),
        ("topic", "window", "start_us"),
        ("window", "topic", "protocol"),
        "start_us",
    ),
    # One row for each session that has ended; the key is `session` and `opened_us`.
    "sessions": Shape(
        _columns(
            session="string",
            protocol="string",
            authid="string",
            role="string",
            address="string",
            opened_us="long",
            closed_us="long",
            length_s="double",
            reason="string",
            reconnects="long",
            first_offset="long",
            last_offset="long",
        ),
        (),
        ("opened_us",),
        ("protocol", "reason"),
        "opened_us",
    ),
    # `kind` is "spike", "silence" or "recovered"; rates are events a second.
    "alerts": Shape(
        _columns(
            at_us="long",
            topic="string",
            protocol="string",
            kind="string",
            rate="double",
            usual="double",
            offset="long",
        ),
        (),
        ("at_us",),
        ("topic", "protocol", "kind"),
        "at_us",
    ),
}


def path(lake: Path, name: str) -> Path:
    """A table's folder."""
    assert name in TABLES, name
    return Path(lake).absolute() / name


def lifted_columns(types: Mapping[str, str]) -> pa.Schema:
    """The columns that settings want beside those of a stored event: their names and types (`source/columns.py`).

    Raises `Refused` where one is called like one that is there already.
    """
    for name in types:
        if name in TABLES["events"].columns.names:
            raise Refused(f"[[lift]] column {name}: the table events has a column of that name; choose another")
    return _columns(**types)


def open_table(lake: Path, name: str, log_id: str | None = None) -> DeltaTable | None:
    """A table as it is now; None where there is none yet. Raises `Refused`: it is not what it should be.

    `log_id`: the log that it must have been made from, where that matters.
    """
    folder = path(lake, name)
    if not _is_there(folder):
        return None
    try:
        table = DeltaTable(str(folder))
        properties = table.metadata().configuration
    except (DeltaError, OSError, ValueError) as error:
        raise Refused(f"{folder} cannot be read as a Delta table: {first_line(error)}") from error
    if LOG_ID not in properties:
        raise Refused(f"{folder} is a Delta table, but Halley has not made it: choose another --lake")
    if properties.get(FORMAT_KEY) != FORMAT:
        raise Refused(f"{folder} was made by another version of Halley: choose another --lake, or that version")
    if log_id not in (None, properties[LOG_ID]):
        raise Refused(
            f"{folder} was made from log {properties[LOG_ID]}, and this is log {log_id}: "
            "choose another --lake, or move this one away"
        )
    _compare(table, name, folder)
    return table


def look(lake: Path, log_id: str | None = None, lifted: Iterable[pa.Field] = ()) -> dict[str, DeltaTable]:
    """All tables that there are, by name. Raises `Refused` as `open_table` and `create`, and changes nothing."""
    tables = {name: table for name in TABLES if (table := open_table(lake, name, log_id)) is not None}
    if "events" in tables:
        _new(tables["events"], lifted)
    return tables


def create(lake: Path, name: str, log_id: str, lifted: pa.Schema | None = None) -> DeltaTable:
    """A table, made where there is none; lifted columns that it does not have yet are added (L12).

    Raises `Refused`, also where a column has come to be of another type.
    """
    table = open_table(lake, name, log_id)
    if table is None:
        return _make(lake, name, log_id, list(lifted or []))
    new = _new(table, lifted or [])
    if new:
        table.alter.add_columns([Field.from_arrow(field) for field in new])
        table = DeltaTable(table.table_uri)
    return table


def schema(table: DeltaTable) -> pa.Schema:
    """A table's columns, the partition's too."""
    return pa.schema(table.schema().to_arrow())


def refresh(table: DeltaTable) -> None:
    """See a table as it is now. Raises `Refused`."""
    try:
        table.update_incremental()
    except (DeltaError, OSError) as error:
        raise unreadable(table, error) from error


def unreadable(table: DeltaTable, error: BaseException) -> Refused:
    """A table that could be opened, and has gone or was changed since."""
    return Refused(f"{folder_of(table)} cannot be read any more: {first_line(error)}")


def log_of(table: DeltaTable) -> str:
    """The id of the log that a table was made from."""
    return str(table.metadata().configuration[LOG_ID])


def shape_of(table: DeltaTable) -> Shape:
    """What is in it."""
    return TABLES[folder_of(table).name]


class File(NamedTuple):
    """A file of a table, as the table's log tells of it.

    path         below the table's folder
    partition    the values of the partition's columns, as texts
    least, greatest, nulls   by column, where they are known; long texts are cut, the greatest so that it stays greater
    """

    path: str
    partition: Mapping[str, str | None]
    rows: int
    nbytes: int
    least: Mapping[str, Any]
    greatest: Mapping[str, Any]
    nulls: Mapping[str, int]


def files_of(table: DeltaTable) -> list[File]:
    """The files that make up a table as it was opened."""
    found = []
    for row in pa.table(table.get_add_actions(flatten=False)).to_pylist():
        partition = {
            name: None if value is None else str(value) for name, value in (row.get("partition") or {}).items()
        }
        least, greatest, nulls = (
            {name: value for name, value in (row.get(key) or {}).items() if value is not None}
            for key in ("min", "max", "null_count")
        )
        found.append(
            File(unquote(row["path"]), partition, row["num_records"], row["size_bytes"], least, greatest, nulls)
        )
    return found


def dataset(table: DeltaTable) -> Dataset:
    """A table's rows, for pyarrow.

    Files are opened by Arrow itself. Through delta-rs' own file system, which is Python to Arrow, read-ahead threads
    want the interpreter while it is going, and a process that has not read to the end crashes or hangs at its very end
    (T20). Here too a scan that is not wanted to its end is to be closed: with `contextlib.closing(....to_batches())`.
    """
    return table.to_pyarrow_dataset(filesystem=fs.SubTreeFileSystem(str(folder_of(table)), fs.LocalFileSystem()))


def folder_of(table: DeltaTable) -> Path:
    """Where a table is."""
    return Path(unquote(table.table_uri.removeprefix("file://")))


def refusal(place: Path, error: BaseException) -> Refused:
    """What an error of the disk, or of delta-rs, comes to."""
    text = first_line(error)
    if (isinstance(error, OSError) and error.errno == errno.ENOSPC) or "No space left" in str(error):
        return Refused(f"the disk of {place} is full: make room, and run the same command again")
    return Refused(f"{place} cannot be written: {text}")


def first_line(error: BaseException) -> str:
    """What an error says, as far as it fits into a sentence."""
    return str(error).strip().partition("\n")[0][:300]


def _is_there(folder: Path) -> bool:
    """Whether there is a table. Raises `Refused` where there is something else."""
    try:
        content = {each.name for each in folder.iterdir()}
        log = folder / "_delta_log"
        if log.is_dir() and any(each.suffix in (".json", ".parquet") for each in log.iterdir()):
            return True
    except FileNotFoundError:
        return False
    except OSError as error:
        raise Refused(f"{folder} cannot be used as a table: {error.strerror}") from error
    if content - {"_delta_log"}:
        raise Refused(f"{folder} has files but no Delta log: it is not a table, or half of one; move it away")
    return False


def _new(table: DeltaTable, lifted: Iterable[pa.Field]) -> list[pa.Field]:
    """Those lifted columns that a table does not have yet. Raises `Refused` where it has one of another type."""
    found = {field.name: field.type for field in schema(table)}
    new = []
    for field in lifted:
        if field.name not in found:
            new.append(field)
        elif found[field.name] != field.type:
            raise Refused(
                f"column {field.name} of {folder_of(table)} is {found[field.name]}, and settings now say {field.type}: "
                "give the [[lift]] a column of another name"
            )
    return new


def _make(lake: Path, name: str, log_id: str, lifted: list[pa.Field]) -> DeltaTable:
    shape = TABLES[name]
    columns = pa.schema([*shape.columns, *lifted])
    try:
        path(lake, name).mkdir(parents=True, exist_ok=True)
        return DeltaTable.create(
            str(path(lake, name)),
            Schema.from_arrow(columns),
            mode="error",
            partition_by=list(shape.partition_by),
            configuration={
                LOG_ID: log_id,
                FORMAT_KEY: FORMAT,
                "delta.checkpointInterval": "50",  # so many entries are read at most to open it
                "delta.logRetentionDuration": "interval 1 days",  # there may be one each second
            },
            raise_if_key_not_exists=False,  # Halley's own two
        )
    except (DeltaError, OSError) as error:
        raise refusal(path(lake, name), error) from error


def _compare(table: DeltaTable, name: str, folder: Path) -> None:
    found = {field.name: field.type for field in schema(table)}
    for field in TABLES[name].columns:
        if field.name not in found:
            raise Refused(f"{folder} has no column {field.name}, so it was changed by somebody: choose another --lake")
        if str(found[field.name]) != str(field.type):  # a map's inner names differ
            raise Refused(
                f"column {field.name} of {folder} is {found[field.name]} and not {field.type}, so it was changed by "
                "somebody: choose another --lake"
            )
