"""The way back: each row of `minutes` is an event for the subscribers of /minutes/**."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from halley.pipeline.project.attach import attach

spark = SparkSession.active()
attach(spark)

server = spark.conf.get("spark.halley.server") or ""
dp.create_sink("subscribers", "halley", {"server": server})  # which also takes HALLEY_TOKEN, if it is set


@dp.append_flow(target="subscribers")
def publish_minutes() -> DataFrame:
    """Publish each minute once, except those of channels that Halley, its jobs or this project publish to."""
    return (
        spark.readStream.table("minutes")
        .where("channel not rlike '^/(minutes|stats|alerts|replay|halley)/'")
        .selectExpr(
            "'/minutes' || channel AS channel",
            "struct(minute, events, bytes) AS data",
            "md5(channel || ' ' || minute) AS key",  # by which the server knows it again if a run is repeated
        )
    )
