"""Settings of the history, and of the data pipeline that reads it."""

from dataclasses import MISSING, dataclass
from typing import Literal

from halley.settings.knob import knob


@dataclass(frozen=True, slots=True)
class Record:
    """One rule of the history, a table [[record]].

    The first rule whose pattern matches a topic decides whether its events are kept, and for how long. After all these
    there are two built-in rules: the server's own topics for 72 h, not durable, and all others for 72 h, durable.
    `/service/**` is recorded only by a rule that names it.
    """

    pattern: str = knob(MISSING, why="a channel, or a pattern such as /chat/*, /chat/** or /**")
    age: str = knob("72h", why='how long events can be replayed, such as 90s, 30m, 72h, 7d; "0": not recorded at all')
    durable: bool = knob(
        default=True, why="events are on disk before they are delivered and acknowledged; false: written afterwards"
    )
    realm: str = knob("", why="the WAMP realm; empty: the first one, whose channels all protocols share")


@dataclass(frozen=True, slots=True)
class History:
    """The durable event history. [[record]] sets what is recorded, and for how long."""

    enabled: bool = knob(
        default=True, why="off: events are kept in memory only; they cannot be replayed and do not outlive the server"
    )
    max_bytes: int = knob(
        1_073_741_824,
        unit="bytes",
        low=1_048_576,
        why="of the whole log on disk; beyond it the oldest segments are deleted",
    )
    anonymous_share: float = knob(
        0.25,
        unit="of max_bytes/h",
        low=0,
        high=1,
        zero="no limit",
        why="that an anonymous address writes where the log is nearly full, access rules are written, and events of "
        "others are in it; then 403",
    )
    anonymous_burst_bytes: int = knob(
        4_194_304, unit="bytes", low=65_536, why="that such an address can write at once after a silence"
    )
    segment_bytes: int = knob(
        67_108_864, unit="bytes", low=65_536, why="after which a segment is sealed; retention deletes whole segments"
    )
    free_bytes: int = knob(
        268_435_456,
        unit="bytes",
        low=0,
        zero="no minimum",
        why="of free disk space; below it durable publishes are refused",
    )
    inbox_bytes: int = knob(
        67_108_864, unit="bytes", low=65_536, why="of events that wait to be written; beyond it publishes get 503"
    )
    commit_s: float = knob(
        10.0, unit="s", low=0.1, why="a publish that is not on disk by then gets 503: its outcome is unknown"
    )
    tail_bytes: int = knob(
        1_048_576,
        unit="bytes",
        low=0,
        zero="all are read from disk",
        why="of the newest events that are kept in memory, for sessions that resume",
    )
    consumer_grace_s: float = knob(
        3_600.0,
        unit="s",
        low=0,
        zero="retention does not wait for consumers",
        why="how long retention waits for consumers; meanwhile the log can grow to 1.5 times max_bytes",
    )
    consumers: int = knob(
        100,
        unit="consumers",
        low=1,
        why="programs that read the whole log and for which retention waits; then 409 until one is deleted",
    )
    readers: int = knob(
        2, unit="threads", low=1, high=64, why="that read from disk at the same time; further reads wait"
    )
    switch_s: float = knob(
        0.0005,
        unit="s",
        low=0.00005,
        high=0.005,
        why="Python's switch interval in a server; with Python's default, 5 ms, the writer gets a third done",
    )
    page_events: int = knob(300, unit="events", low=1, high=1_000, why="in one page of a replay or a query")
    page_bytes: int = knob(
        524_288, unit="bytes", low=65_536, why="in one page of a replay or a query; one event always fits"
    )
    read_s: float = knob(10.0, unit="s", low=0.1, why="if a page cannot be read by then, the reply is sent without it")
    keys: int = knob(
        100_000,
        unit="keys",
        low=0,
        zero="repeats are not recognized",
        why="idempotency keys that are remembered; beyond it those of the anonymous go first",
    )
    key_age_s: float = knob(600.0, unit="s", low=1, why="how long an idempotency key is remembered")
    key_chars: int = knob(128, unit="characters", low=16, high=1_024, why="longer idempotency keys are refused")


Scalar = Literal["double", "long", "string", "boolean"]
"""The types of lifted columns, by Spark's names."""


@dataclass(frozen=True, slots=True)
class Lift:
    """One lifted column, a table [[lift]]: a scalar at the same place of many payloads gets its own column in the lake.

    The column is null where the scalar is missing or has another type; the table `mismatches` has how often it had one.
    """

    pattern: str = knob(
        MISSING,
        why="the channels: one, or a pattern such as /chat/*, /chat/** or /**; or a name in WAMP or NetworkTables",
    )
    pointer: str = knob(
        MISSING,
        why="the place in the payload, a JSON Pointer (RFC 6901): /price, /position/0; empty: the whole payload",
    )
    column: str = knob(MISSING, why="the column's name; several tables can fill one column from different patterns")
    type: Scalar = knob(  # noqa: RUF009 - a field, as everywhere
        MISSING, why="the column's type; double or long for numbers"
    )


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The pipeline's jobs; each can be killed and started again at any time."""

    lake: str = knob(
        "",
        why="the folder of the Delta tables, which all nodes must share, or s3://BUCKET/PATH; empty: lake in the data "
        "folder",
    )
    source: str = knob("", why="the name of the log in a lake with the logs of several servers; empty: it has none")
    master: str = knob(
        "local[*]", why="where Spark runs; local[*]: on this machine's cores; or spark://, k8s:// or yarn"
    )
    driver_memory: str = knob("2g", why="memory of Spark's driver; rollups of a few thousand channels use 800 MB")
    batch_rows: int = knob(
        500_000, unit="events", low=1_000, why="in one commit; after a crash at most these are read again"
    )
    partition_rows: int = knob(50_000, unit="events", low=100, why="in one task; small enough to share the work evenly")
    behind_s: float = knob(
        30.0,
        unit="s",
        low=0,
        zero="not at all",
        why="how long to wait for a log that ends before what was read of it: one of several keepers may be behind",
    )
    ingest_s: float = knob(5.0, unit="s", low=0.1, why="between two commits of a live ingest; each writes small files")
    compact_s: float = knob(
        60.0, unit="s", low=0, zero="never", why="how often a live ingest checks for small files to compact"
    )
    compact_files: int = knob(
        200,
        unit="files",
        low=2,
        why="of one day and protocol, after which they are compacted; about ten minutes of commits",
    )
    niceness: int = knob(
        10,
        unit="nice",
        low=0,
        high=19,
        zero="normal priority",
        why="of Spark, so that the server has priority when both need a core",
    )
    rollup_s: float = knob(1.0, unit="s", low=0.1, why="how often new events are read, and rollups are published")
    late_s: float = knob(
        10.0, unit="s", low=0, zero="at its end", why="how long after its end a window is final; clocks can be set back"
    )
    channels: int = knob(
        1_000, unit="channels", low=1, why="whose rollups are published, the busiest of a window; the table has all"
    )
    spike_factor: float = knob(
        5.0, unit="times", low=1.1, why="an alert if a channel's rate is at least this many times its usual rate"
    )
    spike_events: int = knob(
        50, unit="events", low=1, why="that such an alert needs within 10 s; small numbers vary by chance"
    )
    silence_s: float = knob(60.0, unit="s", low=1, why="an alert if a steady channel has no events for this long")
    publish_s: float = knob(
        120.0,
        unit="s",
        low=1,
        why="without a result that reaches the server, after which the job fails; an outage of a minute is waited for",
    )
    vacuum_age: str = knob(
        "7d", why="how long files are kept that no table uses any more; readers may still have them open"
    )
