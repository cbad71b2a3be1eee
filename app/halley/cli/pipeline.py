"""`halley pipeline`: the jobs that read the log with Spark, and the upkeep of the lake that they fill.

Spark and Arrow are imported by the verb that needs them, so that the help appears at once, also where they are not
installed.
"""

from __future__ import annotations

import importlib.util
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from halley.cli.options import DEFAULT_SERVER, config_option, token_option
from halley.cli.settings import SettingFlags, load_settings, setting_options
from halley.cli.terminal import DONE, FAILED, INTERRUPTED, USAGE_ERROR, ProgressBar, StatusLine, print_status
from halley.history.rules import parse_age
from halley.pipeline.errors import JobFailed, JobRejected, cause_of
from halley.pipeline.lake.place import LakePath, need_writable, place_of
from halley.settings import Settings

if TYPE_CHECKING:  # heavy
    from pyspark.sql import SparkSession

    from halley.pipeline.jobs.publishing import Publisher
    from halley.pipeline.jobs.run import Job, LogJob
    from halley.pipeline.source.log import Log

Verb = Callable[..., None]
Work = Callable[..., int | None]

NOT_INSTALLED = "the data pipeline is not installed: pip install 'halley-server[pipeline]'"
_MODULES = ("pyspark", "deltalake", "pyarrow")

TABLES = ("events", "rejected", "gaps", "mismatches", "rollups", "sessions", "alerts")


# Options


class Place(NamedTuple):
    """The lake, the log and the settings that a verb uses.

    settings   the settings, including those that options override
    lake       the folder of the tables, or their place in a store
    log        the argument for `source.log.open_log`: a folder's `path`, or a server's `url` and `token`
    token      the token for servers; None without one
    spark      Spark's own settings, from --conf
    """

    settings: Settings
    lake: LakePath
    log: dict[str, str]
    token: str | None
    spark: dict[str, str]


_DIR = {"metavar": "DIR"}
_LAKE: SettingFlags = {
    "data_dir": ("--data-dir", "The data folder.", _DIR),
    "pipeline.lake": (
        "--lake",
        "The folder of the lake's tables, or s3://BUCKET/PATH. [default: lake in the data folder]",
        _DIR,
    ),
}
_SPARK: SettingFlags = {
    **_LAKE,
    "pipeline.master": (
        "--master",
        "Where Spark runs: local[*], spark://HOST:PORT, k8s://..., yarn.",
        {"metavar": "MASTER"},
    ),
}
_FROM = click.option(
    "--from",
    "url",
    metavar="URL",
    help="Read this server's log, not a data folder; the right `export` is needed. Of several URLs, separated by "
    "commas, as of a cluster's keepers, the next one is read where one does not answer.",
)
_JOB: SettingFlags = {
    **_SPARK,
    "pipeline.source": (
        "--source",
        "The log's name in a lake with the logs of several servers: up to 32 letters, digits, _ and -.",
        {"metavar": "NAME"},
    ),
}
_CONF = click.option(
    "--conf",
    "confs",
    multiple=True,
    metavar="KEY=VALUE",
    help="One of Spark's own settings. Can be given several times.",
)


def lake_options(verb: Work) -> Verb:
    """Add the options of a verb that uses the lake; the verb gets a `place` instead, and returns the exit code."""
    return config_option(setting_options(_LAKE)(_with_place(verb)))


def spark_options(verb: Work) -> Verb:
    """Add the options of a verb that uses the lake by means of Spark; otherwise like `lake_options`."""
    return config_option(setting_options(_SPARK)(_CONF(_with_place(verb))))


def pipeline_options(verb: Work) -> Verb:
    """Add the options of a verb that uses the lake, Spark and the log; otherwise like `lake_options`."""
    return config_option(setting_options(_SPARK)(_FROM(token_option(_CONF(_with_place(verb, reads_log=True))))))


def job_options(verb: Work) -> Verb:
    """Add the options of a verb that brings a log into the lake; otherwise like `pipeline_options`."""
    options = _ACCEPT_GAP(_ACCEPT_NEW_LOG(_FROM(token_option(_CONF(_with_place(verb, reads_log=True))))))
    return _ONCE(config_option(setting_options(_JOB)(options)))


