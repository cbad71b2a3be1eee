"""The source in sessions that Halley did not start: by `spark-submit`, and by Spark Connect where it is installed."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pyspark
import pytest
from readme.table import block
from support.log import OpenLog
from support.process import environment

from halley.pipeline import session

pytestmark = pytest.mark.nightly

LONGEST_S = 300
COUNTS = """
frame = spark.read.format("halley").option("channel", "/prices/*").schema("offset long, name string")
print("of a channel:", frame.load("halley-data").count())
print("of a protocol:", frame.option("protocol", "wamp").load("halley-data").count())
try:
    spark.read.format("halley").schema("offset long, colour string").load("halley-data").count()
except Exception as error:
    print("refused:", "has no column colour" in str(error))
spark.stop()
"""
"""What the program of the page is followed by."""


def run(folder, *command, path="halley-data", **variables):
    """Write a log, run the page's program in its folder with this path of the log, and return what it prints."""
    with OpenLog(folder / "halley-data") as opened:
        for protocol in ("bayeux", "bayeux", "wamp"):
            opened.append_to("prices/a", 1, protocol=protocol)
        opened.write(1, 2, topic="news")
    (folder / "program.py").write_text((block("source") + COUNTS).replace('"halley-data"', repr(str(path))))
    settings = {
        "JAVA_HOME": str(session.find_java().home),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TMPDIR": str(folder),
    }
    done = subprocess.run(
        [*command, "program.py"], cwd=folder, env=environment(**settings | variables), capture_output=True, text=True,
        timeout=LONGEST_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3_000:]
    return done.stdout


def check(printed):
    """Check what the program of the page and its last lines print."""
    assert "|/prices/a|    2|" in printed
    assert "| prices.a|    1|" in printed
    assert "of a channel: 3" in printed
    assert "of a protocol: 1" in printed
    assert "refused: True" in printed


def test_by_spark_submit(tmp_path):
    """The page's program runs as it is: options, computed columns, a schema, a stream."""
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    printed = run(tmp_path, submit, "--master", "local[1]", "--conf", "spark.ui.enabled=false")
    check(printed)
    assert "Batch: 0" in printed


HAS_CONNECT = all(find_spec(name) for name in ("grpc", "grpc_status", "zstandard"))


@pytest.mark.skipif(not HAS_CONNECT, reason="needs Spark Connect: pip install '.[connect]'")
def test_by_spark_connect(tmp_path):
    """The same program with a Spark Connect server, which has another working folder."""
    check(run(tmp_path, sys.executable, path=tmp_path / "halley-data", SPARK_REMOTE="local[1]"))
