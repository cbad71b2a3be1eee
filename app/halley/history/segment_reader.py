"""Reading segments: `SegmentReader` answers questions about one of them, `SegmentPool` has the open ones.

Every answer of SQLite is one row of JSON: each row that SQLite steps to releases and takes the interpreter's lock
again, which next to a busy event loop takes far longer than the row (measured: 0.1 to 5 ms, by the switch interval).

Times need not grow with the offset, since a clock may be set back. So the rows of a time are searched row by row, but
only between the first and the last block of rows whose least and greatest time admit them. Each block's are read when
they are first needed, and remembered while the segment is listed and does not change. Measured for 64 MiB: 20 to 60 ms
once, less than 0.5 ms from then on. An index on the time takes up to 120 ms where many rows are of that time.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from threading import Lock
from typing import Any, NamedTuple

import orjson

from halley.history import segment as segments
from halley.history.checksummed_json import DocumentDamaged
from halley.history.damage import Corrupt, is_passing
from halley.history.folder import Folder, Segment
from halley.history.seals import Seal
from halley.history.stored import COLUMNS, Stored

MOST_IDLE = 64
"""Idle connections at most. A log of 1 GiB has 16 segments; a connection may hold 512 KiB of pages."""

_BATCH_ROWS, _BATCH_BYTES = 256, 4_194_304
"""The maximum of rows in a batch, and about how many bytes it may have of a full segment with rows of one size."""

_COLUMNS = ", ".join(COLUMNS)
_ROWS = f"""
    select json_group_array(json_array({_COLUMNS}))
    from (select {_COLUMNS} from events where offset in (select value from json_each(?)) order by offset)
"""  # noqa: S608 - the columns' own names
_ROWS_BETWEEN = f"""
    select json_group_array(json_array({_COLUMNS}))
    from (select {_COLUMNS} from events where offset between ? and ? order by offset limit ?)
"""  # noqa: S608
_ERASED = """
    select json_group_array(offset) from stored
    where topic_id = (select id from topics where topic = '') and offset between ? and ?
"""
_TOPICS_NAMED = """
    select json_group_array(json_array(id, topic)) from topics where topic in (select value from json_each(?))
"""
_TOPICS_WITHIN = """
    select json_group_array(json_array(id, topic))
    from (select id, topic from topics where topic >= ? and topic < ? limit ?)
"""
# Which audiences a topic's events have, by jumps along the index from each audience to the next.
_TOPIC_AUDIENCES = """
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
        and protocol = ifnull(?, protocol)
"""
_NUMBERED = """
    select json_group_array(json_array(id, NAME)) from NAMEs where id in (select value from json_each(?))
"""
_TOPICS_NUMBERED, _AUDIENCES_NUMBERED = _NUMBERED.replace("NAME", "topic"), _NUMBERED.replace("NAME", "audience")
_FIRST_ROW = """
    select (select json_array(offset, publication) from stored where offset between ? and ? order by offset limit 1)
"""
_LAST_ROW = _FIRST_ROW.replace("limit", "desc limit")
_EVER_US = -(1 << 63), (1 << 63) - 1
_BLOCK_ROWS = 1_024
"""How many offsets make a block, of which the least and the greatest time are remembered: 16 bytes."""

# A block of which no row is left is of no time.
_BLOCK_TIMES = f"""
    select json_group_array(json((
        select json_array(ifnull(min(time_us), {_EVER_US[1]}), ifnull(max(time_us), {_EVER_US[0]}))
        from stored where offset between value and value + {_BLOCK_ROWS - 1}
    ))) from json_each(?)
