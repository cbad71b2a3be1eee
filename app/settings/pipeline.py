"""Settings of the data pipeline: the jobs that read the log with Spark. The server does not use them."""

from dataclasses import MISSING, dataclass
from typing import Literal

from app.settings.knob import knob

Scalar = Literal["double", "long", "string", "boolean"]
"""The types of lifted columns, by Spark's names."""


@dataclass(frozen=True, slots=True)
class Lift:
    """One lifted column, a table [[lift]]: a scalar at the same place of many payloads gets its own column in the lake.

    The column is null where the scalar is missing or has another type.
    """

    pattern: str = knob(MISSING, why="the channels: one, or a pattern such as /chat/*, /chat/** or /**")
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
        "", why="the folder of the Delta tables, which all nodes must share; empty: lake in the data folder"
    )
    master: str = knob(
        "local[*]", why="where Spark runs; local[*]: on this machine's cores; or spark://, k8s:// or yarn"
    )
    driver_memory: str = knob("2g", why="memory of Spark's driver; rollups of a few thousand channels use 800 MB")
    batch_rows: int = knob(
        500_000, unit="events", low=1_000, why="in one commit; after a crash at most these are read again"
    )
    partition_rows: int = knob(50_000, unit="events", low=100, why="in one task; small enough to share the work evenly")
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
        60.0, unit="s", low=1, why="for results to reach the server; then the job ends with an error"
    )
    vacuum_age: str = knob(
        "7d", why="how long files are kept that no table uses any more; readers may still have them open"
    )
