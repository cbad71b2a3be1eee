"""The tables of the lake: their folders and files, and how a table is opened and made.

A table's property `halley.log_id` names the log that it was made from; `sources.py` says how rows of other logs differ
from those of this one. A table that cannot be opened is refused with a sentence that says why.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, QueryBuilder, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from pyarrow import fs
from pyarrow.dataset import Dataset, FileSystemDataset

from halley.pipeline.errors import JobFailed, JobRejected
from halley.pipeline.lake.place import LakePath, ObjectPath, at_once, files_in, reason, size_of
from halley.pipeline.lake.shapes import BEFORE, TABLES, TableSchema, bounded_columns
from halley.pipeline.lake.sources import LogSource, Sources, check_labels, sources_from, with_log_added

INGEST = "ingest"
"""The application whose version, in the table `events`, is the next offset to be read from the log."""

FORMAT = "1"
"""The format of the tables; a table of another format is refused."""

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
"""The name of a partition's folder whose value is null."""

UNBOUNDED = "\U0010ffff"
"""In the statistics of texts the greatest value where that is not known."""

OnProgress = Callable[[int, int], None]
"""Called with how much of a work is done, and how much there is in total."""

STATISTICS = "delta.dataSkippingStatsColumns"
"""Delta's property that names the columns with statistics, for every writer; readers do not look for others."""

LOG_ID, FORMAT_KEY, SOURCES = "halley.log_id", "halley.format", "halley.sources"

_TRIES = 20


def path(lake: LakePath, name: str) -> LakePath:
    """Return a table's folder, as an absolute path."""
    assert name in TABLES, name
    return lake.absolute() / name


class File(NamedTuple):
    """A file of a table, as the table's log describes it.

    path             the path below the table's folder
    partition        the values of the partition's columns, as texts
    rows, nbytes     the number of rows, and the size in bytes
    least, greatest  bounds by column, where they are known; long texts are cut so that the bounds stay correct
    """

    path: str
    partition: Mapping[str, str | None]
    rows: int
    nbytes: int
    least: Mapping[str, Any]
    greatest: Mapping[str, Any]


class LakeTable(DeltaTable):
    """A Delta table of the lake, in the version that it had when it was opened or last refreshed."""

    @property
    def folder(self) -> LakePath:
        """The table's folder; its last part is the table's name."""
        uri = self.table_uri.removeprefix("file://")
        return ObjectPath(uri.rstrip("/")) if "://" in uri else Path(unquote(uri))

    @property
    def files(self) -> fs.FileSystem:
        """The files of the table, for Arrow, by their paths below the table's folder."""
        return files_in(self.folder)

    @property
    def shape(self) -> TableSchema:
        """The table's columns and layout."""
        return TABLES[self.folder.name]

    @property
    def log_id(self) -> str:
        """The id of the log that the table was made from."""
        return str(self.metadata().configuration[LOG_ID])

    @property
    def sources(self) -> Sources:
        """The lake's logs, which only the table `events` knows."""
        return sources_from(self.metadata().configuration.get(SOURCES), self.log_id)

    def app(self, job: str, log_id: str) -> str:
        """Return the application whose version is a job's position in a log."""
        return job if log_id == self.log_id else f"{job}/{log_id}"

    def labels(self, origin: LogSource) -> dict[str, str | None]:
        """Return the values of `LABELS` in rows of a log; empty: its rows have none."""
        if not origin.source and origin.log_id == self.log_id:
            return {}
        return {"source": origin.source or None, "log_id": origin.log_id}

    @property
    def has_labels(self) -> bool:
        """Whether the table has `LABELS`; of `events` a lifted column may have one of their names."""
        is_events = self.folder.name == "events"
        return SOURCES in self.metadata().configuration if is_events else "log_id" in self.columns().names

    def files_of(self, log_id: str, files: list[File] | None = None) -> list[File]:
        """Return the files with rows of a log, of all of the table's or of some."""
        files = self.data_files() if files is None else files
        if not self.has_labels:
            return files if log_id == self.log_id else []
        return [file for file in files if file.least.get("log_id", self.log_id) == log_id]

    def columns(self) -> pa.Schema:
        """Return the columns, including those of the partitions and lifted ones."""
        return pa.schema(self.schema().to_arrow())

    def keep_statistics(self) -> None:
        """Set the property `STATISTICS`, unless it names the present columns. Raises `JobRejected`.

        Tables of earlier versions of Halley lack it, and after a column was added it lacks that.
        """

        def prepare() -> LakeTable:
            wanted = ",".join(bounded_columns(self.shape, self.columns()))
            if self.metadata().configuration.get(STATISTICS) == wanted:
                return self
            try:
                with _changing(self):
                    self.alter.set_table_properties({STATISTICS: wanted})
            except (CommitFailedError, JobRejected):
                self.refresh()
                if self.metadata().configuration.get(STATISTICS) != wanted:  # no other process has done it
                    raise
            self.refresh()
            return self

        _until_done(prepare, self.folder)

    def refresh(self) -> None:
        """Bring the table up to date. Raises `JobRejected`."""
        try:
            self.update_incremental()
        except (DeltaError, OSError) as error:
            raise self.unreadable(error) from error

    def position(self, app: str) -> int | None:
        """Return a job's position: the app version; None if it has not begun. Raises `JobRejected`."""
        try:
            version: int | None = self.transaction_version(app)
        except (DeltaError, OSError) as error:  # the version is read from the table's log each time
            raise self.unreadable(error) from error
        return version

    def unreadable(self, error: BaseException) -> JobRejected:
        """Return the error for a table that was opened, and was deleted or changed since."""
        return JobRejected(f"{self.folder} can no longer be read: {first_line(error)}")

    def data_files(self) -> list[File]:
        """Return the files that make up the table."""
        found = []
        for row in pa.table(self.get_add_actions(flatten=False)).to_pylist():
            partition = {
                name: None if value is None else str(value) for name, value in (row.get("partition") or {}).items()
            }
            least, greatest = (
                {name: value for name, value in (row.get(key) or {}).items() if value is not None}
                for key in ("min", "max")
            )
            found.append(File(unquote(row["path"]), partition, row["num_records"], row["size_bytes"], least, greatest))
        return found

    def dataset(self, files: Iterable[File] | None = None) -> Dataset:
        """Return the rows, or those of some files, as a dataset of pyarrow.

        Files are opened by Arrow itself. With delta-rs's own file system, which is Python code to Arrow, read-ahead
        threads need the interpreter while it shuts down, and a process that has not read to the end crashes or hangs at
        its exit (T20). Here too, close a scan that is not read to its end: `contextlib.closing(....to_batches())`.
        """
        whole = self.to_pyarrow_dataset(filesystem=self.files)
        if files is None:
            return whole
        paths = {each.path for each in files}
        fragments = [each for each in whole.get_fragments() if each.path in paths]
        return FileSystemDataset(fragments, whole.schema, whole.format, whole.filesystem)