"""  # noqa: S608
# The sign keeps SQLite from the index on time that segments of earlier versions have: it would read all entries.
_OF_TIME = "select offset from stored where offset between ? and ? and +time_us between ? and ? order by offset"
_WITHIN_TIME = f"select json_array(({_OF_TIME} limit 1), ({_OF_TIME} desc limit 1))"


class SegmentReader:
    """A connection to one segment's file.

    Its methods raise `Corrupt` where SQLite finds the file damaged or a row's checksum does not match, and
    `sqlite3.Error` where the system is short of a resource.
    """

    def __init__(self, connection: sqlite3.Connection, segment: Segment) -> None:
        self.segment = segment
        self._connection = connection

    def close(self) -> None:
        """Close the connection, so that the disk space of a deleted segment can be freed."""
        self._connection.close()

    def rows(self, offsets: Sequence[int]) -> list[Stored]:
        """The rows at `offsets`, oldest first. Raises `Corrupt` unless all of them are there and intact."""
        rows = [Stored(*values) for values in self._array(_ROWS, orjson.dumps(offsets).decode())]
        if len(rows) != len(offsets) or not all(row.is_intact for row in rows):
            raise Corrupt(self.segment.path)
        return rows

    def rows_between(self, low: int, high: int) -> Iterator[list[Stored]]:
        """The rows from `low` to `high` in batches, oldest first. Raises `Corrupt` unless all of them are intact.

        Whether offsets are missing is left to the caller, who knows the holes.
        """
        segment, most = self.segment, _BATCH_ROWS
        if segment.last is not None and segment.nbytes:
            fitting = _BATCH_BYTES * (segment.last - segment.first + 1) // segment.nbytes
            most = max(1, min(most, fitting))
        while low <= high:
            rows = [Stored(*values) for values in self._array(_ROWS_BETWEEN, low, high, most)]
            if not all(row.is_intact for row in rows):
                raise Corrupt(self.segment.path)
            if rows:
                yield rows
            if len(rows) < most:
                return
            low = rows[-1].offset + 1

    def erased(self, low: int, high: int) -> list[int]:
        """The offsets of erased events from `low` to `high`."""
        return self._array(_ERASED, low, high)

    def topics_named(self, topics: Sequence[str]) -> list[tuple[int, str]]:
        """The (number, topic) of each of `topics` that the segment has."""
        return self._array(_TOPICS_NAMED, orjson.dumps(topics).decode())

    def topics_within(self, span: tuple[str, str], most: int) -> list[tuple[int, str]]:
        """The (number, topic) of at most `most` topics in the half-open range of texts `span`."""
        return self._array(_TOPICS_WITHIN, *span, most)

    def topics_numbered(self, numbers: Sequence[int]) -> list[tuple[int, str]]:
        """The (number, topic) of the topics with these numbers."""
        return self._array(_TOPICS_NUMBERED, orjson.dumps(numbers).decode())

    def topic_audiences(self, topic_ids: Sequence[int], most: int) -> list[tuple[int, int, str | None]]:
        """The (topic number, audience number, audience) of each audience that each topic has.

        A few more than `most` are returned where there are more than `most`.
        """
        return self._array(_TOPIC_AUDIENCES, orjson.dumps(topic_ids).decode(), most + len(topic_ids) + 1)

    def offsets(self, pair: tuple[int, int], low: int, high: int, most: int, *, is_reverse: bool) -> list[int]:
        """The first `most` offsets of a (topic, audience) pair's events in a range, from its end if `is_reverse`."""
        return self._array(_OFFSETS_DOWN if is_reverse else _OFFSETS_UP, *pair, low, high, most)

    def audiences_numbered(self, numbers: Sequence[int]) -> list[tuple[int, str | None]]:
        """The (number, audience) of the audiences with these numbers."""
        return self._array(_AUDIENCES_NUMBERED, orjson.dumps(numbers).decode())

    def window(self, low: int, high: int, without: Sequence[int], protocol: str | None) -> list[tuple[int, int, int]]:
        """The (offset, topic number, audience number) of each row in a range, except the audiences `without`.

        Only those of a `protocol`, unless it is None. Oldest first.
        """
        return self._array(_WINDOW, low, high, orjson.dumps(without).decode(), protocol)

    def count(self, low: int, high: int) -> int:
        """The number of rows from `low` to `high`."""
        found: int = self._value("select count(*) from stored where offset between ? and ?", low, high)
        return found

    def within_time(self, low: int, high: int, since_us: int | None, until_us: int | None) -> tuple[int, int]:
        """The shortest range of offsets between `low` and `high` that has all rows of a time, both ends included.

        A bound of None bounds nothing. Without any such row the range is `high + 1` to `high`. Where the clock was
        set back, rows of another time may be among them. If both ends are of that time, that is seen at once.
        """
        since = _EVER_US[0] if since_us is None else since_us
        until = _EVER_US[1] if until_us is None else until_us
        if all(at is not None and since <= at <= until for at in (self.time_at(low), self.time_at(high))):
            return low, high
        bounds = *self._blocks_of_time(low, high, since, until), since, until
        first, last = self._array(_WITHIN_TIME, *bounds, *bounds)
        return (high + 1, high) if first is None else (first, last)

    def _blocks_of_time(self, low: int, high: int, since: int, until: int) -> tuple[int, int]:
        """The part of a range from the first to the last block that may have a row of a time, as `within_time`."""
        begin, last = self.segment.first, min(high, self.last)
        times = self.segment.block_times[:]  # of whole blocks; other threads may find more of them meanwhile
        begins = range(begin + len(times) // 2 * _BLOCK_ROWS, last + 1, _BLOCK_ROWS)
        if begins:
            found = self._array(_BLOCK_TIMES, orjson.dumps([*begins]).decode())
            try:
                times.extend(chain.from_iterable(found))
            except TypeError as error:  # a flipped bit
                raise Corrupt(self.segment.path) from error
            self.segment.block_times[:] = times[: (last + 1 - begin) // _BLOCK_ROWS * 2]
        least, greatest = times[::2], times[1::2]
        numbers = range((low - begin) // _BLOCK_ROWS, (last - begin) // _BLOCK_ROWS + 1)
        blocks = [begin + n * _BLOCK_ROWS for n in numbers if least[n] <= until and since <= greatest[n]]
        if not blocks:
            return high + 1, high
        return max(low, blocks[0]), min(high, blocks[-1] + _BLOCK_ROWS - 1)

    def time_at(self, offset: int) -> int | None:
        """The time at an offset, in microseconds since 1970; None where there is no row."""
        found: int | None = self._value("select (select time_us from stored where offset = ?)", offset)
        return found

    def end_row(self, low: int, high: int, *, is_reverse: bool = False) -> tuple[int, int] | None:
        """The (offset, publication) of the first row in a range, of the last if `is_reverse`; None if there is none."""
        found = self._value(_LAST_ROW if is_reverse else _FIRST_ROW, low, high)
        return None if found is None else tuple(orjson.loads(found))

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
            raise Corrupt(self.segment.path) from error
        return found

    def _value(self, statement: str, *values: Any) -> Any:
        try:
            return self._connection.execute(statement, values).fetchone()[0]
        except sqlite3.Error as error:
            if is_passing(error):
                raise
            raise Corrupt(self.segment.path) from error


class OffsetRange(NamedTuple):
    """A range of offsets to read, both ends included, and from which end."""

    low: int
    high: int
    is_reverse: bool

    def cut(self, low: int, high: int) -> OffsetRange:
        """The part of the range between `low` and `high`."""
        return OffsetRange(max(self.low, low), min(self.high, high), self.is_reverse)

    def beyond(self, reached: int) -> OffsetRange:
        """The rest of the range after everything up to the offset `reached` was read."""
        return self._replace(high=reached - 1) if self.is_reverse else self._replace(low=reached + 1)

    @property
    def end(self) -> int:
        """The last offset in the order of reading."""
        return self.low if self.is_reverse else self.high

    @property
    def is_empty(self) -> bool:
        """Whether the range has no offsets."""
        return self.low > self.high


class SegmentGone(Exception):
    """A segment was deleted, or replaced by another with its name; the folder lists the segments of now."""


class SegmentPool:
    """A pool of connections to the segments of one folder, for any thread; each has one user at a time.

    It also verifies the segments. A flipped bit in an index makes rows vanish without an error, so all digests of a
    sealed segment are compared before it is read for the first time, once per process (0.1 s for 64 MiB).
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._changing = Lock()
        self._checking = Lock()
        self._listed = folder.segments
        self._idle: deque[SegmentReader] = deque()  # the most recently used one last
        self._verified: set[Segment] = set()

    def is_intact(self, segment: Segment) -> bool:
        """Whether a segment may be read; if not, it is listed as damaged from now on.

        Compares a sealed segment's digests at the first call, and blocks. The newest one was examined when the log was
        opened. Raises `SegmentGone`, and `OSError` where the system is short of a resource.
        """
        if not segment.is_intact or not segment.is_sealed or segment in self._verified:
            return segment.is_intact
        with self._checking:
            if segment not in self._verified:
                try:
                    is_as_sealed = Seal.load(segment.path).matches(segment.path)
                except OSError as error:
                    if is_passing(error):  # with no free file descriptor, every segment would be taken for damaged
                        raise
                    is_as_sealed = False
                except DocumentDamaged:
                    is_as_sealed = False
                if segment not in self._folder.segments:
                    raise SegmentGone(segment.path)
                if not is_as_sealed:
                    self._folder.mark_corrupt(segment, "does not match its digests")
                    return False
                self._verified.add(segment)
        return True

    def check_again(self, segment: Segment) -> bool:
        """Compare a sealed segment's digests once more; see `is_intact`."""
        with self._checking:
            self._verified.discard(segment)
        return self.is_intact(segment)

    @contextmanager
    def open(self, segment: Segment) -> Iterator[SegmentReader]:
        """A context manager with a connection to a segment that this thread alone uses inside the block.

        Raises `SegmentGone`, `Corrupt`, and `sqlite3.Error` where the system is short of a resource. If the block
        raises `Corrupt`, the segment is listed as damaged from now on.
        """
        reader = self._idle_reader(segment) or self._connect(segment)
        is_kept = segment.is_sealed  # the writer can seal the newest segment only when no reader has it open
        try:
            yield reader
        except Corrupt:
            self._folder.mark_corrupt(segment, "is malformed")
            is_kept = False
            raise
        except sqlite3.Error:
            is_kept = False
            raise
        finally:
            if is_kept:
                self._put_back(reader)
            else:
                reader.close()

    @contextmanager
    def part(self, bounds: OffsetRange) -> Iterator[tuple[SegmentReader | None, OffsetRange]]:
        """A context manager with the next segment's reader, and the part of the bounds that lies there.

        The reader is None for a hole between two segments, and for a damaged one. Raises what `open` does.
        """
        segment, part = self._next_segment(bounds)
        if segment is None or not self.is_intact(segment):
            yield None, part
        else:
            with self.open(segment) as reader:
                yield reader, part

    def _next_segment(self, bounds: OffsetRange) -> tuple[Segment | None, OffsetRange]:
        segments = self._folder.segments
        at = bounds.high if bounds.is_reverse else bounds.low
        index = bisect_right(segments, at, key=lambda segment: segment.first) - 1
        end = segments[index + 1].first - 1 if index + 1 < len(segments) else bounds.high
        if index < 0:
            return None, bounds.cut(1, end)
        segment = segments[index]
        last = end if segment.last is None else min(segment.last, end)
        if at > last:
            return None, bounds.cut(last + 1, end)
        return segment, bounds.cut(segment.first, last)

    def _connect(self, segment: Segment) -> SegmentReader:
        try:
            return SegmentReader(segments.read(segment.path, is_sealed=segment.is_sealed), segment)
        except sqlite3.Error as error:
            if segment not in self._folder.segments:
                raise SegmentGone(segment.path) from error
            if is_passing(error) and segment.path.exists():
                raise
            self._folder.mark_corrupt(segment, "is malformed")
            raise Corrupt(segment.path) from error

    def _idle_reader(self, segment: Segment) -> SegmentReader | None:
        with self._changing:
            reader = next((each for each in reversed(self._idle) if each.segment is segment), None)
            if reader is not None:
                self._idle.remove(reader)
        return reader

    def _put_back(self, reader: SegmentReader) -> None:
        with self._changing:
            self._idle.append(reader)
            superfluous = self._idle.popleft() if len(self._idle) > MOST_IDLE else None
        if superfluous is not None:
            superfluous.close()

    def prune(self) -> None:
        """Close idle connections to segments that are no longer listed: a deleted file uses disk while it is open."""
        listed = self._folder.segments
        if listed is self._listed:
            return
        alive = set(listed)
        with self._changing:
            gone = [reader for reader in self._idle if reader.segment not in alive]
            self._idle = deque(reader for reader in self._idle if reader.segment in alive)
            self._listed = listed
        for reader in gone:
            reader.close()
        with self._checking:
            self._verified &= alive

    def close(self) -> None:
        """Close all idle connections."""
        with self._changing:
            idle, self._idle = self._idle, deque()
        for reader in idle:
            reader.close()
