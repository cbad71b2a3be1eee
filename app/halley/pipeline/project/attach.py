"""The format `halley` in the session of a declarative pipeline, which is a session of Spark Connect.

`spark-pipelines` of PySpark 4.3 accepts a Python data source, as a source and as a sink. But when it has run one that
read something, it prints that the run is completed, and then fails with UNKNOWN_RESPONSE and exit code 1 (SPARK-59135):
workers of data sources report the profile of their work also where nothing is profiled, and the client of Spark Connect
takes that report, with which a run ends, for a fault. So it is taken out of what the client iterates over, after the
client itself has read it. `tests/pipeline/test_init.py` shows the failure, so that it is seen when Spark has mended it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

from halley.pipeline.source.source import HalleySource

_PROFILE = "__python_accumulator__"


def attach(spark: SparkSession) -> None:
    """Make `format("halley")` known in a session, for reading and for writing. More than once does no harm."""
    spark.dataSource.register(HalleySource)
    client: Any = getattr(spark, "client", None)  # only sessions of Spark Connect have one
    if client is None or "_execute_and_fetch_as_iterator" in vars(client):
        return
    fetch = client._execute_and_fetch_as_iterator  # noqa: SLF001 - no public place is between the report and the fault

    def without_profiles(*arguments: Any, **named: Any) -> Iterator[Any]:
        return (each for each in fetch(*arguments, **named) if getattr(each, "name", None) != _PROFILE)

    client._execute_and_fetch_as_iterator = without_profiles  # noqa: SLF001
