"""Sessions that have ended, from the events on `/halley/sessions`: their users, reasons and durations.

The job reads the lake's events, not the log, in their order and without Spark. It resumes where its table says: the app
version `sessions` is the offset from which it reads again, the opening of the oldest open session; `sessions/read` is
the offset it has read up to. It follows the sessions of each log by itself: a session is one of a server.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from halley.broker.names import Match, Pattern
from halley.pipeline.errors import JobRejected
from halley.pipeline.jobs.run import Progress, TurnJob
from halley.pipeline.lake import shapes, tables
from halley.pipeline.lake.commit import AppTransaction, commit_rows
from halley.pipeline.lake.place import LakePath
from halley.pipeline.lake.sources import LogSource, labelled
from halley.pipeline.lake.tables import LakeTable, translate_read_errors
from halley.pipeline.queries.events import EventReader, Selection

SESSIONS = "halley/sessions"
"""The topic of the server's events about sessions."""

_AT, _READ = "sessions", "sessions/read"
_AGAIN_US = 60_000_000
"""A client that opens a session within a minute of its last one's end has reconnected."""

_LONGEST_US = 30 * 86_400_000_000
"""A session open for longer is given up: its server was killed, and could not publish that the session had ended."""

_ROWS_AT_ONCE = 50_000

Row = dict[str, Any]
"""A row of the table `sessions`."""


class Open(NamedTuple):
    """A session that has not ended yet; `reconnects`: how many times in a row its client has reconnected."""

    offset: int
    time_us: int
    event: dict[str, Any]
    reconnects: int


class SessionTracker:
    """Follows sessions from event to event, in the order of their offsets.

    first   the offset of the first event that it is given
    read    events below this offset were read before a restart: they restore the open sessions, and make no rows
    known   the rows that were made from those events, and the rows of sessions that ended shortly before
    """

    def __init__(self, first: int = 0, read: int = 0, known: Iterable[Row] = ()) -> None:
        self.open: dict[str, Open] = {}
        self._read = read
        self._known: dict[int, tuple[str, int]] = {}  # by the offset of the end: the client, and its reconnects
        self._left: dict[str, tuple[int, int]] = {}  # by client: when its last session ended, and its reconnects
        for row in sorted(known, key=lambda row: row["last_offset"]):
            if row["last_offset"] >= first:
                self._known[row["last_offset"]] = _who(row), row["reconnects"]
            elif row["closed_us"] is not None:
                self._on_end(_who(row), row["reconnects"], row["closed_us"])

    def on_event(self, offset: int, time_us: int, payload: str) -> list[Row]:
        """Take the next event (its time in microseconds, its payload as JSON); return the rows of sessions it ended."""
        event = orjson.loads(payload)
        if not isinstance(event, dict) or not isinstance(event.get("session"), str):
            return []
        if event.get("event") == "opened":
            return self._on_opened(offset, time_us, event)
        return self._on_closed(offset, time_us, event) if event.get("event") == "closed" else []

    def _on_opened(self, offset: int, time_us: int, event: dict[str, Any]) -> list[Row]:
        left_us, reconnects = self._left.get(_who(event), (None, 0))
        is_back = left_us is not None and 0 <= time_us - left_us <= _AGAIN_US
        self.open[event["session"]] = Open(offset, time_us, event, reconnects + 1 if is_back else 0)
        given_up = []
        while (oldest := next(iter(self.open.values()))).time_us < time_us - _LONGEST_US:
            del self.open[oldest.event["session"]]
            given_up.append(_row(oldest.event, oldest, oldest.offset, None, None))
        return given_up

    def _on_closed(self, offset: int, time_us: int, event: dict[str, Any]) -> list[Row]:
        opened = self.open.pop(event["session"], None)
        whole = event if opened is None else opened.event
        who, reconnects = _who(whole), 0 if opened is None else opened.reconnects
        self._on_end(*self._known.pop(offset, (who, reconnects)), time_us)
        return [] if offset < self._read else [_row(whole, opened, offset, time_us, event.get("reason"))]

    def _on_end(self, who: str, reconnects: int, time_us: int) -> None:
        if who:
            self._left.pop(who, None)  # the dict is kept in the order of the ends
            self._left[who] = (time_us, reconnects)
            while self._left[first := next(iter(self._left))][0] < time_us - _AGAIN_US:
                del self._left[first]


