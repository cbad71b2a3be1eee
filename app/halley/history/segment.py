"""One segment: an SQLite database of consecutive events.

While it is written it is in WAL mode, and a commit is on disk when it returns (`synchronous=FULL`). Other processes may
read it meanwhile. Its table `stored` has numbers for topics and audiences; the view `events` has the columns of
`Stored`, for `sqlite3`, Spark and other readers.

There is one index over events: (topic, audience, offset). One on the time would cost the writer 6 to 15 % more
instructions, and readers do better without (`segment_reader.py`); segments of earlier versions have one, or a table
`steps`, which nobody uses. There is no index on publications; `reader.py` says why.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing, suppress
from functools import lru_cache
from itertools import compress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from halley.history import key_digests
from halley.history import state as saved_state
from halley.history.checksummed_json import DRAFT, place_of, private, sync_folder
from halley.history.key_digests import Digests
from halley.history.state import Encoded, Name
from halley.history.stored import COLUMNS, Stored

_COMPANIONS = ("-wal", "-shm", "-journal")
"""Suffixes of the files that SQLite keeps next to a database that is open, or was when its process died."""

_SHM_BYTES = 32_768
"""The least size of the shared memory (`-shm`) of a process that has a database open (sqlite.org/walformat.html)."""

FORMAT = 1
"""The version of the tables and their columns; a log of a later one is refused. Indexes do not count."""

PAGE_BYTES = 8192
_EMPTY_BYTES = 8 * PAGE_BYTES
"""The size of a database without events."""

WAL_BYTES = 2_097_152
"""How much may be written before the next checkpoint, approximately: commits wait for it, so it must be short."""

_READ_CACHE_KIB = 512
_VERSIONS_AT, _NOT_WAL = 18, b"\1\1"  # SQLite's file format, 1.3.3
_ROW_BYTES = 100
"""The approximate size of a row without its payload."""

NO_STATE: Encoded = {}

_SCHEMA = """
    create table meta (name text primary key, value) without rowid;
    create table topics (id integer primary key, topic text not null unique);
    create table audiences (id integer primary key, audience text unique);
    create table stored (
        offset integer primary key, time_us integer not null, topic_id integer not null, publication integer not null,
        protocol text not null, shape text not null, payload text, details text, audience_id integer not null,
        authid text, role text, nt4_type text, nt4_time_us integer, idempotency_key text, crc integer not null,
        KEY_DIGEST blob
    );
    create index by_topic on stored (topic_id, audience_id, offset);
    create view events as
        select COLUMNS from stored
        left join topics on topics.id = topic_id left join audiences on audiences.id = audience_id;
