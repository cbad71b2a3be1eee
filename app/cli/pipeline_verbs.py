"""The verbs of `halley pipeline` and their options."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from app.cli.options import DEFAULT_SERVER
from app.cli.pipeline_options import Place, lake_options, pipeline_options

Verb = Callable[..., None]

TABLES = ("events", "rejected", "gaps", "rollups", "sessions", "alerts")


@click.group("pipeline")
def pipeline_group() -> None:
    """Run the jobs that read the log with Spark: a lake of all events, live statistics, alerts.

    Jobs may be killed at any time; the same command continues where they were.
    """


_ONCE = click.option("--once", "is_once", is_flag=True, help="End when all that the log has now is processed.")
_ACCEPT_GAP = click.option(
    "--accept-gap", is_flag=True, help="Continue although offsets are missing: lost, or deleted before they were read."
)
_SERVER = click.option(
    "--server",
    envvar="HALLEY_SERVER",
    show_envvar=True,
    metavar="URL",
    help=f"Where results are published. [default: the server of --from, else {DEFAULT_SERVER}]",
)
_NO_PUBLISH = click.option("--no-publish", is_flag=True, help="Only write the tables.")
_THOROUGH = click.option("--all", "is_thorough", is_flag=True, help="Check every row, instead of some of each file.")


@pipeline_group.command()
@click.option(
    "--archive-classes",
    "archives_classes",
    is_flag=True,
    help="Also archive Spark's classes in ~/.cache/halley (200 MB): later commands start in half the time.",
)
@pipeline_options
def doctor(*, archives_classes: bool, place: Place) -> None:
    """Check what the pipeline needs, start Spark, read one row, and print how long each step took."""
    from app.cli import pipeline

    sys.exit(pipeline.doctor(place, archives_classes=archives_classes))


@pipeline_group.command()
@_ONCE
@_ACCEPT_GAP
@pipeline_options
def ingest(*, is_once: bool, accept_gap: bool, place: Place) -> None:
    """Copy every event of the log into the lake, each exactly once."""
    from app.cli import pipeline

    sys.exit(pipeline.run(place, ["ingest"], is_once=is_once, accept_gap=accept_gap))


def _publishing(name: str, names: list[str], text: str) -> None:
    @_ONCE
    @_ACCEPT_GAP
    @_SERVER
    @_NO_PUBLISH
    @pipeline_options
    def verb(*, is_once: bool, accept_gap: bool, server: str | None, no_publish: bool, place: Place) -> None:
        from app.cli import pipeline

        url = None if no_publish else server or place.log.get("url") or DEFAULT_SERVER
        sys.exit(pipeline.run(place, names, is_once=is_once, accept_gap=accept_gap, server=url))

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
_publishing(
    "run",
    ["ingest", "rollup", "alerts"],
    "Run ingest, rollup and alerts together, and show their progress.",
)


@pipeline_group.command()
@_ONCE
@pipeline_options
def sessions(*, is_once: bool, place: Place) -> None:
    """Record the length of sessions and the returns of clients.

    They are derived from the events in the lake, and written to its table sessions.
    """
    from app.cli import pipeline

    sys.exit(pipeline.run(place, ["sessions"], is_once=is_once))


@pipeline_group.command()
@click.option("--table", "names", type=click.Choice(TABLES), multiple=True, help="Only this one. [default: all]")
@lake_options
def compact(*, names: tuple[str, ...], place: Place) -> None:
    """Replace many small files by few large sorted ones; jobs can keep running."""
    from app.cli import pipeline_upkeep

    sys.exit(pipeline_upkeep.compact(place, names or TABLES))


@pipeline_group.command()
@lake_options
def vacuum(*, place: Place) -> None:
    """Delete files that no table has used for a week: those of killed jobs, and those that compaction replaced.

    The setting pipeline.vacuum_age changes that age.
    """
    from app.cli import pipeline_upkeep

    sys.exit(pipeline_upkeep.vacuum(place))


@pipeline_group.command()
@_THOROUGH
@lake_options
def verify(*, is_thorough: bool, place: Place) -> None:
    """Check that each event is in the lake exactly once and unchanged, and count the rollups again.

    The exit code is 1 if anything is wrong.
    """
    from app.cli import pipeline_upkeep

    sys.exit(pipeline_upkeep.verify(place, is_thorough=is_thorough))