def open_table(lake: LakePath, name: str, log_id: str | None = None) -> LakeTable | None:
    """Open the current version of a table; return None if it does not exist yet.

    `log_id`: the log that the table must have been made from; None: any. Raises `JobRejected` if the table cannot be
    read, was not made by this version of Halley, was changed by another program, or is of another log.
    """
    folder = path(lake, name)
    if unquote(str(folder)) != str(folder):  # delta-rs decodes its own URL of a table twice
        raise JobRejected(f"the path {folder} has a percent escape, which delta-rs misreads: choose another --lake")
    if isinstance(folder, Path) and not _is_there(folder):
        return None
    try:
        table = LakeTable(str(folder))
        properties = table.metadata().configuration
    except (DeltaError, OSError, ValueError) as error:
        if isinstance(error, TableNotFoundError) and isinstance(folder, ObjectPath):
            return None
        raise JobRejected(f"{folder} cannot be read as a Delta table: {first_line(error)}") from error
    if LOG_ID not in properties:
        raise JobRejected(f"{folder} is a Delta table that was not made by Halley: choose another --lake")
    if properties.get(FORMAT_KEY) != FORMAT:
        raise JobRejected(f"{folder} was made by another version of Halley: choose another --lake, or that version")
    if log_id not in (None, properties[LOG_ID]):
        raise JobRejected(
            f"{folder} was made from log {properties[LOG_ID]}, and the lake from log {log_id}: move that table away"
        )
    _compare(table, name, folder)
    return table


def open_all(lake: LakePath, log_id: str | None = None, lifted: Iterable[pa.Field] = ()) -> dict[str, LakeTable]:
    """Open all existing tables by name; change nothing. Raises `JobRejected`, as `open_table` and `create`."""
    tables = {name: table for name in TABLES if (table := open_table(lake, name, log_id)) is not None}
    if "events" in tables:
        _new(tables["events"], lifted)
    return tables


def sources_of(lake: LakePath) -> Sources | None:
    """Return the logs of a lake; None if there is no lake. Raises `JobRejected`."""
    table = next(filter(None, (open_table(lake, name) for name in TABLES)), None)  # `events` is the first
    return None if table is None else table.sources


