"""A program with two queries that publish what they read, killed with SIGKILL between effect and commit.

    python dying_sink.py DATA URL FOLDER [BATCHES]

One query publishes the events of /in/a again on /echo, the other their number in each second on /count. After BATCHES
batches that a query has published and Spark has noted, the program and its Java die when the next one is published.
Without BATCHES it runs until it is killed from outside. It prints `ready` when both queries run.
"""

import os
import signal
import sys
import time
from pathlib import Path

from pyspark.sql.datasource import DataSourceStreamArrowWriter
from pyspark.sql.functions import count, window

from halley.pipeline import session
from halley.pipeline.sink.writer import stream_writer
from halley.pipeline.source.source import HalleySource
from halley.settings import Pipeline

OPTIONS = Pipeline(master="local[2]", driver_memory="1g", niceness=0)


def dying(file, group):
    """Return a source `dying` whose sinks kill a group of processes after as many batches as the file says."""

    class Dying(DataSourceStreamArrowWriter):
        def __init__(self, writer):
            self.writer = writer

        def write(self, iterator):
            return self.writer.write(iterator)

        def commit(self, messages, batchId):  # noqa: N803 - Spark's name
            self.writer.commit(messages, batchId)
            if any(message.count for message in messages) and file.exists():
                left = int(file.read_text())
                file.write_text(str(left - 1))
                if left == 0:
                    os.killpg(group, signal.SIGKILL)
                    time.sleep(60)

        def abort(self, messages, batchId):  # noqa: N803
            pass

    class DyingSource(HalleySource):
        @classmethod
        def name(cls):
            return "dying"

        def streamWriter(self, schema, overwrite):  # noqa: N802
            return Dying(stream_writer(schema, self.options))

    return DyingSource


def main(data, url, folder, batches=""):
    file = Path(folder, "batches")
    file.unlink(missing_ok=True)
    if batches:
        file.write_text(batches)
    spark = session.start(OPTIONS)
    spark.dataSource.register(dying(file, os.getpgrp()))
    events = spark.readStream.format("halley").option("max_rows", "200").load(data).where("topic = 'in/a'")
    seconds = (
        events.selectExpr("timestamp_micros(time_us) time")
        .withWatermark("time", "0 seconds")
        .groupBy(window("time", "1 second"))
        .agg(count("*").alias("events"))
        .selectExpr("'/count' channel", "struct(unix_micros(window.start) start, events) data",
                    "'second ' || unix_micros(window.start) key")
    )  # fmt: skip
    for name, rows in (("echo", events.selectExpr("'/echo' channel", "payload data")), ("count", seconds)):
        options = {"server": url, "checkpointLocation": f"{folder}/{name}"}
        rows.writeStream.format("dying").options(**options).start()
    print("ready", flush=True)
    spark.streams.awaitAnyTermination()


main(*sys.argv[1:])
