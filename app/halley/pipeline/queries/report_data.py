"""The figures of the report, computed from a few columns of the events, the other tables, and the Delta log.

Rows are counted by delta-rs's own SQL, so the lake may be larger than memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from pyarrow import fs

from halley.pipeline.errors import no_lake
from halley.pipeline.lake.place import LakePath, at_once
from halley.pipeline.lake.shapes import TABLES
from halley.pipeline.lake.tables import LakeTable, check_files, open_table, path, select, translate_read_errors

TOP_CHANNELS = 15
MOST_BARS = 120
MOST_ALERTS = 200
MOST_LOSSES = 50

_STEPS_S = (1, 5, 10, 30, 60, 300, 600, 1_800, 3_600, 10_800, 21_600, 43_200, 86_400, 604_800, 2_592_000)
_MOST_COMMITS = 20_000
_NEVER_US = 1 << 62


class Holding(NamedTuple):
    """The size of a table; all 0 if it does not exist."""

    name: str
    rows: int
    files: int
    nbytes: int


class Commit(NamedTuple):
    """A batch of ingest: when it was committed, its number of events, and when the first and last were published."""

    at_us: int
    events: int
    oldest_us: int
    newest_us: int


class ReportData(NamedTuple):
    """All figures of the report. Times are in microseconds since 1970.

    logs        the ids of the logs, with the names of their sources
    from_us     the first time of the report
    to_us       the end of the report, which is not part of it
    step_us     the length of each bar of `bars`
    bars        the numbers of events, by protocol and by the beginning of the bar
    channels    the busiest topics and their numbers of events, the busiest first
    topics      the number of topics
    commits     batches of ingest, in the order of time
    alerts      the latest alerts, newest first; their total is in `holdings`
    losses      the first rows of `gaps` and `rejected`: kind of loss, reason, first and last offset
    holdings    the sizes of all tables
    """

    logs: str
    from_us: int
    to_us: int
    step_us: int
    bars: Mapping[str, Mapping[int, int]]
    channels: list[tuple[str, int]]
    topics: int
    commits: list[Commit]
    alerts: list[dict[str, Any]]
    losses: list[tuple[str, str, int, int]]
    holdings: list[Holding]

    @property
    def events(self) -> int:
        """The number of events from `from_us` to `to_us`."""
        return sum(sum(each.values()) for each in self.bars.values())


def collect(lake: LakePath, from_us: int | None, to_us: int | None) -> ReportData:
    """Return the figures of the events published from `from_us` on and before `to_us`; None: without that bound.

    Raises `JobRejected`, `JobFailed`.
    """
    tables = {name: open_table(lake, name) for name in TABLES}
    events = tables["events"]
    if events is None:
        raise no_lake(lake)
    for name in ("events", "alerts", "gaps", "rejected"):
        table = tables[name]
        if table is not None:
            check_files(path(lake, name), table.data_files())
    with translate_read_errors(lake):
        first_us, last_us = _span(events, from_us, to_us)
        length_s = (last_us - first_us) / 1_000_000
        step_us = 1_000_000 * next((step for step in _STEPS_S if length_s < step * MOST_BARS), 31_536_000)
        channels, topics = _topics(events, first_us, last_us)
        return ReportData(
            logs=", ".join(
                f"log {log_id}" + f" of {source}" * bool(source) for source, log_id in events.sources.origins
            ),
            from_us=first_us,
            to_us=last_us + 1,
            step_us=step_us,
            bars=_bars(events, first_us, last_us, step_us),
            channels=channels,
            topics=topics,
            commits=[each for each in _commits(events) if from_us is None or each.newest_us >= from_us],
            alerts=_latest(tables["alerts"], from_us, to_us),
            losses=[*_losses(tables["gaps"], "gap"), *_losses(tables["rejected"], "rejected")][:MOST_LOSSES],
            holdings=[_holding(name, table) for name, table in tables.items()],
        )


def _span(events: LakeTable, from_us: int | None, to_us: int | None) -> tuple[int, int]:
    """The first and the last time of the report, inclusive: the requested times, limited to those of the events."""
    files = events.data_files()
    first = min((file.least["time_us"] for file in files if "time_us" in file.least), default=0)
    last = max((file.greatest["time_us"] for file in files if "time_us" in file.greatest), default=0)
    first = first if from_us is None else max(first, from_us)
    return first, max(first, last if to_us is None else min(last, to_us - 1))


def _bars(events: LakeTable, first_us: int, last_us: int, step_us: int) -> dict[str, dict[int, int]]:
    """Count events by protocol and beginning of the bar."""
    bars: dict[str, dict[int, int]] = {}
    for each in select(
        f"""
        select coalesce(protocol, '?') as protocol, time_us - time_us % {step_us} as start, count(*) as events
        from events where time_us between {first_us} and {last_us} group by 1, 2
        """,  # noqa: S608 - numbers
        events=events,
    ).to_pylist():
        bars.setdefault(each["protocol"], {})[each["start"]] = each["events"]
    return bars


def _topics(events: LakeTable, first_us: int, last_us: int) -> tuple[list[tuple[str, int]], int]:
    """Return the busiest topics with their numbers of events, and the number of all topics."""
    found = select(
        f"""
        select topic, events, count(*) over () as topics from (
            select topic, count(*) as events from events where time_us between {first_us} and {last_us} group by topic
        ) order by events desc, topic limit {TOP_CHANNELS}
        """,  # noqa: S608 - numbers
        events=events,
    ).to_pylist()
    return [(each["topic"], each["events"]) for each in found], found[0]["topics"] if found else 0


def _commits(events: LakeTable) -> list[Commit]:
    """The batches of ingest that the Delta log still has, including those whose files were rewritten since."""
    found, files = [], events.files
    log = files.get_file_info(fs.FileSelector("_delta_log"))
    entries = sorted(each.path for each in log if re.fullmatch(r"\d+\.json", each.base_name))

    def lines(entry: str) -> list[bytes]:
        with files.open_input_stream(entry) as opened:
            return bytes(opened.read()).splitlines()

    for entry in at_once(events.folder, lines, entries[-_MOST_COMMITS:]):
        at_us, adds = 0, []
        for line in entry:
            action = json.loads(line)
            at_us = int(action.get("commitInfo", {}).get("timestamp", 0)) * 1_000 or at_us
            if action.get("add", {}).get("dataChange"):
                adds.append(json.loads(action["add"].get("stats") or "{}"))
            if "remove" in action and action["remove"].get("dataChange"):
                adds = []  # an erasure, which adds only rows that existed before
                break
        bounds = [
            (each["numRecords"], each["minValues"]["time_us"], each["maxValues"]["time_us"])
            for each in adds
            if each.get("numRecords") and "time_us" in each.get("minValues", {}) and "time_us" in each["maxValues"]
        ]
        if bounds and at_us:
            rows, oldest, newest = zip(*bounds, strict=True)
            found.append(Commit(at_us, sum(rows), min(oldest), max(newest)))
    return found


def _latest(alerts: LakeTable | None, from_us: int | None, to_us: int | None) -> list[dict[str, Any]]:
    query = f"""
        select at_us, topic, protocol, kind, rate, usual from alerts
        where at_us >= {from_us or 0} and at_us < {to_us or _NEVER_US} order by at_us desc limit {MOST_ALERTS}
    """  # noqa: S608 - numbers
    return [] if alerts is None else list(select(query, alerts=alerts).to_pylist())


def _losses(table: LakeTable | None, kind: str) -> list[tuple[str, str, int, int]]:
    if table is None:
        return []
    source = ", source" * table.has_labels
    query = f'select "first", "last", reason{source} from losses order by "first" limit {MOST_LOSSES}'  # noqa: S608 - a number
    return [
        (f"{kind} of {each['source']}" if each.get("source") else kind, each["reason"], each["first"], each["last"])
        for each in select(query, losses=table).to_pylist()
    ]


def _holding(name: str, table: LakeTable | None) -> Holding:
    files = [] if table is None else table.data_files()
    return Holding(name, sum(file.rows or 0 for file in files), len(files), sum(file.nbytes for file in files))
