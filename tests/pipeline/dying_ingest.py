"""An ingest that is killed with SIGKILL, with all processes that it started, at a named place of its n-th batch.

    python dying_ingest.py DATA LAKE PLACE N SOURCE

PLACE is `writing` (workers have begun to write files), `moving` (the files are in the table's folder, but not
committed), `rejected` (the faults are committed, the events are not), or `committed` (the events are, but the log does
not know it yet). Without PLACE it ingests until it is killed from outside. SOURCE is the log's name in the lake.
"""

import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from halley.pipeline import session
from halley.pipeline.jobs import ingest as ingesting
from halley.pipeline.jobs.ingest import Ingest
from halley.pipeline.lake import commit
from halley.settings import Pipeline

OPTIONS = Pipeline(
    master="local[2]", driver_memory="1g", niceness=0, batch_rows=2_000, partition_rows=1_000, ingest_s=0.1
)


def die():
    """Kill this process, and the Java and workers that it started, without any cleanup."""
    os.killpg(0, signal.SIGKILL)
    time.sleep(60)


def die_while_workers_write(lake):
    """Die as soon as there is a file of events that is incomplete; faults may have theirs before."""
    staged = "*/kind=event/*/*/*.parquet"
    seen = set((lake / ".staging").glob(staged))
    while not set((lake / ".staging").glob(staged)) - seen:
        time.sleep(0.001)
    die()


def dying_before(function, is_the_one):
    def call(*arguments, **named):
        if is_the_one(*arguments):
            die()
        return function(*arguments, **named)

    return call


def arm(place, lake, job):
    """Make the next batch die at `place`."""
    if place == "writing":
        threading.Thread(target=die_while_workers_write, args=(lake,), daemon=True).start()
    elif place == "moving":
        commit._commit = dying_before(commit._commit, lambda table, *_: table.folder.name == "events")
    elif place == "rejected":
        ingesting.commit_files = dying_before(ingesting.commit_files, lambda table, *_: table.folder.name == "events")
    elif place == "committed":
        type(job._log).commit = dying_before(type(job._log).commit, lambda *_: True)


def main(data, lake, place="", n="0", source=""):
    options = replace(OPTIONS, source=source)
    spark = session.start(options)
    job = Ingest(spark, {"path": data}, Path(lake), options, accept_gap=True)
    print("ready", flush=True)
    if place:
        for _ in range(int(n) - 1):
            job.step()
        arm(place, Path(lake), job)
        job.step()
        raise SystemExit("it was to die")
    for progress in job.live(threading.Event()):
        print(progress.next, flush=True)


main(*sys.argv[1:])
