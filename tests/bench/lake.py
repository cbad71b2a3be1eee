"""Measures how fast Spark reads a log, ingests it into a lake, compacts the lake, and queries it.

`pipeline.py` runs this as a separate process, `python -m bench.lake DATA_DIR LAKE MASTER ROUNDS`. It writes its figures
to standard output, a JSON object a line.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from halley.pipeline import session
from halley.pipeline.errors import PipelineError
from halley.pipeline.jobs.ingest import Ingest
from halley.pipeline.lake.tables import open_table
from halley.pipeline.lake.upkeep import compact
from halley.pipeline.queries.sql import ask
from halley.pipeline.source import open_log
from halley.settings import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HOUR_US = 3_600_000_000
_MEMORY = "1g"


def found(name: str, **figures: object) -> None:
    """Print the figures of one measurement as a line of JSON."""
    print(json.dumps({"name": name, **figures}), flush=True)


def main(data_dir: str, lake: Path, master: str, rounds: int) -> None:
    """Make all measurements, one after the other. Raises `PipelineError`."""
    head = open_log({"path": data_dir}).head()
    count = head.next - head.first
    batch_rows = min(Pipeline().batch_rows, -(-count // 2))  # at least two batches, since the first is left out
    options = replace(Pipeline(), master=master, driver_memory=_MEMORY, batch_rows=batch_rows)
    began = time.monotonic()
    spark = session.start(options)
    found("session", seconds=time.monotonic() - began)
    for number in range(rounds + 1):
        began = time.monotonic()
        spark.read.format("halley").load(data_dir).write.format("noop").mode("overwrite").save()
        if number:  # the first round warms up
            found("source", rows=count, seconds=time.monotonic() - began)
    for progress in Ingest(spark, {"path": data_dir}, lake, options).once():
        found("ingest", rows=progress.rows, seconds=progress.took_s)
    for stage in ("as ingested", "compacted"):
        if stage == "compacted":
            began = time.monotonic()
            done = compact(lake, "events")
            found("compact", rows=done.rows, seconds=time.monotonic() - began)
        _query(spark, lake, stage, rounds)
    spark.stop()


def _query(spark: SparkSession, lake: Path, stage: str, rounds: int) -> None:
    """Query one channel and one hour, in the middle of the lake's times."""
    table = open_table(lake, "events")
    assert table is not None
    (row,) = ask(spark, lake, "select min(time_us) a, max(time_us) b, min(channel) c from events").rows.collect()
    start_us = (row.a + row.b) // 2
    bounds = f"time_us >= {start_us} and time_us < {start_us + _HOUR_US}"
    query = f"select count(*), max(time) from events where channel = '{row.c}' and {bounds}"
    for number in range(rounds + 1):
        began = time.monotonic()
        answer = ask(spark, lake, query)
        count = answer.rows.collect()[0][0]
        took_s = time.monotonic() - began
        if number:
            (reading,) = answer.readings
            found(
                "query",
                stage=stage,
                seconds=took_s,
                rows=count,
                files=len(reading.files),
                skipped=reading.of - len(reading.files),
            )


if __name__ == "__main__":
    try:
        main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    except PipelineError as error:
        sys.exit(str(error))