""".replace("COLUMNS", ", ".join(COLUMNS)).replace("KEY_DIGEST", key_digests.COLUMN)
_SHARED = "protocol", "shape", "role"
"""Columns with few values: in one statement all rows have the same, which is bound once."""

_ALWAYS = "offset", "time_us", "topic_id", "publication", "audience_id", "crc"
_OPTIONAL = "payload", "details", "authid", "nt4_type", "nt4_time_us", "idempotency_key", key_digests.COLUMN
_MOST_AT_ONCE = 256
"""Rows in one statement at most; there is one statement for each power of two up to this."""


@lru_cache(maxsize=512)
def _insertion(given: tuple[bool, ...], count: int) -> str:
    """The statement that inserts `count` rows, of whose optional columns those marked in `given` have values.

    Its values are those of each row, and then those that all share.
    """
    own = [*_ALWAYS, *compress(_OPTIONAL, given)]
    into = f"insert into stored ({', '.join([*own, *_SHARED])})"
    if count == 1:  # more than twice as fast as a join
        return f"{into} values ({', '.join('?' * (len(own) + len(_SHARED)))})"
    rows = ", ".join([f"({', '.join('?' * len(own))})"] * count)
    shared = ", ".join("?" * len(_SHARED))
    return f"{into} select own.*, shared.* from (values {rows}) own cross join (select {shared}) shared"  # noqa: S608


def create(
    path: Path, log_id: str, first: int, state: Encoded = NO_STATE, *, replaces: bool = False, **more: Any
) -> SegmentWriter:
    """Create a segment whose first event will have the offset `first`, with the log's `state`.

    `more` is added to its table `meta`. The file gets its name only when it is complete and on disk. Raises
    `sqlite3.Error`, `OSError`; `FileExistsError` if a segment has that name, unless it `replaces` that.
    """
    if path.exists() and not replaces:
        raise FileExistsError(errno.EEXIST, "a segment with that name exists", str(path))
    draft = path.with_name(DRAFT + path.name)
    delete_companions(draft)
    private(draft).close()  # SQLite gives the companion files its mode
    with closing(_connect(draft, "rw")) as connection:
        connection.execute("pragma synchronous=off")  # it is synced as a whole, below
        connection.execute(f"pragma page_size={PAGE_BYTES}")
        connection.executescript(f"begin;{_SCHEMA}")
        meta = {"format": FORMAT, "log_id": log_id, "first": first, **more}
        connection.executemany("insert into meta values (?, ?)", meta.items())
        connection.execute("insert into audiences values (0, null)")
        if state:
            saved_state.prepare(connection)
            saved_state.write(connection, state)
        connection.execute("commit")
        connection.execute("pragma journal_mode=wal")
    with draft.open("rb") as file:
        os.fsync(file.fileno())
    delete_companions(path)  # SQLite would apply an old WAL to the new file
    draft.rename(path)
    created = reopen(path)
    created.empty_bytes = path.stat().st_size
    return created


def reopen(path: Path) -> SegmentWriter:
    """Open a segment to go on writing it. Raises `sqlite3.Error`, `OSError`."""
    connection = _connect(path, "rw")
    try:
        mode = connection.execute("pragma journal_mode=wal").fetchone()[0]
        if mode != "wal":
            raise sqlite3.OperationalError(f"journal mode is {mode}")
        connection.execute("pragma synchronous=full")
        connection.execute("pragma wal_autocheckpoint=0")  # the writer decides when
        connection.execute("pragma secure_delete=on")  # of the state; no event is deleted
        first = connection.execute("select value from meta where name = 'first'").fetchone()[0]
        sync_folder(path.parent)  # its name, and now its WAL's; SQLite ignores errors there
        return SegmentWriter(connection, path, first)
    except BaseException:
        connection.close()
        raise


class CommitUncertain(sqlite3.OperationalError):
    """A commit has failed: whether its rows are on disk, or get there later, is unknown."""


class SegmentBusy(Exception):
    """A segment is being read, so its WAL cannot be emptied."""


def is_finished(path: Path) -> bool:
    """Whether a segment was finished (`SegmentWriter.finish`) and has no companion files. Raises `OSError`."""
    with path.open("rb") as file:
        file.seek(_VERSIONS_AT)
        return file.read(2) == _NOT_WAL and not any(each.exists() for each in companions(path))


def read(path: Path, *, is_sealed: bool) -> sqlite3.Connection:
    """A read-only connection to a segment; to a sealed one without locks. Raises `sqlite3.Error`.

    A server may begin to write any other segment at any moment, in this process or another. SQLite's locks keep what a
    transaction reads as it was; for them it creates the companion files if there are none, and leaves them. Where it
    cannot create them, on a full or read-only disk, no server can write the segment either: it is read like a sealed
    one.
    """
    if is_sealed:
        return _reading(path, "ro&immutable=1")
    try:
        return _reading(path, "ro")
    except sqlite3.OperationalError:
        if _may_be_open(path):
            raise
        return _reading(path, "ro&immutable=1")


def state_of(path: Path) -> dict[Name, str] | None:
    """The log's state in its newest segment; None if it has none, or none that can be read."""
    with suppress(sqlite3.Error), closing(read(path, is_sealed=False)) as connection:
        return saved_state.read(connection)
    return None


def _reading(path: Path, mode: str) -> sqlite3.Connection:
    connection = _connect(path, mode)
    try:
        connection.execute(f"pragma cache_size=-{_READ_CACHE_KIB}")  # reads the schema, and so takes the locks
    except BaseException:
        connection.close()
        raise
    return connection


