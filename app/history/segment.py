"""One segment: an SQLite database of consecutive events.

While it is written it is in WAL mode, and a commit is on disk when it returns (`synchronous=FULL`). Anyone may read it
meanwhile. Its table `stored` has numbers for topics and audiences; the view `events` has the columns of `Stored`, for
`sqlite3`, Spark and whoever else comes.

The only index over events is (topic, audience, offset). Bounds in time and by publication need none: both grow with the
offset, but for the places in `steps`, where the clock was set back (`ranges.py`).
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING
from urllib.parse import quote

import orjson

from app.history.stored import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from app.history.stored import Stored

FORMAT = 1
"""Of the tables below; a log of another format is refused."""

PAGE_BYTES = 8192
_READ_CACHE_KIB = 512
_TOPIC, _AUDIENCE = COLUMNS.index("topic"), COLUMNS.index("audience")
_SCHEMA = """
    create table meta (name text primary key, value) without rowid;
    create table topics (id integer primary key, topic text not null unique);
    create table audiences (id integer primary key, audience text unique);
    create table stored (
        offset integer primary key, time_us integer not null, topic_id integer not null, publication integer not null,
        protocol text not null, shape text not null, payload text, details text, audience_id integer not null,
        authid text, role text, nt4_type text, nt4_time_us integer, idempotency_key text, crc integer not null
    );
    create index by_topic on stored (topic_id, audience_id, offset);
    create table steps (offset integer primary key);
    create view events as
        select COLUMNS from stored
        left join topics on topics.id = topic_id left join audiences on audiences.id = audience_id;
""".replace("COLUMNS", ", ".join(COLUMNS))
_INSERT = "insert into stored select VALUES from json_each(?)".replace(
    "VALUES", ", ".join(f"json_extract(value, '$[{column}]')" for column in range(len(COLUMNS)))
)


def create(path: Path, log_id: str, first: int) -> SegmentWriter:
    """A new segment whose first event will have that offset. Raises `sqlite3.Error`, `OSError`."""
    connection = _connect(path, "rwc")
    try:
        connection.execute(f"pragma page_size={PAGE_BYTES}")
        _configure(connection)
        connection.executescript(f"begin;{_SCHEMA}commit;")
        connection.execute("begin immediate")
        meta = [("format", FORMAT), ("log_id", log_id), ("first", first)]
        connection.executemany("insert into meta values (?, ?)", meta)
        connection.execute("insert into audiences values (0, null)")
        connection.execute("commit")
    except BaseException:
        connection.close()
        raise
    return SegmentWriter(connection, first)


def reopen(path: Path) -> SegmentWriter:
    """Go on writing a segment. Raises `sqlite3.Error`."""
    connection = _connect(path, "rw")
    try:
        _configure(connection)
        first = connection.execute("select value from meta where name = 'first'").fetchone()[0]
        last = connection.execute("select max(offset) from stored").fetchone()[0]
    except BaseException:
        connection.close()
        raise
    return SegmentWriter(connection, first, first - 1 if last is None else last)


def read(path: Path, *, is_sealed: bool) -> sqlite3.Connection:
    """A connection that reads; of a sealed segment, on which nobody takes locks. Raises `sqlite3.Error`."""
    connection = _connect(path, "ro" + "&immutable=1" * is_sealed)
    connection.execute(f"pragma cache_size=-{_READ_CACHE_KIB}")
    return connection


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    # Threads use a connection in turn, never at once.
    return sqlite3.connect(
        f"file:{quote(str(path))}?mode={mode}", uri=True, isolation_level=None, check_same_thread=False, timeout=5.0
    )


def _configure(connection: sqlite3.Connection) -> None:
    connection.execute("pragma journal_mode=wal")
    connection.execute("pragma synchronous=full")
    connection.execute("pragma wal_autocheckpoint=0")  # when, is the writer's business


class SegmentWriter:
    """The one connection that writes a segment. `last` is its last committed offset, `first - 1` while it is empty."""

    def __init__(self, connection: sqlite3.Connection, first: int, last: int | None = None) -> None:
        self.connection = connection
        self.first = first
        self.last = first - 1 if last is None else last
        self._topics: dict[str, int] = dict(connection.execute("select topic, id from topics"))
        self._audiences: dict[str | None, int] = dict(connection.execute("select audience, id from audiences"))
        latest = connection.execute("select time_us from stored where offset = ?", (self.last,)).fetchone()
        self._latest_us: int = latest[0] if latest else 0

    def write(self, rows: Sequence[Stored]) -> None:
        """Write a group of consecutive rows and see it on disk. Raises `sqlite3.Error`, and none of it counts."""
        connection = self.connection
        connection.execute("begin immediate")
        encoded = []
        for row in rows:
            if row.time_us < self._latest_us:
                connection.execute("insert into steps values (?)", (row.offset,))
            self._latest_us = row.time_us
            values = list(row)
            values[_TOPIC] = self._topic_id(row.topic)
            values[_AUDIENCE] = self._audience_id(row.audience)
            encoded.append(values)
        connection.execute(_INSERT, (orjson.dumps(encoded).decode(),))
        connection.execute("commit")
        self.last = rows[-1].offset

    def _topic_id(self, topic: str) -> int:
        number = self._topics.get(topic)
        if number is None:
            number = self._topics[topic] = self._insert("insert into topics values (null, ?)", topic)
        return number

    def _audience_id(self, audience: str | None) -> int:
        number = self._audiences.get(audience)
        if number is None:
            number = self._audiences[audience] = self._insert("insert into audiences values (null, ?)", audience)
        return number

    def _insert(self, statement: str, text: str | None) -> int:
        number = self.connection.execute(statement, (text,)).lastrowid
        assert number is not None
        return number

    def checkpoint(self) -> None:
        """Move what is in the WAL into the database, as far as no reader is in the way. Raises `sqlite3.Error`."""
        self.connection.execute("pragma wal_checkpoint(passive)")

    def close(self) -> None:
        """Let go of it. Where nobody reads it, the WAL ends up in the database."""
        self.connection.close()