def check(lake: LakePath, origin: LogSource, lifted: pa.Schema, *, accepts_new_log: bool = False) -> None:
    """Raise `JobRejected` if a job that reads a log would be refused by the lake; change nothing."""
    after = with_log_added(sources_of(lake), origin, lake, accepts_new_log=accepts_new_log)
    events = open_all(lake, after.first, lifted).get("events")
    check_labels(after, lifted, None if events is None or events.has_labels else events.columns())


def create(
    lake: LakePath,
    name: str,
    log_id: str,
    lifted: pa.Schema | None = None,
    *,
    source: str = "",
    accepts_new_log: bool = False,
) -> LakeTable:
    """Open a table for a job that reads a log; it is made if it does not exist, and the log is added to the lake's.

    Missing lifted columns are added (L12), as are new fields, and `LABELS` where logs have names.

    lifted           the lifted columns of the job
    source           the name of the log's source; empty: it has none
    accepts_new_log  the log may replace the present one of its source

    Raises `JobRejected`, also if a lifted column exists with another type, or if the lake may not take the log.
    """
    columns = lifted or pa.schema([])

    def prepare() -> LakeTable:
        sources = _added(lake, LogSource(source, log_id), columns, accepts_new_log=accepts_new_log)
        return _prepared(lake, name, sources, columns)

    return _until_done(prepare, path(lake, name))


def create_next_to(events: LakeTable, name: str) -> LakeTable:
    """Open a table of the same lake, which is made if it does not exist. Raises `JobRejected`."""
    lake = events.folder.parent
    return _until_done(lambda: _prepared(lake, name, events.sources, pa.schema([])), path(lake, name))


def _until_done(prepare: Callable[[], LakeTable], folder: LakePath) -> LakeTable:
    """Prepare a table, again if another process has changed its columns or properties meanwhile."""
    for _ in range(_TRIES):
        with suppress(CommitFailedError):
            return prepare()
    raise JobRejected(f"{folder} is too busy with other commits; try again")


def _added(lake: LakePath, origin: LogSource, lifted: pa.Schema, *, accepts_new_log: bool) -> Sources:
    """Add a log to those of a lake, and return all; raise `CommitFailedError` if another process was faster."""
    events = open_table(lake, "events")
    before = sources_of(lake) if events is None else events.sources
    after = with_log_added(before, origin, lake, accepts_new_log=accepts_new_log)
    check_labels(after, lifted, None if events is None or events.has_labels else events.columns())
    if events is None and not after.is_plain:
        events = _make(lake, "events", after)
        if events.sources != after:
            raise CommitFailedError
    elif events is not None and after != before:
        with _changing(events):
            events.alter.set_table_properties({SOURCES: after.as_text()}, raise_if_not_exists=False)
    return after


def _prepared(lake: LakePath, name: str, sources: Sources, lifted: pa.Schema) -> LakeTable:
    """Open or make a table with all columns that it needs; raise `CommitFailedError` if another process was faster."""
    table = open_table(lake, name, sources.first)
    if table is None:
        table = _make(lake, name, sources, lifted)
        if table.log_id != sources.first:
            raise CommitFailedError
    wanted = [*lifted, *sources.labels]
    new = [*_widened(table), *_new(table, wanted)]
    if new:
        with _changing(table):
            table.alter.add_columns([Field.from_arrow(field) for field in new])
        table = LakeTable(table.table_uri)
    return table


@contextmanager
def _changing(table: LakeTable) -> Iterator[None]:
    """Raise `JobRejected` if the block cannot change a table, `CommitFailedError` if another process did so."""
    try:
        yield
    except CommitFailedError:
        raise
    except (DeltaError, OSError) as error:
        raise refusal(table.folder, error) from error


def select(query: str, **named: DeltaTable) -> pa.Table:
    """Return the rows of a query of delta-rs's own SQL over tables, by the names given; they must fit into memory.

    Raises `pa.ArrowException`, `DeltaError`, `OSError`.
    """
    builder = QueryBuilder()
    for name, table in named.items():
        builder.register(name, table)
    rows = pa.table(builder.execute(query))
    plain = [field.with_type(pa.string()) if field.type == pa.string_view() else field for field in rows.schema]
    return rows.cast(pa.schema(plain))  # Arrow cannot do much with views of texts


