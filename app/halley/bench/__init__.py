"""The load generator: measures how a Bayeux server behaves under load, and what each unit of work costs it.

In a measurement (`measurement.py`), workers (`worker.py`, led by `coordinator.py`) put a load on a `Target`. The
`Result` can be printed and compared; `growth.py` collects many of them, and `cluster.py` puts loads on several servers
that are one. What measures Halley itself, its other
protocols and its pipeline is in `tests/bench` and uses the same parts.

The load generator uses servers only over their sockets, so that all servers are treated alike. It must not import the
rooms of the server, and must not decide which figures are good.
"""

from halley.bench.cluster import ClusterPlan, measure_cluster
from halley.bench.cluster_result import ClusterFigures, cluster_table
from halley.bench.growth import Growth, grow, growth_table
from halley.bench.load import BenchFailed, Load
from halley.bench.measurement import Phase, Watch, measure
from halley.bench.result import Result, comparison, table
from halley.bench.target import Target, attached, halley_command, started

__all__ = [
    "BenchFailed",
    "ClusterFigures",
    "ClusterPlan",
    "Growth",
    "Load",
    "Phase",
    "Result",
    "Target",
    "Watch",
    "attached",
    "cluster_table",
    "comparison",
    "grow",
    "growth_table",
    "halley_command",
    "measure",
    "measure_cluster",
    "started",
    "table",
]
