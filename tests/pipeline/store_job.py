"""A job on a lake in a store, as a process that tests run beside others and kill.

    python store_job.py ingest|compact|vacuum|forget LAKE [DATA [SOURCE]]

`ingest` reads the folder DATA, whose log may have a name, and does without Spark: what its workers would do is done
here, one range after another. Its lifted column takes no value of the tests' log, so that `mismatches` counts each of
its events.
`forget` erases `/gone/**`. The exit code is 2 after a refusal, which is written to the standard output.
"""

import sys
from dataclasses import replace

from halley.broker.names import Match, Pattern
from halley.broker.ports import Erasure
from halley.pipeline.errors import PipelineError
from halley.pipeline.jobs.ingest import Ingest
from halley.pipeline.lake import upkeep
from halley.pipeline.lake.forget import forget
from halley.pipeline.lake.place import place_of
from halley.pipeline.source.columns import lifts_of
from halley.settings import Lift, Pipeline, Settings

GONE = Erasure(Pattern(Match.DESCENDANTS, "gone"), None)
OPTIONS = Pipeline(batch_rows=200, partition_rows=100, compact_s=0)
LIFTS = lifts_of(Settings(lift=(Lift("/**", "/n", "text", "string"),)))


class Here:
    """As much of a Spark session as an ingest needs."""

    defaultParallelism = 2  # noqa: N815 - Spark's name

    @property
    def sparkContext(self):  # noqa: N802 - Spark's name
        return self

    def parallelize(self, items, _count):
        self._items = items
        return self

    def map(self, function):
        self._function = function
        return self

    def collect(self):
        return [self._function(item) for item in self._items]


def ingest(lake, data, source=""):
    for progress in Ingest(Here(), {"path": data}, lake, replace(OPTIONS, source=source), lift=LIFTS).once():
        print(progress.next, flush=True)


def main(role, place, *more):
    lake = place_of(place)
    jobs = {
        "ingest": lambda: ingest(lake, *more),
        "compact": lambda: upkeep.compact(lake, "events"),
        "vacuum": lambda: upkeep.vacuum(lake, 0),
        "forget": lambda: forget(lake, GONE),
    }
    try:
        jobs[role]()
    except PipelineError as error:
        print(error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
