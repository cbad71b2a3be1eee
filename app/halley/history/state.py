"""What is saved with the rows of a log, in the same transactions: in a cluster, how far its stream is applied.

The state is a map of small JSON values. A value's name is a text, or the offset of the event that it belongs to; the
one with the name `AT` has the `sequence` up to which the stream is applied. It is in two tables of the newest segment:
`state`, and `state_of_events`, which grows at its end. A new segment gets all of it before the file has its name, and
an older one loses it when it is finished: there are names and topics in it, which must not stay when they are erased.
The log of a server without a cluster has neither; where such a server goes on with a log that has a state, it ends.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from threading import Lock
from typing import Any, Literal
from zlib import crc32

import orjson

from halley.broker.errors import HistoryUnavailable

AT = "at"

Name = str | int
Encoded = Mapping[Name, str | None]
"""Values as JSON text; None for one that is deleted."""

_TABLES = """
    create table if not exists state (name text primary key, value text not null, crc integer not null) without rowid;
    create table if not exists state_of_events (
        offset integer primary key, value text not null, crc integer not null
    );
"""
_KINDS = {("state", "name"): str, ("state_of_events", "offset"): int}


class Change:
    """A change of the state, which has its turn in the log behind the events that were appended before it.

    It makes the state of the sequence `after` that of `sequence`, and is written with the events up to `offset`, or
    after them. In `values` None deletes. If `after` is None it goes with any state, and does not change the sequence.
    """

    __slots__ = ("after", "offset", "sequence", "values")

    is_recorded: Literal[False] = False

    def __init__(self, after: int | None, sequence: int, offset: int, values: dict[Name, Any]) -> None:
        self.after = after
        self.sequence = sequence
        self.offset = offset
        self.values = values

    def behind(self, sequence: int, offset: int) -> int:
        """The sequence that it makes of that one, if all events up to `offset` are written.

        Raises `HistoryUnavailable`: it must be given again, behind what is missing.
        """
        if self.after is None:
            return sequence
        if self.after != sequence or self.offset > offset:
            raise HistoryUnavailable
        return self.sequence

    @property
    def nbytes(self) -> int:
        """About its size in memory, in bytes."""
        return 100 * (1 + len(self.values))


class SavedState:
    """The state as it is on disk. `sequence` is that of `AT`, 0 without one.

    It is changed on the writer's thread; `copy` is for any.
    """

    def __init__(self, values: Mapping[Name, str]) -> None:
        self._values = {**values}
        self._lock = Lock()
        self.sequence = int(orjson.loads(values[AT])["sequence"]) if AT in values else 0

    @property
    def values(self) -> Mapping[Name, str]:
        """All values, for the writer's thread."""
        return self._values

    def is_at(self, at: Any) -> bool:
        """Whether that is the value of `AT`, by which a state is known."""
        return AT in self._values and bool(orjson.loads(self._values[AT]) == at)

    def copy(self) -> dict[Name, str]:
        """A copy of all values, each as JSON text."""
        with self._lock:
            return self._values.copy()

    def named(self) -> dict[Name, Any]:
        """The values that belong to no event, of which there are few."""
        return decoded({name: value for name, value in self.copy().items() if isinstance(name, str)})

    def committed(self, changed: Encoded, sequence: int) -> None:
        """Take over what was committed, which makes the state that of `sequence`."""
        with self._lock:
            for name, value in changed.items():
                if value is None:
                    self._values.pop(name, None)
                else:
                    self._values[name] = value
        self.sequence = sequence


def encoded(values: Mapping[Name, Any]) -> dict[Name, str | None]:
    """Values as JSON text; None for those that are deleted."""
    return {name: None if value is None else orjson.dumps(value).decode() for name, value in values.items()}


def decoded(values: Mapping[Name, str]) -> dict[Name, Any]:
    """The values that have such texts."""
    return {name: orjson.loads(value) for name, value in values.items()}


def prepare(connection: sqlite3.Connection) -> None:
    """Create the tables within a transaction, unless they are there. Raises `sqlite3.Error`."""
    for statement in _TABLES.split(";")[:-1]:
        connection.execute(statement)


def write(connection: sqlite3.Connection, changed: Encoded) -> int:
    """Write values within a transaction, to tables that are there; returns about how many bytes they take.

    What is deleted is overwritten. Raises `sqlite3.Error`.
    """
    for (table, key), kind in _KINDS.items():
        written = [(name, value, _crc(name, value)) for name, value in changed.items() if value and type(name) is kind]
        gone = [(name,) for name, value in changed.items() if value is None and type(name) is kind]
        if gone:
            connection.executemany(f"delete from {table} where {key} = ?", gone)  # noqa: S608
        if written:
            connection.executemany(f"insert or replace into {table} values (?, ?, ?)", written)  # noqa: S608
    return sum([len(value) for value in changed.values() if value])


def drop(connection: sqlite3.Connection) -> None:
    """Delete the state, if there is one, so that no byte of it stays. Raises `sqlite3.Error`."""
    for table, _ in _KINDS:
        connection.execute(f"drop table if exists {table}")


def _crc(name: Name, value: str) -> int:
    return crc32(f"{name} {value}".encode())


def read(connection: sqlite3.Connection) -> dict[Name, str] | None:
    """The state that a segment has; None if it has none. Raises `sqlite3.Error`, also if a value is damaged."""
    connection.execute("begin")  # both tables of one moment
    try:
        names = {name for (name,) in connection.execute("select name from sqlite_master")}
        if not {"state", "state_of_events"} <= names:
            return None
        values: dict[Name, str] = {}
        for table, _ in _KINDS:
            for name, value, crc in connection.execute(f"select * from {table}"):  # noqa: S608
                if not isinstance(value, str) or crc != _crc(name, value):
                    raise sqlite3.DatabaseError("a value has the wrong checksum")
                values[name] = value
    except UnicodeDecodeError as error:
        raise sqlite3.DatabaseError("a text is not UTF-8") from error
    else:
        return values if AT in values else None
    finally:
        connection.execute("rollback")
