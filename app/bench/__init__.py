"""The load generator: measures how Halley, or another server, behaves under load, and what each unit of work costs.

In a measurement (`measurement.py`), load processes (`worker.py`, led by `fleet.py`) put a load on a `Target`. It yields
a `Result`, which `table.py` prints; `growth.py` collects many of them. `history.py` puts the same loads on a server
with a durable history and on one without. `pipeline.py` measures the jobs of the data pipeline. `wamp.py` and `nt4.py`
measure the fan-out of the other protocols and have their own load processes.

The load generator uses servers only over their sockets, so that all servers are treated alike. It must not import the
rooms of the server, and must not decide which figures are good.
"""

from app.bench.durability import Durability
from app.bench.durability_table import durability_table
from app.bench.growth import Growth, grow
from app.bench.history import Plan, measure_history
from app.bench.load import BenchFailed, Load
from app.bench.measurement import Phase, measure
from app.bench.nt4 import Nt4Plan, measure_nt4
from app.bench.nt4_figures import Nt4Figures
from app.bench.nt4_table import nt4_table
from app.bench.pipeline import PipelinePlan, measure_pipeline
from app.bench.pipeline_figures import PipelineFigures
from app.bench.pipeline_table import pipeline_table
from app.bench.result import Result, comparison, growth_table, table
from app.bench.target import Target, attached, halley_command, started
from app.bench.wamp import WampPlan, measure_wamp
from app.bench.wamp_figures import WampFigures
from app.bench.wamp_table import wamp_table

__all__ = [
    "BenchFailed",
    "Durability",
    "Growth",
    "Load",
    "Nt4Figures",
    "Nt4Plan",
    "Phase",
    "PipelineFigures",
    "PipelinePlan",
    "Plan",
    "Result",
    "Target",
    "WampFigures",
    "WampPlan",
    "attached",
    "comparison",
    "durability_table",
    "grow",
    "growth_table",
    "halley_command",
    "measure",
    "measure_history",
    "measure_nt4",
    "measure_pipeline",
    "measure_wamp",
    "nt4_table",
    "pipeline_table",
    "started",
    "table",
    "wamp_table",
]
