"""Bronze: every event of Halley's history, as it was recorded, with its channel, name and time."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from halley.pipeline.project.attach import attach

spark = SparkSession.active()
attach(spark)

log = {name: spark.conf.get(f"spark.halley.{name}", "") or "" for name in ("path", "url")}
log["token"] = os.environ.get("HALLEY_TOKEN", "")  # for a server that wants one; it is written nowhere


@dp.table(comment="Every event of the history, once.")
def events() -> DataFrame:
    """Read what the log has gained since the last run; other options of the source choose some of it."""
    return spark.readStream.format("halley").options(**log).load()
