"""A Spark session with the pipeline's settings and the source `halley`: quick to start, quiet, and cleaned up at exit.

    from halley.pipeline import session
    spark = session.start()
    spark.read.format("halley").load("halley-data").show()

If the process already has a session, that one is used with its own settings, and the source is registered in it.

It is `SparkSession.builder` with settings. What Spark has no settings for, the priority of its processes and where
their standard error goes, is up to the script that starts Java (`java.py`).

PySpark has no public way to end the JVM, which it leaves to the end of the process. Here that must be waited for: the
JVM has files in folders that are deleted then, and writes the archive of its classes only when it exits. So it is ended
by the private connection that PySpark keeps.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import site
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from halley.pipeline import java
from halley.pipeline.errors import JobFailed, JobRejected, cause_of
from halley.pipeline.source.source import HalleySource
from halley.settings import Pipeline

_PACKAGE = Path(__file__).resolve().parent.parent
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "halley"

_STANDALONE = "spark://"
_FLAGS = "spark.driver.extraJavaOptions"
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Flags for a JVM that starts in half the time: the expensive work is done by native code."""

_QUIET = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
"""


_REMARKS = ("Picked up ", "WARNING:", "NOTE:")
_RAISED_IN_JAVA = re.compile(r'^Exception in thread "\w+" [\w.$]+: ')
_END_S = 20.0
_ARCHIVE_S = 300.0
"""How long a JVM may take to exit: it ends its threads, or also writes an archive of 180 MB."""
_MASTER_S = 3.0
"""How long the connection to each address of a cluster's master may take."""


class SparkFailed(JobRejected):
    """Spark did not start, so no work was begun."""


def start(
    options: Pipeline | None = None,
    app_name: str = "halley",
    *,
    configuration: Mapping[str, str] | None = None,
    is_recording: bool = False,
) -> SparkSession:
    """Return a Spark session; `configuration` are settings of Spark's own, which override the pipeline's.

    With `is_recording`, `archive_classes` can archive the classes that are used until then. The standard error of
    Spark's processes is written to `spark.log` in the session's folder instead of the console; what matters of it is
    raised as an exception. Raises `NoJava`, `SparkFailed`.
    """
    options = options or Pipeline()
    spark = SparkSession.getActiveSession()
    if spark is None:
        settings = _settings(options) | {"spark.app.name": app_name}
        spark = _start(settings, configuration or {}, options.niceness, is_recording=is_recording)
    spark.dataSource.register(HalleySource)
    return spark


def find_java() -> java.Java:
    """Return the Java that a session runs on. Raises `NoJava`."""
    return java.find(os.environ, _CACHE)


def find_master(master: str) -> None:
    """Check that a standalone cluster's master accepts connections; of several, one is enough. Raises `SparkFailed`.

    Spark itself tries for a minute, and its message then names another problem.
    """
    if not master.startswith(_STANDALONE):
        return
    refusals = []
    for address in master.removeprefix(_STANDALONE).split(","):
        host, _, port = address.rpartition(":")
        if not (host and port.isdecimal() and int(port) < 65_536):
            raise SparkFailed(f"{master} is not a Spark master: expected spark://HOST:PORT[,HOST:PORT...]")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _MASTER_S).close()
        except (OSError, UnicodeError) as error:  # a name that cannot be one
            refusals.append(f"{address}: {getattr(error, 'strerror', None) or error}")
        else:
            return
    raise SparkFailed(
        f"no Spark master answers at {master} ({'; '.join(refusals)}): start the cluster, or give another --master"
    )


def archive_classes() -> int | None:
    """End the JVM, which then writes the archive of Spark's classes, from which later JVMs start in half the time.

    Returns the archive's size in bytes; None if there is none, since the JVM was not started with `is_recording`, or
    cannot write one, or Spark is not PySpark's. This process cannot start another session afterwards.
    """
    _end(_ARCHIVE_S)
    archive = _class_archive(find_java())
    return None if archive is None else archive.keep()


