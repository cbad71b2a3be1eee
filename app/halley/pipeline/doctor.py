"""The checks of `halley pipeline doctor`: each requirement of the pipeline, whether it works, and how long that took.

The first check that fails is the last: the later ones depend on it.
"""

from __future__ import annotations

import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from halley.broker.events import Event, Publications
from halley.broker.pending import Entry
from halley.history.history import History
from halley.history.rules import Rules
from halley.pipeline.errors import JobFailed, cause_of
from halley.settings import History as HistoryOptions
from halley.settings import Pipeline

_LEAST_PYTHON = (3, 11)


class Step(NamedTuple):
    """The result of one check: `found` is the finding, or the sentence that says why the check failed."""

    name: str
    found: str
    took_s: float
    is_ok: bool


def diagnose(
    options: Pipeline, log_options: Mapping[str, str] | None = None, *, archives_classes: bool = False
) -> Iterator[Step]:
    """Run the checks one after the other, up to the first that fails.

    `log_options` are the source's options for the log of which the last check reads a row; None: a log made for that.
    With `archives_classes`, the last step archives the classes that Spark has used, and ends this process's JVM.
    """
    checks: dict[str, Callable[[], str]] = {
        "python": _python,
        "pyspark": partial(_package, "pyspark"),
        "java": _java,
        "deltalake": partial(_package, "deltalake"),
        "session": partial(_session, options, is_recording=archives_classes),
        "source": partial(_source, options, log_options),
    }
    if archives_classes:
        checks["classes"] = partial(_classes, options)
    for name, check in checks.items():
        began = time.monotonic()
        try:
            found, is_ok = check(), True
        except Exception as error:  # noqa: BLE001 - any error is a finding for the user
            found, is_ok = str(error) if isinstance(error, ImportError) else str(cause_of(error)), False
        yield Step(name, found, time.monotonic() - began, is_ok)
        if not is_ok:
            return


def _python() -> str:
    if sys.version_info < _LEAST_PYTHON:
        raise JobFailed(f"Python {platform.python_version()} is too old: 3.11 or later is required")
    return f"{platform.python_version()} ({sys.executable})"


def _package(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        raise JobFailed(f"{name} is not installed: pip install 'halley-server[pipeline]'") from None


def _java() -> str:
    from halley.pipeline import session

    found = session.find_java()
    return f"{found.version} ({found.found_by}: {found.own_home})"


def _session(options: Pipeline, *, is_recording: bool) -> str:
    from halley.pipeline import session

    spark = session.start(options, is_recording=is_recording)
    return f"Spark {spark.version} with master {spark.sparkContext.master}"


def _source(options: Pipeline, log_options: Mapping[str, str] | None) -> str:
    from halley.pipeline import session

    with tempfile.TemporaryDirectory(prefix="halley-doctor-") as folder:
        if log_options is None:
            _make_log(Path(folder))
        log = session.start(options).read.format("halley").options(**log_options or {"path": folder}).load()
        rows = log.select("offset").limit(1).collect()
    found = f"read offset {rows[0].offset}" if rows else "read the log, which is empty"
    return found if log_options is not None else f"{found} of a log made for this check"


def _make_log(folder: Path) -> None:
    history = History(folder, HistoryOptions(free_bytes=0), Rules(), lambda _report: None)
    event = Event("halley/doctor", b'"well"')
    event.time_us = time.time_ns() // 1_000
    event.publication = Publications(history.publication_key).next()
    history.append(Entry(event))
    history.close()


def _classes(options: Pipeline) -> str:
    from halley.pipeline import session

    spark = session.start(options)
    with tempfile.TemporaryDirectory(prefix="halley-doctor-") as folder:  # as the jobs do: group, write, read
        rows = spark.range(100).selectExpr("id % 10 AS channel", "id AS offset")
        rows.groupBy("channel").count().collect()
        rows.write.mode("overwrite").parquet(folder)
        spark.read.parquet(folder).where("channel = 3").count()
    nbytes = session.archive_classes()
    if nbytes is None:
        raise JobFailed("Java wrote no archive of Spark's classes; the pipeline works without it")
    return f"archived ({nbytes / 1e6:.0f} MB): from now on Spark starts in half the time"
