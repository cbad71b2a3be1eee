"""Rollups: totals of each window of time, by channel and protocol; for the table `rollups` and for subscribers.

A turn reads what is new, adds it to the open windows, and publishes those that have changed, with `final: false`.
Windows that have become final are committed to the table `rollups`, then published with `final: true`, and then the
table records that they are published. What is published as final is always what the table says; after a crash in
between it is published again, under the same keys.

The table holds everything that is needed after a crash. Its app versions, of each log (`lake/sources.py`):

    rollup            the offset at which to read again: the first event of any window that was open
    rollup/read       the offset up to which events were read; those below it are in their final windows, and not late
    rollup/final      windows that end at this time (in microseconds) or before are final
    rollup/published  windows that end at this time or before are published
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from halley.broker.events import to_text
from halley.broker.names import REALM_MARK
from halley.client import IdempotentPublish
from halley.pipeline.errors import JobRejected, cause_of
from halley.pipeline.jobs.publishing import key_of
from halley.pipeline.jobs.run import LogJob, Progress, TurnJob, consumer
from halley.pipeline.jobs.totals import EVENT_COLUMNS, KEY, QUANTILES, Totals
from halley.pipeline.lake import shapes
from halley.pipeline.lake.commit import AppTransaction, commit_rows
from halley.pipeline.lake.shapes import DAY_US, KINDS
from halley.pipeline.lake.sources import LogSource, labelled
from halley.pipeline.lake.tables import translate_read_errors
from halley.pipeline.source.log import caught_up
from halley.pipeline.source.options import SourceOptions
from halley.pipeline.source.source import Table
from halley.protocols.bayeux.names import to_channel
from halley.protocols.names import name_of

_AT, _READ, _FINAL, _PUBLISHED = "rollup", "rollup/read", "rollup/final", "rollup/published"
_CONFIGURATION = {
    # The number of groups with sketches that are kept in memory; beyond it rows are sorted. The default is 128.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "4096",
    # Rows partitioned by channel are also partitioned by channel and window: `Totals` needs no further exchange.
    "spark.sql.requireAllClusterKeysForCoPartition": "false",
}

_READ_HERE_ROWS, _READ_HERE_BYTES = 1_000, 8_388_608
"""Up to this many rows and bytes are read here sooner than Spark plans a read, starts a task and transfers its result.
"""

_FEW_OPEN = 4_000
"""Up to this many open windows, one task adds up what was read here."""

Row = dict[str, Any]
"""A row of the table `rollups`."""


def wall_us() -> int:
    """Return the wall clock's time, in microseconds since 1970."""
    return time.time_ns() // 1_000


