"""`halley pipeline doctor` and the verbs that run jobs in a Spark session."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.cli.console import DONE, FAILED, INTERRUPTED
from app.cli.outcome import told
from app.cli.pipeline_options import Place
from app.cli.status_line import StatusLine
from app.pipeline import session
from app.pipeline.doctor import diagnose
from app.pipeline.errors import JobFailed, Refused
from app.pipeline.jobs.alerts import Alerts
from app.pipeline.jobs.ingest import Ingest
from app.pipeline.jobs.publishing import Publisher
from app.pipeline.jobs.rollup import Rollup
from app.pipeline.jobs.run import run as run_jobs
from app.pipeline.jobs.sessions import Sessions
from app.pipeline.lake import tables
from app.pipeline.source import open_log
from app.pipeline.source.columns import Lifting, lifts_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from app.pipeline.jobs.run import Job, Status
    from app.pipeline.source.log import Log


def doctor(place: Place, *, archives_classes: bool) -> int:
    """Print the result of each check, up to the first that fails; returns the exit code.

    With `archives_classes`, the last step archives Spark's classes.
    """
    log = place.log if "url" in place.log or Path(place.log["path"], "log.json").exists() else None
    is_ok = True
    for step in diagnose(place.settings.pipeline, log, archives_classes=archives_classes):
        click.echo(f"{step.name:<10} {step.took_s:6.2f} s  {step.found}")
        is_ok = step.is_ok
    return DONE if is_ok else FAILED


def run(
    place: Place, names: Sequence[str], *, is_once: bool, accept_gap: bool = False, server: str | None = None
) -> int:
    """Run jobs until they are done (`is_once`), a signal ends them, or one fails; returns the exit code.

    Results are published to the URL `server`; None: they are not published.
    """

    def work() -> int:
        options = place.settings.pipeline
        log = _looked(place, names)
        head = None if log is None else lambda: log.head().next
        with ExitStack() as stack:
            publisher = None
            if server is not None:
                publisher = stack.enter_context(Publisher(server, place.token, options.publish_s))
            spark = session.start(options, "halley " + " ".join(names), configuration=place.spark)
            stack.callback(session.stop, spark)
            jobs = {name: _job(name, spark, place, accept_gap=accept_gap, publisher=publisher) for name in names}
            line = StatusLine()
            stack.callback(line.finish)

            def show(status: list[Status]) -> None:
                line.show([str(each) for each in status])

            ended_by = run_jobs(spark, jobs, show, is_once=is_once, publisher=publisher, head=head)
        return INTERRUPTED if ended_by == signal.SIGINT else DONE

    return told(work)


def _looked(place: Place, names: Sequence[str]) -> Log | None:
    """Check that the log and the lake can be used, before Spark starts and anything is written.

    Returns the log; None for jobs that need only the lake. Raises `Refused`.
    """
    if names == ["sessions"]:
        tables.look(place.lake)
        return None
    log = open_log(place.log)
    lifted = tables.lifted_columns(Lifting(lifts_of(place.settings)).columns) if "ingest" in names else ()
    try:
        log_id = log.head().log_id
    except JobFailed as error:
        raise Refused(str(error)) from error  # nothing was begun
    tables.look(place.lake, log_id, lifted)
    return log


def _job(name: str, spark: SparkSession, place: Place, *, accept_gap: bool, publisher: Publisher | None) -> Job:
    options, lift = place.settings.pipeline, lifts_of(place.settings)
    if name == "ingest":
        return Ingest(spark, place.log, place.lake, options, lift=lift, accept_gap=accept_gap)
    if name == "rollup":
        return Rollup(spark, place.log, place.lake, options, lift=lift, accept_gap=accept_gap, publisher=publisher)
    if name == "sessions":
        return Sessions(place.lake)
    return Alerts(spark, place.log, place.lake, options, accept_gap=accept_gap, publisher=publisher)
