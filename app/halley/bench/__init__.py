"""The load generator: measures how a Bayeux server behaves under load, and what each unit of work costs it.

In a measurement (`measurement.py`), workers (`worker.py`, led by `coordinator.py`) put a load on a `Target`. The
`Result` can be printed and compared. What measures Halley itself (how its costs grow, a cluster, its other protocols,
its pipeline) is in `tests/bench` and uses the same parts.

The load generator uses servers only over their sockets, so that all servers are treated alike. It must not import the
rooms of the server, and must not decide which figures are good.
"""

from halley.bench.load import BenchFailed, Load
from halley.bench.measurement import Phase, Watch, measure
from halley.bench.result import Result, comparison, table
from halley.bench.target import Target, attached, halley_command, started

__all__ = [
    "BenchFailed",
    "Load",
    "Phase",
    "Result",
    "Target",
    "Watch",
    "attached",
    "comparison",
    "halley_command",
    "measure",
    "started",
    "table",
]
