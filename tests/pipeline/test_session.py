"""Sessions of Spark; their start and end in a separate process is tested in `test_processes.py`."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from pipeline.conftest import NICENESS
from support.wire import nobody_on

import halley
from halley.pipeline import session
from halley.settings import Pipeline


@pytest.fixture
def closed_port():
    """Yield a port that this test holds, and at which nothing listens."""
    with nobody_on() as port:
        yield port


def test_a_master_that_does_not_answer(closed_port):
    """An unreachable master is reported immediately, with what to do; Spark would try for a minute."""
    master = f"spark://127.0.0.1:{closed_port}"
    with pytest.raises(session.SparkFailed) as failed:
        session.find_master(master)
    assert str(failed.value) == (
        f"no Spark master answers at {master} (127.0.0.1:{closed_port}: Connection refused): "
        "start the cluster, or give another --master"
    )


def test_one_of_several_masters_is_enough(closed_port):
    """It is enough that one of several masters answers, as those on standby can be down."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        session.find_master(f"spark://127.0.0.1:{closed_port},127.0.0.1:{server.getsockname()[1]}")


@pytest.mark.parametrize("master", ["spark://", "spark://here", "spark://:7077", "spark://here:99999", "spark://a:7,b"])
def test_what_is_no_address_of_a_master(master):
    """An invalid address of a master is refused with the expected form."""
    with pytest.raises(session.SparkFailed, match=r"is not a Spark master: expected spark://HOST:PORT"):
        session.find_master(master)


def test_a_session_that_there_is_already(spark):
    """An existing session is used as it is."""
    assert session.start(Pipeline(master="local[1]")) is spark


def test_what_the_lake_relies_on(spark):
    """T3: times in Parquet have statistics, and are in UTC in any time zone of the machine."""
    assert spark.conf.get("spark.sql.parquet.outputTimestampType") == "TIMESTAMP_MICROS"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.conf.get("spark.sql.parquet.compression.codec") == "zstd"


def test_workers_on_other_machines_get_the_code(tmp_path):
    """The archive for workers has the whole package, importable from there."""
    made = session._zipped(tmp_path)
    program = (
        f"import sys; sys.path.insert(0, {str(made)!r}); import halley.pipeline.source.source as s; print(s.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.startswith(str(made)), done.stderr
    assert Path(halley.__file__).parent.name == "halley"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities for threads")
def test_spark_keeps_quiet(spark):
    """Only errors get into the session's log: Spark's own remarks would fill a disk in a month of small batches."""
    spark.range(10).count()
    said = (session.temporary_folder() / "spark.log").read_text()
    assert not re.search(r" (INFO|WARN|DEBUG) ", said)


def test_spark_lets_others_go_first(spark):
    """Java and its workers have a lower priority, and the process that started them keeps its own."""
    java = spark.sparkContext._gateway.proc.pid
    [worker] = spark.sparkContext.parallelize([0], 1).map(lambda _: os.getpriority(os.PRIO_PROCESS, 0)).collect()
    assert (os.getpriority(os.PRIO_PROCESS, java), worker) == (NICENESS, NICENESS)
    assert os.getpriority(os.PRIO_PROCESS, 0) != NICENESS