def refusal(place: LakePath, error: BaseException) -> JobRejected:
    """Convert an error of the disk, or of delta-rs, on writing to `place`."""
    text = first_line(error)
    if (isinstance(error, OSError) and error.errno == errno.ENOSPC) or "No space left" in str(error):
        return JobRejected(f"the disk of {place} is full: make room, and run the same command again")
    return JobRejected(f"{place} cannot be written: {text}")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, at most 300 characters; what a store says is put into words."""
    return reason(error) or str(error).strip().partition("\n")[0][:300]


def _is_there(folder: Path) -> bool:
    """Whether a folder holds a table. Raises `JobRejected` if it holds something else."""
    try:
        content = {each.name for each in folder.iterdir()}
        log = folder / "_delta_log"
        if log.is_dir() and any(each.suffix in (".json", ".parquet") for each in log.iterdir()):
            return True
    except FileNotFoundError:
        return False
    except OSError as error:
        raise JobRejected(f"{folder} cannot be used as a table: {error.strerror}") from error
    if content - {"_delta_log"}:
        raise JobRejected(f"{folder} has files but no Delta log: it is not a table, or an incomplete one; move it away")
    return False


def _new(table: LakeTable, lifted: Iterable[pa.Field]) -> list[pa.Field]:
    """Return the lifted columns that a table lacks. Raises `JobRejected` if it has one with another type."""
    found = {field.name: field.type for field in table.columns()}
    new = []
    for field in lifted:
        if field.name not in found:
            new.append(field)
        elif found[field.name] != field.type:
            raise JobRejected(
                f"column {field.name} of {table.folder} is {found[field.name]}, but the settings say {field.type}: "
                "give the [[lift]] a column of another name"
            )
    return new


def _widened(table: LakeTable) -> list[pa.Field]:
    """Return the columns of a table of an earlier version whose type has more fields now."""
    found = {field.name: str(field.type) for field in table.columns()}
    old = {name: kind for (of, name), kind in BEFORE.items() if of == table.folder.name}
    return [each for each in table.shape.columns if str(each.type) != found[each.name] == old.get(each.name)]


def _make(lake: LakePath, name: str, sources: Sources, lifted: Iterable[pa.Field] = ()) -> LakeTable:
    """Make a table, or open that of another process that was faster. Raises `JobRejected`."""
    shape = TABLES[name]
    folder = path(lake, name)
    columns = pa.schema([*shape.columns, *lifted, *sources.labels])
    try:
        if isinstance(folder, Path):
            folder.mkdir(parents=True, exist_ok=True)
        LakeTable.create(
            str(folder),
            Schema.from_arrow(columns),
            mode="error",
            partition_by=list(shape.partition_by),
            configuration={
                LOG_ID: sources.first,
                FORMAT_KEY: FORMAT,
                STATISTICS: ",".join(bounded_columns(shape, columns)),
                **({} if name != "events" or sources.is_plain else {SOURCES: sources.as_text()}),
                "delta.checkpointInterval": "50",  # the most log entries that are read to open the table
                "delta.logRetentionDuration": "interval 1 days",  # there may be one commit each second
            },
            raise_if_key_not_exists=False,  # Halley's own
            commit_properties=CommitProperties(max_commit_retries=0),  # else two at once make the table twice
        )
        return LakeTable(str(folder))
    except (DeltaError, OSError) as error:
        table = open_table(lake, name)
        if table is None:
            raise refusal(folder, error) from error
        return table


def _compare(table: LakeTable, name: str, folder: LakePath) -> None:
    found = {field.name: field.type for field in table.columns()}
    for field in TABLES[name].columns:
        if field.name not in found:
            raise JobRejected(
                f"{folder} has no column {field.name}: another program changed the table; choose another --lake"
            )
        # Compared as texts, since the inner names of a map differ.
        if str(found[field.name]) not in (str(field.type), BEFORE.get((name, field.name))):
            raise JobRejected(
                f"column {field.name} of {folder} is {found[field.name]} and not {field.type}: another program "
                "changed it; choose another --lake"
            )


def fault_of(root: LakePath, file: File) -> str | None:
    """Return what is wrong with a file of the table in the folder `root`, in words; None if it exists with its size."""
    try:
        nbytes = size_of(root / file.path)
    except OSError as error:
        return f"cannot be read: {error.strerror or first_line(error)}"
    return None if nbytes == file.nbytes else f"has {nbytes} bytes instead of {file.nbytes}"


def check_files(root: LakePath, files: Iterable[File]) -> None:
    """Raise `JobFailed` if one of these files is missing or has another size than was committed."""
    wanted = list(files)
    for file, text in zip(wanted, at_once(root, partial(fault_of, root), wanted), strict=True):
        if text is not None:
            raise _unsound(f"{root / file.path} {text}")


@contextmanager
def translate_read_errors(root: LakePath, files: Iterable[File] = ()) -> Iterator[None]:
    """Check files, and raise `JobFailed` if they, or those that the block reads, cannot be read."""
    check_files(root, files)
    try:
        yield
    except (OSError, pa.ArrowException, DeltaError) as error:
        raise _unsound(f"{root} cannot be read: {first_line(error)}") from error


def _unsound(text: str) -> JobFailed:
    return JobFailed(f"{text}; halley pipeline verify reports everything that is wrong with the lake")