_ONCE = click.option("--once", "is_once", is_flag=True, help="End when all that the log has now is processed.")
_ACCEPT_GAP = click.option(
    "--accept-gap",
    is_flag=True,
    help="Continue although offsets are missing: lost, damaged, or deleted before they were read.",
)
_ACCEPT_NEW_LOG = click.option(
    "--accept-new-log",
    is_flag=True,
    help="Continue although it is another log than before: that one is lost, and its rows are kept.",
)


def _with_place(verb: Work, *, reads_log: bool = False) -> Verb:
    @wraps(verb)
    def with_place(*, file: Path | None, flags: dict[str, Any], confs: Sequence[str] = (), **more: Any) -> None:
        url, token = (more.pop("url"), more.pop("token")) if reads_log else (None, None)
        if url is not None and "data_dir" in flags:
            raise click.UsageError("expected either --data-dir or --from, not both")
        settings = load_settings(file, flags).settings
        log = {"path": settings.data_dir}
        if url is not None:
            log = {"url": url} | ({"token": token} if token else {})
        spark = dict(map(_pair, confs))
        need_installed()
        named = settings.pipeline.lake

        def run() -> int | None:
            lake = place_of(named) if named else Path(settings.data_dir, "lake")
            return verb(place=Place(settings, lake, log, token, spark), **more)

        sys.exit(_exit_code(run))

    return with_place


def is_installed() -> bool:
    """Whether the extra [pipeline] is installed."""
    return all(importlib.util.find_spec(name) is not None for name in _MODULES)


def need_installed() -> None:
    """Print how to install the extra [pipeline] and exit, unless it is installed."""
    if not is_installed():
        print_status(NOT_INSTALLED)
        sys.exit(USAGE_ERROR)


def _pair(text: str) -> tuple[str, str]:
    name, is_there, value = text.partition("=")
    if not (name and is_there):
        raise click.UsageError(f"--conf {text}: expected KEY=VALUE")
    return name, value


def _exit_code(verb: Callable[[], int | None]) -> int:
    """Run a verb and return its exit code; 2 if it was refused without a change, 1 if it failed. Prints the error."""
    try:
        return verb() or DONE
    except (click.ClickException, click.Abort):
        raise
    except Exception as error:  # noqa: BLE001 - Spark's errors have many classes
        cause = cause_of(error)
        print_status(str(cause))
        return USAGE_ERROR if isinstance(cause, JobRejected) else FAILED


# Jobs


@click.group("pipeline")
def pipeline_group() -> None:
    """Run the jobs that read the log with Spark: a lake of all events, live statistics, alerts.

    Jobs may be killed at any time; the same command continues where they were.
    """


_SERVER = click.option(
    "--server",
    envvar="HALLEY_SERVER",
    show_envvar=True,
    metavar="URL",
    help=f"Where results are published. [default: the server of --from, else {DEFAULT_SERVER}]",
)
_NO_PUBLISH = click.option("--no-publish", is_flag=True, help="Only write the tables.")


@pipeline_group.command()
@click.option(
    "--archive-classes",
    "archives_classes",
    is_flag=True,
    help="Also archive Spark's classes in ~/.cache/halley (200 MB): later commands start in half the time.",
)
@pipeline_options
def doctor(*, archives_classes: bool, place: Place) -> int:
    """Check what the pipeline needs, start Spark, read one row, and print how long each step took."""
    from halley.pipeline.doctor import diagnose

    log = place.log if "url" in place.log or Path(place.log["path"], "log.json").exists() else None
    is_ok = True
    for step in diagnose(place.settings.pipeline, log, archives_classes=archives_classes):
        click.echo(f"{step.name:<10} {step.took_s:6.2f} s  {step.found}")
        is_ok = step.is_ok
    return DONE if is_ok else FAILED


