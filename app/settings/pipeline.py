"""Settings of the data pipeline: the jobs that read the log with Spark. The server takes no notice of them."""

from dataclasses import MISSING, dataclass
from typing import Literal

from app.settings.knob import knob

Scalar = Literal["double", "long", "string", "boolean"]
"""What a lifted column can be: Spark's names."""


@dataclass(frozen=True, slots=True)
class Lift:
    """One column, a table [[lift]]: a scalar that stands at the same place in many payloads gets a column of its own in
    the lake. Where it is of another type, or not there, the column is null.
    """  # noqa: D205 - two sentences that belong together

    pattern: str = knob(MISSING, why="whose payloads: a channel, or a pattern such as /chat/*, /chat/** or /**")
    pointer: str = knob(
        MISSING, why="where in them, as a JSON Pointer (RFC 6901): /price, /position/0; empty: all of it"
    )
    column: str = knob(MISSING, why="its name; several tables may fill one column from different patterns")
    type: Scalar = knob(  # noqa: RUF009 - a field, as everywhere
        MISSING, why="numbers that are to be added up are double or long"
    )


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The pipeline's jobs, each of which can be killed and started again at any time."""

    lake: str = knob("", why="the folder of the Delta tables; empty: lake in the data folder; all nodes must share it")
    master: str = knob("local[*]", why="where Spark runs: this machine's cores, or spark://, k8s:// or yarn")
    driver_memory: str = knob("2g", why="800 MB are used by rollups of a few thousand channels")
    batch_rows: int = knob(500_000, unit="events", low=1_000, why="in one commit; what a crash costs is read again")
    partition_rows: int = knob(50_000, unit="events", low=100, why="for one task; small enough to share out evenly")
    ingest_s: float = knob(5.0, unit="s", low=0.1, why="between two commits of a live ingest: each makes small files")
    compact_s: float = knob(
        60.0, unit="s", low=0, zero="never", why="a live ingest looks so often whether there are many small files"
    )
    compact_files: int = knob(
        200, unit="files", low=2, why="of one day and protocol; some ten minutes of commits, and quick to rewrite"
    )
    niceness: int = knob(
        10, unit="nice", low=0, high=19, zero="as anybody", why="of Spark: the server goes first where both want a core"
    )
    rollup_s: float = knob(1.0, unit="s", low=0.1, why="between two looks at the log: who watches sees news so often")
    late_s: float = knob(
        10.0, unit="s", low=0, zero="at its end", why="a window is final so long after its end; clocks are set back"
    )
    channels: int = knob(
        1_000, unit="channels", low=1, why="whose rollups are published at a time, the busiest; the table has them all"
    )
    spike_factor: float = knob(
        5.0, unit="times", low=1.1, why="an alert when a channel's rate is so many times its usual one"
    )
    spike_events: int = knob(50, unit="events", low=1, why="in 10 s at least; small numbers jump for no reason")
    silence_s: float = knob(60.0, unit="s", low=1, why="an alert when a steady channel says nothing for so long")
    publish_s: float = knob(
        60.0, unit="s", low=1, why="for results to reach the server; then the job ends, and says so"
    )
    vacuum_age: str = knob(
        "7d", why="how long files stay that no table names any more: readers may still have them open"
    )
