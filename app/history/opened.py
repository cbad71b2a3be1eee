"""A segment open for reading, and the queries it answers.

Every answer is one row of JSON: each row that SQLite steps to releases and takes the interpreter's lock again, which
next to a busy event loop takes far longer than the row (measured: 0.1 to 5 ms, by the switch interval).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import orjson

from app.history.rows import BATCH, walk
from app.history.stored import COLUMNS, Stored

if TYPE_CHECKING:
    from app.history.folder import Segment

_COLUMNS = ", ".join(COLUMNS)
_ROWS = f"""
    select json_group_array(json_array({_COLUMNS}))
    from (select {_COLUMNS} from events where offset in (select value from json_each(?)) order by offset)
"""  # noqa: S608 - the columns' own names
_TOPICS_NAMED = """
    select json_group_array(json_array(id, topic)) from topics where topic in (select value from json_each(?))
"""
_TOPICS_WITHIN = """
    select json_group_array(json_array(id, topic))
    from (select id, topic from topics where topic >= ? and topic < ? limit ?)
"""
# Which audiences a topic's events have, by jumps along the index from each audience to the next.
_PAIRS = """
    with recursive pair (topic_id, audience_id) as (
        select value, (select min(audience_id) from stored where topic_id = value) from json_each(?)
        union all
        select topic_id, (
            select min(audience_id) from stored where topic_id = pair.topic_id and audience_id > pair.audience_id
        ) from pair where audience_id is not null
        limit ?
    )
    select json_group_array(json_array(topic_id, audience_id, audience))
    from pair join audiences on id = audience_id
"""
_OFFSETS = """
    select json_group_array(offset) from (
        select offset from stored where topic_id = ? and audience_id = ? and offset between ? and ?
        order by offset ORDER limit ?
    )
"""
_OFFSETS_UP, _OFFSETS_DOWN = _OFFSETS.replace("ORDER", "asc"), _OFFSETS.replace("ORDER", "desc")
_WINDOW = """
    select json_group_array(json_array(offset, topic_id, audience_id)) from stored
    where offset between ? and ? and audience_id not in (select value from json_each(?))
"""
_TOPICS_NUMBERED = """
    select json_group_array(json_array(id, topic)) from topics where id in (select value from json_each(?))
"""
_AUDIENCES_NUMBERED = """
    select json_group_array(json_array(id, audience)) from audiences where id in (select value from json_each(?))
"""
_FIRST_WITHIN = "select (select publication from stored where offset between ? and ? order by offset limit 1)"
_LAST_WITHIN = "select (select publication from stored where offset between ? and ? order by offset desc limit 1)"
_STEPS = "select json_group_array(offset) from (select offset from steps order by offset limit ?)"
# The first offset from ? to ? whose time is not below ?. A missing row counts as later.
_FIRST_SINCE = """
    with recursive bound (low, high, since) as (
        values (?, ? + 1, ?)
        union all
        select
            iif((select time_us from stored where offset = (low + high) / 2) < since, (low + high) / 2 + 1, low),
            iif((select time_us from stored where offset = (low + high) / 2) < since, high, (low + high) / 2),
            since
        from bound where low < high
    )
    select low from bound where low = high
"""


_PASSING = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
}


class Unsound(Exception):
    """A segment's file is damaged: its content is not what was written."""