def _start(
    settings: dict[str, str], configuration: Mapping[str, str], niceness: int, *, is_recording: bool
) -> SparkSession:
    master = configuration.get("spark.master", settings["spark.master"])
    find_master(master)
    found = find_java()
    archive = _class_archive(found) if _is_local(master) else None
    archived = None if archive is None else archive.record() if is_recording else archive.use()
    flags = " ".join(filter(None, (settings[_FLAGS], archived, configuration.get(_FLAGS))))
    log = temporary_folder() / "spark.log"
    variables = _variables(found, is_local=_is_local(master))
    variables |= {"HALLEY_SPARK_LOG": str(log), "HALLEY_SPARK_NICENESS": str(niceness)}
    atexit.register(_end)
    try:
        with _environment(variables):
            spark = SparkSession.builder.config(map={**settings, **configuration, _FLAGS: flags}).getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        if not _is_local(master):
            spark.sparkContext.addPyFile(str(_zipped(temporary_folder())))
    except (PySparkException, Py4JError, OSError, RuntimeError) as error:
        cause = cause_of(error)
        if log.exists() and "JAVA_GATEWAY_EXITED" in str(error):
            cause = JobFailed(_complaint(log.read_text(errors="replace")))
        raise SparkFailed(f"Spark does not start with master {master}: {cause}") from error
    return spark


def _complaint(text: str) -> str:
    """Return the line in which a JVM that did not start says why: the first that is not a remark."""
    lines = (line.strip() for line in text.splitlines())
    cause = next((line for line in lines if line and not line.startswith(_REMARKS)), "Java exited without a message")
    return _RAISED_IN_JAVA.sub("", cause)


@cache
def temporary_folder() -> Path:
    """Return the folder for the files of this process and its JVM; it is deleted when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="halley-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _end(timeout_s: float = _END_S) -> None:
    """Stop a session that is still active, then end the JVM, which exits when its standard input is closed."""
    spark = SparkSession.getActiveSession()
    if spark is not None:
        spark.stop()
    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None  # noqa: SLF001 - it has no stop
    if gateway is not None:
        gateway.shutdown()
        if gateway.proc is not None:
            gateway.proc.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                gateway.proc.wait(timeout_s)


def _spark_home() -> Path | None:
    """Return Spark's home in the cache; None if the user has a Spark of their own."""
    return None if "SPARK_HOME" in os.environ else java.spark_home(_CACHE)


def _class_archive(found: java.Java) -> java.ClassArchive | None:
    """Return the archive of Spark's classes for a Java; None if the user has a Spark of their own."""
    home = _spark_home()
    return None if home is None else java.ClassArchive(home, found.home)


def _is_local(master: str) -> bool:
    return master.startswith("local")


def _settings(options: Pipeline) -> dict[str, str]:
    folder = temporary_folder()
    quiet = folder / "log4j2.properties"
    quiet.write_text(_QUIET)
    settings = {
        "spark.master": options.master,
        "spark.driver.memory": options.driver_memory,
        _FLAGS: f"{QUICK_START} -Djava.io.tmpdir={folder} -Dlog4j2.configurationFile={quiet.as_uri()}",
        "spark.scheduler.mode": "FAIR",  # concurrent jobs share the cores, each in a pool of its own
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # the default, INT96, has no statistics
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    if _is_local(options.master):
        cores = options.master.removeprefix("local").strip("[]").partition(",")[0]
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": cores if cores.isdecimal() else str(os.cpu_count() or 1),
        }
    return settings


def _variables(found: java.Java, *, is_local: bool) -> dict[str, str]:
    """Return the environment variables that Spark needs when it starts on a Java."""
    variables = {
        "JAVA_HOME": str(found.home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    if is_local:
        variables["SPARK_LOCAL_IP"] = "127.0.0.1"
        if (home := _spark_home()) is not None:
            variables["SPARK_HOME"] = str(home)
    elif "PYSPARK_PYTHON" in os.environ:  # the path of Python on the other machines
        variables["PYSPARK_PYTHON"] = os.environ["PYSPARK_PYTHON"]
    ours = str(_PACKAGE.parent)
    if ours not in site.getsitepackages():  # a checkout: the workers must find it too
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, (ours, os.environ.get("PYTHONPATH"))))
    return variables


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the block, and restore their former values after it."""
    before = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)
        os.environ.update(before)


def _zipped(folder: Path) -> Path:
    """Write an archive of Halley's own code, for workers on machines without it; return its path."""
    return Path(shutil.make_archive(str(folder / "halley"), "zip", _PACKAGE.parent, _PACKAGE.name))
