"""Events of a log in the lake in the order of their offsets, in parts that fit into memory.

The offsets of compacted files overlap, since they are sorted by topic. Files that overlap are read together:
first only the offsets of matching events, then the rows, one range of offsets after another. Spark is not needed.

How many rows such a range may have is estimated from the files' sizes. Where it has larger rows than that, its upper
half is dropped, as often as necessary, and read again as the next range.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import fs

from halley.broker.events import ext_of, to_text
from halley.broker.names import Match, Pattern, matches, span
from halley.pipeline.errors import no_lake
from halley.pipeline.lake.place import LakePath
from halley.pipeline.lake.shapes import STORED
from halley.pipeline.lake.tables import File, open_table, path, sources_of, translate_read_errors
from halley.pipeline.queries.conditions import and_, between, plan_scan
from halley.protocols.bayeux.names import to_channel
from halley.protocols.names import name_of

_STRETCH_BYTES = 33_554_432
_MOST_ROWS = 100_000


class Selection(NamedTuple):
    """The events to read: those of a pattern, from `from_us` on and before `to_us` (microseconds since 1970)."""

    pattern: Pattern
    from_us: int | None = None
    to_us: int | None = None


class EventReader:
    """Reads a log's rows in the table `events`, in the state that the table had when the reader was created.

    `log_id`: the log; None: the only one that the lake has.
    """

    def __init__(self, lake: LakePath, selection: Selection, log_id: str | None = None) -> None:
        """Raise `JobRejected` if there is no such table or it is not Halley's, `JobFailed` if files are missing."""
        self._folder = path(lake, "events")
        table = open_table(lake, "events")
        if table is None:
            raise no_lake(lake)
        self.log_id = table.sources.only().log_id if log_id is None else log_id
        self._selection = selection
        first, end = span(selection.pattern)
        conditions = [between("topic", first, end), between("time_us", selection.from_us, selection.to_us)]
        reading = plan_scan("events", table, and_(conditions))
        self.reading = reading._replace(files=table.files_of(self.log_id, reading.files))
        with translate_read_errors(self._folder, self.reading.files):
            self._events = table.dataset()
            self._fragments = {each.path: each for each in self._events.get_fragments()}
        self._condition = (pc.field("topic") >= first) & (pc.field("topic") < end)
        if selection.from_us is not None:
            self._condition &= pc.field("time_us") >= selection.from_us
        if selection.to_us is not None:
            self._condition &= pc.field("time_us") < selection.to_us

    def count(self, after: int = 0) -> tuple[int, int]:
        """Return the number of events, and the number of those with offsets up to `after`."""
        found = before = 0
        for group in _groups(self.reading.files):
            offsets = self._offsets(group, 0)
            found += len(offsets)
            before += pc.sum(pc.less_equal(offsets, after)).as_py() or 0
        return found, before

    def rows(self, after: int = 0) -> Iterator[list[dict[str, Any]]]:
        """Yield the events with offsets above `after`, in order, in lists that fit into memory. Raises `JobFailed`."""
        for group in _groups(self.reading.files):
            offsets = self._offsets(group, after)
            if not len(offsets):
                continue
            with translate_read_errors(self._folder):
                size = _stretch_rows(group, self._events.filesystem)
            start = 0
            while start < len(offsets):
                found = self._stretch(group, offsets[start : start + size])
                start += found.num_rows
                yield found.to_pylist()

    def _stretch(self, group: Sequence[File], offsets: pa.Array) -> pa.Table:
        """Read the events at these offsets, or the first of them that fit into memory, in order."""
        found = STORED.empty_table()
        high = offsets[-1].as_py()
        within = (pc.field("offset") >= offsets[0].as_py()) & (pc.field("offset") <= high)
        for part in self._row_groups(group, within):
            found = pa.concat_tables([found, part.filter(pc.less_equal(part["offset"], high))])
            while found.nbytes > _STRETCH_BYTES and found.num_rows > 1:
                first_half = pc.sort_indices(found["offset"])[: found.num_rows // 2]
                found = found.take(first_half)
                high = found["offset"][-1].as_py()
        return found.sort_by("offset")

    def _row_groups(self, group: Sequence[File], within: pc.Expression) -> Iterator[pa.Table]:
        """Read the selected rows of one row group after the other, and no others ahead of them."""
        condition = self._condition & within
        for file in group:
            with translate_read_errors(self._folder):
                parts = self._fragments[file.path].split_by_row_group(condition, schema=self._events.schema)
            for part in parts:
                with translate_read_errors(self._folder):
                    rows = part.to_table(schema=self._events.schema, columns=STORED.names, filter=condition)
                yield self._only_wanted(rows)

    def _offsets(self, group: Sequence[File], after: int) -> pa.Array:
        found = self._read(group, ["offset"], self._condition & (pc.field("offset") > after))
        offsets = found["offset"].combine_chunks()
        return offsets.take(pc.sort_indices(offsets))

    def _read(self, group: Sequence[File], columns: Sequence[str], condition: pc.Expression) -> pa.Table:
        """Read these columns of the selected rows, in no particular order."""
        fragments = [self._fragments[file.path] for file in group]
        events = self._events
        with translate_read_errors(self._folder):
            found = ds.FileSystemDataset(fragments, events.schema, events.format, events.filesystem).to_table(
                [*{*columns, "topic"}], filter=condition, batch_readahead=2, fragment_readahead=1
            )
        return self._only_wanted(found).select(list(columns))

    def _only_wanted(self, found: pa.Table) -> pa.Table:
        """Drop rows whose topics do not match the pattern, since a range of topics was read."""
        pattern = self._selection.pattern
        if pattern.match is Match.EXACT:
            return found
        topics = [topic for topic in pc.unique(found["topic"]).to_pylist() if matches(pattern, topic)]
        return found.filter(pc.is_in(found["topic"], pa.array(topics, pa.string())))


def _groups(files: Sequence[File]) -> Iterator[list[File]]:
    """Yield groups of files whose offsets overlap, in the order of their offsets; unknown bounds are the widest."""
    group: list[File] = []
    reached = 0
    for file in sorted(files, key=lambda file: file.least.get("offset", 0)):
        if group and file.least.get("offset", 0) > reached:
            yield group
            group = []
        group.append(file)
        reached = max(reached, file.greatest.get("offset", 1 << 62))
    if group:
        yield group


def _stretch_rows(files: Sequence[File], filesystem: fs.FileSystem) -> int:
    """The number of these files' rows to read at a time, chosen by their size in bytes."""
    rows = nbytes = 0
    for file in files:
        footer = pq.read_metadata(file.path, filesystem=filesystem)
        rows += footer.num_rows
        nbytes += sum(footer.row_group(number).total_byte_size for number in range(footer.num_row_groups))
    return max(1, min(_MOST_ROWS, _STRETCH_BYTES * max(rows, 1) // max(nbytes, 1)))


def readers(lake: LakePath, selection: Selection, source: str | None = None) -> list[EventReader]:
    """Return a reader for each log of a source, in the order in which the lake got them.

    `source`: its name, which may be left out if the lake has only one. Raises `JobRejected`, `JobFailed`.
    """
    sources = sources_of(lake)
    if sources is None:
        raise no_lake(lake)
    return [EventReader(lake, selection, each.log_id) for each in sources.of(source)]


def lines(lake: LakePath, selection: Selection, source: str | None = None) -> Iterator[list[str]]:
    """Yield lists of events, each one line of JSON, oldest first; `source` and the errors are those of `readers`."""
    for reader in readers(lake, selection, source):
        for rows in reader.rows():
            yield [_line(row) for row in rows]


def _line(row: Mapping[str, Any]) -> str:
    topic, by = row["topic"], row["protocol"]
    channel, name, protocol = (orjson.dumps(each).decode() for each in (to_channel(topic), name_of(topic, by), by))
    value = {"type": row["nt4_type"], "time": row["nt4_time_us"]}
    nt4 = f',"nt4":{orjson.dumps(value).decode()}' if row["nt4_type"] is not None else ""
    found = None if row["details"] is None else ext_of(by, row["details"])
    ext = "" if found is None else f',"ext":{found}'
    return (
        f'{{"channel":{channel},"name":{name},"data":{row["payload"]},"position":{row["offset"]},'
        f'"time":"{to_text(row["time_us"])}","publication":{row["publication"]},"protocol":{protocol}{nt4}{ext}}}'
    )