class Opened:
    """A connection to one segment's file.

    Its methods raise `Unsound` where SQLite finds the file damaged or a row's checksum does not match, and
    `sqlite3.Error` where the system is short of a resource.
    """

    def __init__(self, connection: sqlite3.Connection, segment: Segment) -> None:
        self.segment = segment
        self._connection = connection

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def rows(self, offsets: Sequence[int]) -> list[Stored]:
        """The rows at `offsets`, oldest first. Raises `Unsound` unless all of them are there and intact."""
        rows = [Stored(*values) for values in self._array(_ROWS, orjson.dumps(offsets).decode())]
        if len(rows) != len(offsets) or not all(row.is_sound for row in rows):
            raise Unsound(self.segment.path)
        return rows

    def sound_rows(self, low: int, high: int) -> list[Stored]:
        """The intact rows from `low` to `high` that can be read from the table without an index, oldest first."""
        try:
            return [row for found, _ in walk(self._connection, low, high) for row in found]
        except sqlite3.Error:
            return []

    def topics_named(self, topics: Sequence[str]) -> list[tuple[int, str]]:
        """The (number, topic) of each of `topics` that the segment has."""
        return self._array(_TOPICS_NAMED, orjson.dumps(topics).decode())

    def topics_within(self, span: tuple[str, str], most: int) -> list[tuple[int, str]]:
        """The (number, topic) of at most `most` topics in the half-open range of texts `span`."""
        return self._array(_TOPICS_WITHIN, *span, most)

    def topics_numbered(self, numbers: Sequence[int]) -> list[tuple[int, str]]:
        """The (number, topic) of the topics with these numbers."""
        return self._array(_TOPICS_NUMBERED, orjson.dumps(numbers).decode())

    def pairs(self, topic_ids: Sequence[int], most: int) -> list[tuple[int, int, str | None]]:
        """The (topic number, audience number, audience) of each audience that each topic has.

        A few more than `most` are returned where there are more than `most`.
        """
        return self._array(_PAIRS, orjson.dumps(topic_ids).decode(), most + len(topic_ids) + 1)

    def offsets(self, pair: tuple[int, int], low: int, high: int, most: int, *, is_reverse: bool) -> list[int]:
        """The first `most` offsets of a (topic, audience) pair's events in a range, from its end if `is_reverse`."""
        return self._array(_OFFSETS_DOWN if is_reverse else _OFFSETS_UP, *pair, low, high, most)

    def audiences_numbered(self, numbers: Sequence[int]) -> list[tuple[int, str | None]]:
        """The (number, audience) of the audiences with these numbers."""
        return self._array(_AUDIENCES_NUMBERED, orjson.dumps(numbers).decode())

    def window(self, low: int, high: int, without: Sequence[int]) -> list[tuple[int, int, int]]:
        """The (offset, topic number, audience number) of each row in a range, except the audiences `without`.

        Oldest first.
        """
        return self._array(_WINDOW, low, high, orjson.dumps(without).decode())

    def steps(self, most: int) -> list[int]:
        """The first `most` offsets at which the clock had been set back."""
        return self._array(_STEPS, most)

    def first_since(self, low: int, high: int, time_us: int) -> int:
        """The first offset from `low` to `high` whose time is `time_us` or later; `high + 1` if there is none.

        Times must grow within the range.
        """
        found: int = self._value(_FIRST_SINCE, low, high, time_us)
        return found

    def publication_at(self, offset: int) -> int | None:
        """The publication id at an offset; None where there is no row."""
        found: int | None = self._value("select (select publication from stored where offset = ?)", offset)
        return found

    def time_at(self, offset: int) -> int | None:
        """The time at an offset, in microseconds since 1970; None where there is no row."""
        found: int | None = self._value("select (select time_us from stored where offset = ?)", offset)
        return found

    def next_publication(self, low: int, high: int, is_reverse: bool, *, is_sound: bool) -> int | None:  # noqa: FBT001
        """The first publication id in a range, or the last if `is_reverse`; None if there is none.

        In a damaged segment only the rows near that end of the range are looked at.
        """
        if is_sound:
            found: int | None = self._value(_LAST_WITHIN if is_reverse else _FIRST_WITHIN, low, high)
            return found
        rows = (
            self.sound_rows(max(low, high - BATCH), high)
            if is_reverse
            else self.sound_rows(low, min(high, low + BATCH))
        )
        return rows[-1 if is_reverse else 0].publication if rows else None

    def place_of(self, publication: int) -> int | None:
        """The offset of a publication, found by reading the whole table; for damaged segments. None if not found."""
        try:
            found = self._connection.execute("select offset from stored where publication = ?", (publication,))
            offsets = [offset for (offset,) in found if isinstance(offset, int)]
        except sqlite3.Error:
            return None
        return next((row.offset for at in offsets for row in self.sound_rows(at, at)), None)

    @property
    def last(self) -> int:
        """The last offset in the segment that counts; `first - 1` while it is empty."""
        if self.segment.last is not None:
            return self.segment.last
        last: int | None = self._value("select max(offset) from stored")
        return self.segment.first - 1 if last is None else last

    def _array(self, statement: str, *values: Any) -> list[Any]:
        try:
            found: list[Any] = orjson.loads(self._value(statement, *values))
        except (ValueError, TypeError) as error:
            raise Unsound(self.segment.path) from error
        return found

    def _value(self, statement: str, *values: Any) -> Any:
        try:
            return self._connection.execute(statement, values).fetchone()[0]
        except sqlite3.Error as error:
            if is_passing(error):
                raise
            raise Unsound(self.segment.path) from error


def is_passing(error: sqlite3.Error) -> bool:
    """Whether an error is about a resource (locks, memory, file descriptors) and does not mean a damaged file."""
    code = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF in _PASSING