@dataclass(eq=False)
class Rollup(LogJob, TurnJob):
    """The job `rollup` of one log and one lake.

    wall_us   the wall clock, in microseconds since 1970

    late      the number of events that were read when their windows were already final
    left_out  the number of rollups that were not published, since there were too many at a time
    unknown   the number of rollups that were not published, since the server does not take their channels
    before    the number of rollups that had been published before, with other figures
    """

    wall_us: Callable[[], int] = field(default=wall_us, kw_only=True)

    def __post_init__(self) -> None:
        """Resume where the table says; publish final windows that were not."""
        self.late = self.left_out = self.unknown = self.before = 0
        self.interval_s = self.options.rollup_s
        self._consumer = consumer("rollup", self.lake)
        self._source_options = self.source_options(lift=self.lift)
        options = SourceOptions(self._source_options)
        self._numbers = [name for name, kind in options.extraction.columns.items() if kind in ("double", "long")]
        self._types = {name: options.types[name] for name in (*EVENT_COLUMNS, *self._numbers)}
        self._reader = Table(options, self._types)
        self._log = self._reader.log
        self._totals = Totals(self._numbers)
        for name, value in _CONFIGURATION.items():
            self.spark.conf.set(name, value)
        head = self._log.head()
        self._table = self.table("rollups", head.log_id)
        self._log_id = head.log_id
        self._versions = {app: self._table.position(self._app(app)) for app in (_AT, _READ, _FINAL, _PUBLISHED)}
        version = self._versions[_AT]
        self._read = self._versions[_READ] or 0
        if self._read > head.next:
            head = caught_up(self._log, self._read, self.options.behind_s)
        if self._read > head.next:
            raise JobRejected(
                f"{self._table.folder} has rollups up to offset {self._read - 1}, and the log ends at "
                f"{head.next - 1}: it was set back; choose another --lake"
            )
        self.next = head.first if version is None else version
        self._final_us = self._versions[_FINAL] or 0
        self._open: pa.Table | None = None
        self._publish_committed()

    def counters(self) -> dict[str, int]:
        """Return the counters for the progress line."""
        return {
            "late": self.late,
            "not published": self.left_out,
            "of channels that the server does not take": self.unknown,
            "published before with other figures": self.before,
        }

    def step(self) -> Progress:
        """Do one turn: read, commit and publish. Raises `JobRejected`, `JobFailed`."""
        began = time.monotonic()
        wall = self.wall_us()  # before the log's end is read: later events are younger
        head = max(caught_up(self._log, self.next, self.options.behind_s).next, self.next)
        first, until = self.next, min(head, self.next + self.options.batch_rows)
        if first < self._read:
            until = min(until, self._read)
        changed = self._add(first, until) if first < until else None
        is_all = until == head
        newest = pc.max(changed["newest_us"]).as_py() if changed is not None else None
        self.next, self._read = until, max(self._read, until)
        late_us = round(self.options.late_s * 1_000_000)
        self._final_us = watermark(self._final_us, late_us, newest, wall if is_all else None)
        finals = self._finals()
        if is_all and changed is not None:
            self._publish(self._rows(self._still_open(changed)), until)
        if finals or until - (self._versions[_READ] or 0) >= self.options.batch_rows:
            self._commit(finals)
        self._publish_committed(finals)
        return Progress(until, head, until - first, time.monotonic() - began)

    # Adding up

    def _add(self, first: int, until: int) -> pa.Table:
        """Read a range and add it to the open windows; return the totals that it has changed."""
        try:
            are_few = until - first <= _READ_HERE_ROWS and (self._open is None or self._open.num_rows <= _FEW_OPEN)
            found = self._totals.of(self._events(first, until), self._open, are_few=are_few).toArrow()
        except Exception as error:
            raise cause_of(error) from error
        changed = self._still_open(found)
        if first >= (self._versions[_READ] or 0):
            shut = found.filter(pc.less_equal(found["end_us"], self._final_us))
            shortest = shut.filter(pc.equal(shut["window"], KINDS[0].name))
            self.late += pc.sum(shortest["events"]).as_py() or 0
        if self._open is None:
            self._open = changed
        else:
            is_replaced = pc.is_in(_keys(self._open), _keys(changed))
            self._open = pa.concat_tables([self._open.filter(pc.invert(is_replaced)), changed])
        return found

    def _events(self, first: int, until: int) -> DataFrame:
        """Return the events of a range. A small range is read here: a task for a worker costs more than the reading."""
        if until - first <= _READ_HERE_ROWS:
            rows = self._reader.table(first, until, _READ_HERE_BYTES)
            if rows is not None:
                return self.spark.createDataFrame(rows)
        options = self._source_options | self._log.options | {"from_offset": str(first), "until_offset": str(until)}
        schema = ", ".join(f"`{name}` {kind}" for name, kind in self._types.items())
        return self.spark.read.format("halley").schema(schema).options(**options).load()

    def _still_open(self, totals: pa.Table) -> pa.Table:
        return totals.filter(pc.greater(totals["end_us"], self._final_us))

    def _finals(self) -> list[Row]:
        """Remove the windows that have become final from the open ones, and return their rows."""
        if self._open is None:
            return []
        is_final = pc.less_equal(self._open["end_us"], self._final_us)
        if not pc.any(is_final).as_py():
            return []
        finals = self._open.filter(is_final)
        self._open = self._open.filter(pc.invert(is_final)).combine_chunks()
        return self._rows(finals)

    def _rows(self, totals: pa.Table) -> list[Row]:
        return [self._row(each) for each in totals.to_pylist()]

    def _row(self, total: dict[str, Any]) -> Row:
        numbers = []
        for at, name in enumerate(self._numbers):
            count = total[f"count{at}"]
            if count:
                least, greatest = total[f"min{at}"], total[f"max{at}"]
                figures = {"count": count, "min": float(least), "mean": total[f"sum{at}"] / count}
                figures |= {"max": float(greatest), **dict(zip(QUANTILES, total[f"ranks{at}"], strict=True))}
                if isinstance(least, int):
                    figures |= {"min_long": least, "max_long": greatest}
                numbers.append((name, figures))
        row = {name: total[name] for name in (*KEY, "events", "bytes", "publishers")}
        return row | {"numbers": numbers, "day": _day(total["start_us"])}

    # Committing

    def _commit(self, finals: list[Row]) -> None:
        first_offsets = () if self._open is None else self._open["first_offset"].to_pylist()
        versions: dict[str, int] = {
            # A crash is resumed at the first event of any open window; one that opens later is newer than all before.
            _AT: max(min(first_offsets, default=self.next), self._versions[_AT] or 0),
            _READ: self._read,
            _FINAL: self._final_us,
        }
        if self.publisher is None:
            versions[_PUBLISHED] = self._final_us  # there is nothing to publish
        self._step(versions, finals)
        self._log.commit(self._consumer, versions[_AT])

    def _step(self, versions: Mapping[str, int], rows: list[Row]) -> None:
        table = pa.Table.from_pylist(rows, shapes.TABLES["rollups"].columns)
        labels = self._table.labels(LogSource(self.options.source, self._log_id))
        steps = [AppTransaction(self._app(app), self._versions[app], version) for app, version in versions.items()]
        commit_rows(self._table, labelled(table, labels), *steps)
        self._versions |= versions

    def _app(self, name: str) -> str:
        return self._table.app(name, self._log_id)

    # Publishing

    def _publish_committed(self, finals: Iterable[Row] | None = None) -> None:
        """Publish the final windows that the table has and that are not published yet.

        `finals` are their rows if the caller has them; else they are read from the table.
        """
        final, published = self._versions[_FINAL], self._versions[_PUBLISHED] or 0
        if self.publisher is None or final is None or final <= published:
            return
        if finals is None:
            wanted = (pc.field("end_us") > published) & (pc.field("day") >= _day(max(0, published - DAY_US)))
            own = self._table.files_of(self._log_id)
            with translate_read_errors(self._table.folder, own):
                finals = self._table.dataset(own).to_table(filter=wanted).to_pylist()
        self._publish(finals, None)
        self._step({_PUBLISHED: final}, [])

    def _publish(self, rows: Iterable[Row], until: int | None) -> None:
        """Publish the busiest rollups of each window, except those of other WAMP realms' topics.

        The names of these topics must not be known outside their realm. `until` is the offset up to which partial
        rollups are counted; None: the rollups are final.
        """
        if self.publisher is None:
            return
        windows: dict[tuple[str, int], list[Row]] = {}
        for row in rows:
            if not row["topic"].startswith(REALM_MARK):
                windows.setdefault((row["window"], row["end_us"]), []).append(row)
        messages = []
        for _, of_window in sorted(windows.items(), key=lambda each: each[0][1]):
            of_window.sort(key=lambda row: (-row["events"], row["topic"], row["protocol"]))
            busiest = of_window[: self.options.channels]
            self.left_out += len(of_window) - len(busiest)
            messages += [self._message(row, until) for row in busiest]
        refused, before = self.publisher.publish(messages)
        self.unknown += refused
        self.before += before

    def _message(self, row: Row, until: int | None) -> IdempotentPublish:
        channel = to_channel(row["topic"])
        data = {
            "channel": channel,
            "name": name_of(row["topic"], row["protocol"]),
            "protocol": row["protocol"],
            "window": row["window"],
            "start": to_text(row["start_us"]),
            "end": to_text(row["end_us"]),
            "events": row["events"],
            "bytes": row["bytes"],
            "publishers": row["publishers"],
            "numbers": {name: _published(figures) for name, figures in row["numbers"]},
            "final": until is None,
            **({"source": self.options.source} if self.options.source else {}),
        }
        version = "final" if until is None else until
        which = f"{self._log_id} {row['protocol']} {row['topic']}"
        key = key_of("rollup", row["window"], row["start_us"] // 1_000_000, version, which)
        return IdempotentPublish(f"/stats/{row['window']}{channel}", data, key)


def _published(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a lifted column as they are published: with a long's own least and greatest value."""
    exact = {name: figures.get(f"{name}_long") for name in ("min", "max")}
    known = {name: figures[name] for name in ("count", "min", "mean", "max", *QUANTILES)}
    return known if exact["min"] is None else known | exact


def _keys(totals: pa.Table) -> pa.Array:
    texts = [totals[name].cast(pa.string()) for name in KEY]
    return pc.binary_join_element_wise(*texts, "\0", null_handling="replace", null_replacement="\0").combine_chunks()


def _day(time_us: int) -> date:
    return datetime.fromtimestamp(time_us // 1_000_000, UTC).date()


def watermark(final_us: int, late_us: int, newest_us: int | None, wall_us: int | None) -> int:
    """Return the watermark after a turn: windows that end at it or before are final, later events for them late.

    An event lies in one window of each kind, by the time that the broker gave it. Windows become final in the order of
    their ends, so one instant decides for all of them. It never decreases, even if a clock is set back.

    final_us   the watermark until now
    late_us    how long after its end a window stays open for events that are out of order
    newest_us  the time of the newest event that was read; None: nothing was read
    wall_us    the wall clock, which makes windows final when there are no more events; read *before* the log's end is,
               and None unless the reader has read the whole log
    """
    return max([final_us, *(each - late_us for each in (newest_us, wall_us) if each is not None)])