@pipeline_group.command("init")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@_SERVER
@_NO_PUBLISH
@_FROM
@config_option
@setting_options({"data_dir": _LAKE["data_dir"]})
def init_project(
    *, folder: Path, server: str | None, no_publish: bool, url: str | None, file: Path | None, flags: dict[str, Any]
) -> None:
    """Write a project for Spark's declarative pipelines over the log into DIR, which is empty or does not exist.

    `spark-pipelines run` then fills tables of events, of the numbers in payloads and of counts by the minute, and
    publishes the counts to /minutes/**. A token is not written: it is in HALLEY_TOKEN when the project runs.
    """
    if url is not None and "data_dir" in flags:
        raise click.UsageError("expected either --data-dir or --from, not both")
    log = {"path": str(Path(load_settings(file, flags).settings.data_dir).absolute())} if url is None else {"url": url}
    need_installed()

    def run() -> None:
        from halley.pipeline import session
        from halley.pipeline.project.init import write

        publishes_to = None if no_publish else server or url or DEFAULT_SERVER
        files = write(folder, log, publishes_to, session.find_java().home)
        print_status(f"wrote {len(files)} files into {folder}: its README.md says how to run it")

    sys.exit(_exit_code(run))


@pipeline_group.command()
@job_options
def ingest(*, is_once: bool, accept_gap: bool, accept_new_log: bool, place: Place) -> int:
    """Copy every event of the log into the lake, each exactly once."""
    return _run(place, ["ingest"], is_once=is_once, accept_gap=accept_gap, accept_new_log=accept_new_log)


def _publishing(name: str, names: list[str], text: str) -> None:
    @_SERVER
    @_NO_PUBLISH
    @job_options
    def verb(*, server: str | None, no_publish: bool, place: Place, **how: bool) -> int:
        url = None if no_publish else server or place.log.get("url") or DEFAULT_SERVER
        return _run(place, names, server=url, **how)

    verb.__doc__ = text
    pipeline_group.command(name)(verb)


_publishing(
    "rollup",
    ["rollup"],
    """Count events by channel and protocol in windows of 10 s and 1 min, and publish to /stats/10s and /stats/1m.

    Open windows are published while they grow, and once more when they are final.""",
)
_publishing(
    "alerts", ["alerts"], "Publish to /alerts which channels are much busier than usual, or have fallen silent."
)
_publishing("run", ["ingest", "rollup", "alerts"], "Run ingest, rollup and alerts together, and show their progress.")


@pipeline_group.command()
@_ONCE
@pipeline_options
def sessions(*, is_once: bool, place: Place) -> int:
    """Record the length of sessions and the returns of clients.

    They are derived from the events in the lake, and written to its table sessions.
    """
    return _run(place, ["sessions"], is_once=is_once)


def _run(
    place: Place,
    names: Sequence[str],
    *,
    is_once: bool,
    accept_gap: bool = False,
    accept_new_log: bool = False,
    server: str | None = None,
) -> int:
    """Run jobs until they are done (`is_once`), a signal ends them, or one fails; returns the exit code.

    Results are published to the URL `server`; None: they are not published.
    """
    from halley.pipeline import session
    from halley.pipeline.jobs.publishing import Publisher
    from halley.pipeline.jobs.run import run as run_jobs

    options = place.settings.pipeline
    log = _checked(place, names, accept_new_log=accept_new_log)
    head = None if log is None else lambda: log.head().next
    with ExitStack() as stack:
        publisher = None
        if server is not None:
            publisher = Publisher(server, place.token, options.publish_s)
            stack.callback(publisher.close)
        spark = session.start(options, "halley " + " ".join(names), configuration=place.spark)
        stack.callback(spark.stop)
        make = partial(_job, accept_gap=accept_gap, accept_new_log=accept_new_log, publisher=publisher)
        jobs = {name: make(name, spark, place) for name in names}
        line = StatusLine()
        stack.callback(line.finish)
        ended_by = run_jobs(
            spark,
            jobs,
            lambda status: line.show([str(each) for each in status]),
            is_once=is_once,
            publisher=publisher,
            head=head,
        )
    return INTERRUPTED if ended_by == signal.SIGINT else DONE