def _who(event: dict[str, Any]) -> str:
    return str(event.get("authid") or event.get("address") or "")


def _row(event: dict[str, Any], opened: Open | None, offset: int, closed_us: int | None, reason: Any) -> Row:
    opened_us = None if opened is None else opened.time_us
    return {
        **{name: event.get(name) for name in ("session", "protocol", "authid", "role", "address")},
        "opened_us": opened_us,
        "closed_us": closed_us,
        "length_s": None if opened_us is None or closed_us is None else max(0, closed_us - opened_us) / 1e6,
        "reason": reason,
        "reconnects": 0 if opened is None else opened.reconnects,
        "first_offset": offset if opened is None else opened.offset,
        "last_offset": offset,
    }


class Sessions(TurnJob):
    """The job `sessions` of one lake."""

    interval_s = 10.0

    def __init__(self, lake: LakePath) -> None:
        """Create the table `sessions` if there is none. Raises `JobRejected` where the lake has no table `events`."""
        self._lake = lake
        self._table = tables.create_next_to(self._events(), "sessions")

    def step(self) -> Progress:
        """Do one turn: read what is new in the table `events`. Raises `JobRejected`, `JobFailed`."""
        began = time.monotonic()
        events = self._events()
        self._table = tables.create_next_to(events, "sessions")
        rows = total = 0
        for origin in events.sources.origins:
            until = events.position(events.app(tables.INGEST, origin.log_id)) or 0
            read = self._position(_READ, origin) or 0
            if until > read:
                rows += self._follow(origin, self._position(_AT, origin) or 0, read, until)
            total += until
        return Progress(total, total, rows, time.monotonic() - began)

    def _position(self, app: str, origin: LogSource) -> int | None:
        return self._table.position(self._table.app(app, origin.log_id))

    def _follow(self, origin: LogSource, first: int, read: int, until: int) -> int:
        """Read a range of a log, and commit the sessions that ended in it; return the number of events."""
        count, ended, tracker = 0, [], None
        for offset, time_us, payload in self._session_events(origin, first, until):
            if tracker is None:
                tracker = SessionTracker(first, read, self._known(origin, first, time_us - _AGAIN_US))
            ended += tracker.on_event(offset, time_us, payload)
            count += 1
            if len(ended) >= _ROWS_AT_ONCE:
                self._commit(origin, ended, tracker, offset + 1)
                ended = []
        self._commit(origin, ended, tracker, until)
        return count

    def _commit(self, origin: LogSource, ended: list[Row], tracker: SessionTracker | None, read: int) -> None:
        oldest = next(iter(tracker.open.values()), None) if tracker is not None else None
        versions = {_AT: read if oldest is None else oldest.offset, _READ: read}
        steps = []
        for app, version in versions.items():
            before = self._position(app, origin)
            steps.append(AppTransaction(self._table.app(app, origin.log_id), before, max(version, before or 0)))
        rows = pa.Table.from_pylist(ended, shapes.TABLES["sessions"].columns)
        commit_rows(self._table, labelled(rows, self._table.labels(origin)), *steps)

    def _events(self) -> LakeTable:
        table = tables.open_table(self._lake, "events")
        if table is None:
            raise JobRejected(f"{tables.path(self._lake, 'events')} does not exist: `halley pipeline ingest` makes it")
        return table

    def _session_events(self, origin: LogSource, first: int, until: int) -> Iterator[tuple[int, int, str]]:
        """Yield the offset, time and payload of each event on the topic, in order. Files without any are not opened."""
        wanted = Selection(Pattern(Match.EXACT, SESSIONS))
        for rows in EventReader(self._lake, wanted, origin.log_id).rows(first - 1):
            yield from ((row["offset"], row["time_us"], row["payload"]) for row in rows if row["offset"] < until)

    def _known(self, origin: LogSource, first: int, since_us: int) -> list[Row]:
        """Return the rows of sessions that ended at the offset `first` or later, or at the time `since_us` or later."""
        wanted = (pc.field("last_offset") >= first) | (pc.field("closed_us") >= since_us)
        names = ["authid", "address", "closed_us", "reconnects", "last_offset"]
        own = self._table.files_of(origin.log_id)
        with translate_read_errors(self._table.folder, own):
            found: list[Row] = self._table.dataset(own).to_table(columns=names, filter=wanted).to_pylist()
        return found
