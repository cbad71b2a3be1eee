"""The logs of a lake: which there are, under which names, and from which of them rows are.

A lake can be filled from the logs of several servers, each under a name, its *source*. One of them can go without a
name: a lake with one log needs none, and is written as if there were no others. An event is identified by its log and
its offset there, so each log is as exact in the lake as if it were alone:

- The table `events` has the names and their logs as its property `halley.sources`, unless there is only one log without
  a name. A log has one name. Another log under a name that is taken is refused, unless the operator says that it
  replaces the one before, which is lost; the rows of that one stay.
- The columns `source` and `log_id` (`LABELS`) are added to a table with the first named log. They are null in rows of
  the log that the tables were made from, `halley.log_id`, if it has no name.
- A file has rows of one log only. So its statistics say of which, also to a query with `source = 'west'`.
- A job has a position in each log. Its app version is `JOB` for the log that the tables were made from, and
  `JOB/LOG_ID` for another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import orjson
import pyarrow as pa

from halley.pipeline.errors import JobRejected

LABELS = pa.schema([("source", pa.string()), ("log_id", pa.string())])
"""The columns that say from which log a row is."""

_Rows = TypeVar("_Rows", pa.Table, pa.RecordBatch)


class LogSource(NamedTuple):
    """A log, and the name of its source in the lake; empty: it has none."""

    source: str
    log_id: str


class Sources(NamedTuple):
    """The logs of a lake.

    first   the id of the log that the tables were made from
    logs    the ids of each source's logs, by its name; the last one is the present one, those before it are lost
    """

    first: str
    logs: Mapping[str, tuple[str, ...]]

    @property
    def is_plain(self) -> bool:
        """Whether there is only one log, without a name."""
        return self.logs == {"": (self.first,)}

    @property
    def labels(self) -> list[pa.Field]:
        """The columns by which rows of these logs differ: `LABELS`, or none where there is only one without a name."""
        return [] if self.is_plain else [*LABELS]

    @property
    def origins(self) -> list[LogSource]:
        """All logs, those of a source in the order in which they came."""
        return [LogSource(source, log_id) for source, ids in self.logs.items() for log_id in ids]

    def origin(self, log_id: str) -> LogSource:
        """Return a log of the lake with the name of its source."""
        return next(each for each in self.origins if each.log_id == log_id)

    @property
    def names(self) -> str:
        """The names of the sources, for people."""
        named = ", ".join(name for name in self.logs if name)
        return (
            named if "" not in self.logs else f"{named} and a log without a name" if named else "a log without a name"
        )

    def only(self) -> LogSource:
        """Return the only log. Raises `JobRejected` if there are several."""
        if len(self.origins) > 1:
            raise self._is_ambiguous()
        return self.origins[0]

    def of(self, source: str | None) -> list[LogSource]:
        """Return the logs of a source; without a name, those of the lake's only source. Raises `JobRejected`."""
        if source is None and len(self.logs) > 1:
            raise self._is_ambiguous()
        found = [each for each in self.origins if source is None or each.source == source]
        if not found:
            raise JobRejected(f"the lake has no source {source}: it has {self.names}")
        return found

    def _is_ambiguous(self) -> JobRejected:
        return JobRejected(f"the lake has events of {self.names}: choose with --source")

    def as_text(self) -> str:
        """Return the names and logs as the text of a table's property."""
        return orjson.dumps(self.logs).decode()


def with_log_added(before: Sources | None, origin: LogSource, lake: object, *, accepts_new_log: bool) -> Sources:
    """Return the logs of a lake, which may not exist yet, with one that a job reads.

    `accepts_new_log`: it may replace the present log of its source. Raises `JobRejected` if the lake may not take it.
    """
    source, log_id = origin
    if before is None:
        return Sources(log_id, {source: (log_id,)})
    known = next((each.source for each in before.origins if each.log_id == log_id), None)
    if known is not None and known != source:
        wanted = f"as source {known}: give --source {known}" if known else "without a name: give no --source"
        raise JobRejected(f"log {log_id} is in {lake} already, {wanted}")
    ids = before.logs.get(source, ())
    if not ids and not source:
        raise JobRejected(
            f"{lake} has the sources {before.names}: --source says which of them log {log_id} is, or adds it"
        )
    if ids and ids[-1] != log_id and not accepts_new_log:
        raise JobRejected(_refusal(lake, origin, ids[-1]))
    return before._replace(logs={**before.logs, source: (*(each for each in ids if each != log_id), log_id)})


def _refusal(lake: object, origin: LogSource, present: str) -> str:
    if origin.source:
        return (
            f"source {origin.source} of {lake} is log {present}, but this is log {origin.log_id}: choose another "
            "--source, or --accept-new-log if the other log is lost and this one takes its place"
        )
    return (
        f"{lake} was made from log {present}, but this is log {origin.log_id}: choose another --lake, or --source "
        "NAME to add this log to it, or --accept-new-log if the other log is lost and this one takes its place"
    )


def sources_from(text: str | None, first: str) -> Sources:
    """Return the logs that a property's text names; None: only the one that the tables were made from."""
    if text is None:
        return Sources(first, {"": (first,)})
    return Sources(first, {name: tuple(ids) for name, ids in orjson.loads(text).items()})


def check_labels(sources: Sources, lifted: pa.Schema, before: pa.Schema | None) -> None:
    """Raise `JobRejected` if a lifted column has the name of one of `LABELS`, and the lake needs these.

    `before` are the columns of `events` where that has no labels yet.
    """
    if not sources.is_plain:
        for name in LABELS.names:
            if name in lifted.names or (before is not None and name in before.names):
                raise JobRejected(f"a lake with named logs has its own column {name}, so it cannot have a lifted one")


def labelled(rows: _Rows, labels: Mapping[str, str | None]) -> _Rows:
    """Return rows with the values of `LABELS` that they all have; without values, the rows as they are."""
    for name, value in labels.items():
        rows = rows.append_column(name, pa.repeat(pa.scalar(value, pa.string()), rows.num_rows))
    return rows