def _checked(place: Place, names: Sequence[str], *, accept_new_log: bool) -> Log | None:
    """Check that the log and the lake can be used, before Spark starts and anything is written.

    Returns the log; None for jobs that need only the lake. Raises `JobRejected`.
    """
    from halley.pipeline.lake import shapes, tables
    from halley.pipeline.lake.sources import LogSource
    from halley.pipeline.source import open_log
    from halley.pipeline.source.columns import ColumnExtraction, lifts_of

    need_writable(place.lake)
    master = place.spark.get("spark.master", place.settings.pipeline.master)
    if "alerts" in names and not isinstance(place.lake, Path) and not master.startswith("local"):
        raise JobRejected(
            f"alerts need --master local[*] as {place.lake} is in an object store: Spark keeps their state in a folder"
        )
    if names == ["sessions"]:
        tables.open_all(place.lake)
        return None
    log = open_log(place.log)
    lifted = shapes.lifted_columns(ColumnExtraction(lifts_of(place.settings)).columns if "ingest" in names else {})
    try:
        log_id = log.head().log_id
    except JobFailed as error:
        raise JobRejected(str(error)) from error  # nothing was begun
    origin = LogSource(place.settings.pipeline.source, log_id)
    tables.check(place.lake, origin, lifted, accepts_new_log=accept_new_log)
    return log


def _job(
    name: str,
    spark: SparkSession,
    place: Place,
    *,
    accept_gap: bool,
    accept_new_log: bool,
    publisher: Publisher | None,
) -> Job:
    from halley.pipeline.jobs.alerts import Alerts
    from halley.pipeline.jobs.ingest import Ingest
    from halley.pipeline.jobs.rollup import Rollup
    from halley.pipeline.jobs.sessions import Sessions
    from halley.pipeline.source.columns import lifts_of

    if name == "sessions":
        return Sessions(place.lake)
    jobs: dict[str, type[LogJob]] = {"ingest": Ingest, "rollup": Rollup, "alerts": Alerts}
    options, lift = place.settings.pipeline, lifts_of(place.settings)
    return jobs[name](
        spark,
        place.log,
        place.lake,
        options,
        lift=lift,
        accept_gap=accept_gap,
        accept_new_log=accept_new_log,
        publisher=publisher,
    )


# Upkeep of the lake


@pipeline_group.command()
@click.option("--table", "names", type=click.Choice(TABLES), multiple=True, help="Only this one. [default: all]")
@lake_options
def compact(*, names: tuple[str, ...], place: Place) -> None:
    """Replace many small files by few large sorted ones; jobs can keep running."""
    from halley.pipeline.lake import upkeep

    with lake_bar("compacting", place.lake, writes=True) as bar:
        for name in names or TABLES:
            done = upkeep.compact(place.lake, name, partial(bar.show, note=name))
            bar.finish()
            if done.before:
                print_status(f"{name}: compacted {done.before:,} files into {done.after:,}, with {done.rows:,} rows")


@pipeline_group.command()
@lake_options
def vacuum(*, place: Place) -> None:
    """Delete files that no table has used for a week: those of killed jobs, and those that compaction replaced.

    The setting pipeline.vacuum_age changes that age.
    """
    from halley.pipeline.lake import upkeep

    with lake_bar("deleting", place.lake, writes=True) as bar:
        done = upkeep.vacuum(place.lake, parse_age(place.settings.pipeline.vacuum_age), bar.show)
    print_status(f"deleted {done.files:,} files with {done.nbytes:,} bytes")


@pipeline_group.command()
@click.option("--all", "is_thorough", is_flag=True, help="Check every row, instead of some of each file.")
@lake_options
def verify(*, is_thorough: bool, place: Place) -> int:
    """Check that each event is in the lake exactly once and unchanged, and count the rollups again.

    The exit code is 1 if anything is wrong.
    """
    from halley.pipeline.lake import verify as checks

    is_sound = True
    with lake_bar("verifying", place.lake) as bar:
        for finding in checks.verify(place.lake, is_thorough=is_thorough, on_progress=partial(bar.show, note="rows")):
            bar.finish()
            click.echo(f"{finding.what}: {finding.text}")
            is_sound = is_sound and finding.is_sound
    print_status("sound" if is_sound else "something is wrong")
    return DONE if is_sound else FAILED


@contextmanager
def lake_bar(label: str, lake: LakePath, *, writes: bool = False) -> Iterator[ProgressBar]:
    """Show a progress bar during work on a lake. Raises `JobRejected` if there is none, or none that takes `writes`."""
    from halley.pipeline.lake import tables

    if not tables.open_all(lake):  # first of all, since a lock is a file that would be created there
        raise JobRejected(f"there is no lake in {lake}: halley pipeline ingest makes one")
    if writes:
        need_writable(lake)
    bar = ProgressBar(label)
    try:
        yield bar
    finally:
        bar.finish()