def _may_be_open(path: Path) -> bool:
    """Whether the companion files are such that a process may have the segment open, or died when it had."""
    wal, shm, _ = companions(path)
    return nbytes_of(wal) > 0 or nbytes_of(shm) >= _SHM_BYTES


def companions(path: Path) -> list[Path]:
    """The files that SQLite may keep next to a database."""
    return [path.with_name(path.name + ending) for ending in _COMPANIONS]


def delete_companions(path: Path) -> None:
    """Delete the `companions` of a segment. Raises `OSError`."""
    for companion in companions(path):
        companion.unlink(missing_ok=True)


def nbytes_of(file: Path) -> int:
    """The size of a file in bytes; 0 where it was deleted."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def nbytes_with_wal(path: Path) -> int:
    """Bytes that a segment and its WAL use on disk."""
    return nbytes_of(path) + nbytes_of(path.with_name(path.name + "-wal"))


def _connect(path: Path, mode: str, timeout_s: float = 5.0) -> sqlite3.Connection:
    uri = f"file:{quote(str(path))}?mode={mode}"
    # Threads use a connection in turn, never at the same time.
    return sqlite3.connect(
        uri, uri=True, isolation_level=None, check_same_thread=False, timeout=timeout_s, factory=_Connection
    )


class _Connection(sqlite3.Connection):
    """A connection that raises `sqlite3.Error` also where the text of SQLite's error is not UTF-8.

    That is so where a name in the schema is damaged.
    """

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        try:
            return super().execute(*arguments)
        except UnicodeDecodeError as error:
            raise sqlite3.DatabaseError("database is malformed, and so is the text of SQLite's error") from error


class SegmentWriter:
    """The one connection that writes a segment.

    path, first  the segment's file, and its first offset
    wal_bytes    the approximate number of bytes written since the last checkpoint
    empty_bytes  the size that it had without events
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, first: int) -> None:
        self.connection = connection
        self.path = path
        self.first = first
        self.empty_bytes = _EMPTY_BYTES
        self.wal_bytes = 0
        self._held_bytes = 0
        self._has_state = False  # or it is not known
        self._has_digests = key_digests.has_column(connection)
        # SQLite moves the WAL into the database when the last connection closes. After a failure it must not, so the
        # last connection is this read-only one, which cannot.
        self._read_only = read(path, is_sealed=False)
        self._read_only.execute("select 1 from meta").fetchall()
        self._topics: dict[str, int] = dict(connection.execute("select topic, id from topics"))
        self._audiences: dict[str | None, int] = dict(connection.execute("select audience, id from audiences"))
        self._places = {file: place_of(file) for file in (path, path.with_name(path.name + "-wal"))}

    def write(self, rows: Sequence[Stored], state: Encoded = NO_STATE, digests: Digests = key_digests.NONE) -> None:
        """Commit a group of consecutive rows, with what changes of the log's `state`, and wait until it is on disk.

        `digests` are those of rows with idempotency keys, by offset. Raises `sqlite3.Error`; then none of the rows
        counts as long as the log is open, and the segment must be abandoned. If it is `CommitUncertain`, they may count
        when the log is opened again; else they never do.
        """
        connection = self.connection
        connection.execute("begin immediate")
        if digests and not self._has_digests:
            key_digests.add_column(connection)
            self._has_digests = True
        topic_ids, audience_ids = self._topics, self._audiences
        by_form: defaultdict[tuple[str, str, str | None, tuple[bool, ...]], list[Any]] = defaultdict(list)
        topics = set()
        nbytes = 0
        for row in rows:  # taken apart in one step: there may be very many
            (
                offset, time_us, topic, publication, protocol, shape, payload, details,
                audience, authid, role, nt4_type, nt4_time_us, key, crc,
            ) = row  # fmt: skip
            topic_id = topic_ids.get(topic) or self._number(topic_ids, "topics", topic)
            audience_id = audience_ids.get(audience)
            if audience_id is None:
                audience_id = self._number(audience_ids, "audiences", audience)
            topics.add(topic_id)
            nbytes += _ROW_BYTES + len(payload or "")
            optional: tuple[Any, ...] = (payload, details, authid, nt4_type, nt4_time_us, key)
            if digests and key is not None and offset in digests:
                optional += (key_digests.sealed(digests[offset], offset),)
            given = tuple([value is not None for value in optional])
            values = by_form[protocol, shape, role, given]
            values += (offset, time_us, topic_id, publication, audience_id, crc)
            values += compress(optional, given)
        for (*shared, given), values in by_form.items():
            self._insert_rows(shared, given, values)
        if state:
            if not self._has_state:
                saved_state.prepare(connection)
                self._has_state = True
            nbytes += saved_state.write(connection, state) + PAGE_BYTES * len({type(name) for name in state})
        try:
            connection.execute("commit")
        except sqlite3.Error as error:
            raise CommitUncertain(str(error)) from error
        # The rows' own pages, and one index page for each topic; a table of the state takes one, too.
        self.wal_bytes += nbytes + PAGE_BYTES * (2 + len(topics))

    def _insert_rows(self, shared: Sequence[str | None], given: tuple[bool, ...], values: list[Any]) -> None:
        """Insert rows that have values in the same columns; `values` has those that are not `shared`, row after row.

        Measured: extracting rows from JSON in SQLite costs three to five times as much, and so does binding None.
        """
        width = len(_ALWAYS) + sum(given)
        at, left = 0, len(values) // width
        while left:
            count = min(1 << left.bit_length() - 1, _MOST_AT_ONCE)
            self.connection.execute(_insertion(given, count), (*values[at : at + count * width], *shared))
            at, left = at + count * width, left - count

    def _number(self, numbers: dict[Any, int], table: str, text: str | None) -> int:
        """Give a new topic or audience a number, from 1 on."""
        number = self.connection.execute(f"insert into {table} values (null, ?)", (text,)).lastrowid  # noqa: S608
        assert number is not None
        numbers[text] = number
        return number

    @property
    def nbytes(self) -> int:
        """The approximate size of the events at the last checkpoint, with the part that readers hold in the WAL.

        It is 0 where the file's size is unknown.
        """
        try:
            return max(0, self.path.stat().st_size - self.empty_bytes) + self._held_bytes
        except OSError:
            return 0

    @property
    def is_in_place(self) -> bool:
        """Whether the paths of the segment and its WAL still lead to the files that are written. Raises `OSError`."""
        return all(place_of(file) == place for file, place in self._places.items())

    def checkpoint(self) -> None:
        """Move the WAL into the database, as far as no reader needs it. Raises `sqlite3.Error`."""
        _, frames, moved = self.connection.execute("pragma wal_checkpoint(passive)").fetchone()
        self.wal_bytes = 0
        self._held_bytes = (frames - moved) * PAGE_BYTES

    def empty_wal(self) -> None:
        """Move all of the WAL into the database: what was deleted is in neither then. Raises `sqlite3.Error`."""
        self.connection.execute("pragma wal_checkpoint(truncate)").fetchone()

    def finish(self) -> None:
        """Move all of the WAL into the database and leave WAL mode; the segment is never written again.

        The log's state, which another segment has by now, is deleted.

        Other connections may stay open, and the file stays readable if the disk fails in the middle of this. SQLite's
        own way out of WAL mode needs the only connection, and a rollback journal. Raises `sqlite3.Error`, `OSError`,
        `SegmentBusy`.
        """
        if not self.is_in_place:
            raise OSError(errno.ESTALE, "another file has taken the segment's place", str(self.path))
        self.connection.execute("pragma busy_timeout=0")
        saved_state.drop(self.connection)
        if self.connection.execute("pragma wal_checkpoint(truncate)").fetchone()[0]:
            raise SegmentBusy
        with self.path.open("r+b", buffering=0) as file:
            file.seek(_VERSIONS_AT)
            file.write(_NOT_WAL)
            os.fsync(file.fileno())

    def close(self) -> None:
        """Close the segment. If no reader has it open, SQLite moves the WAL into it. Raises `sqlite3.Error`."""
        self._read_only.close()
        self.connection.close()

    def abandon(self) -> sqlite3.Connection:
        """Stop writing, and leave the files as they are: after a failed write nothing may change them.

        While the returned connection is open, the segment can be read even on a full or read-only disk.
        """
        with suppress(sqlite3.Error):
            self.connection.close()
        return self._read_only
