"""The verbs of `halley lake` and their options."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from app.broker.timestamps import to_ns
from app.cli.erasing import erasure_of, named
from app.cli.options import server_options
from app.cli.pipeline_options import Place, lake_options, spark_options
from app.history.rules import parse_age


class Moment(click.ParamType[int]):
    """An RFC 3339 time, as microseconds since 1970, rounded up."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the time in microseconds since 1970, or fail with a usage error."""
        try:
            return value if isinstance(value, int) else -(-to_ns(value) // 1_000)
        except ValueError:
            self.fail(f"{value} is not an RFC 3339 time such as 2026-07-01T12:00:00Z", param, ctx)


class Age(click.ParamType[float]):
    """A duration such as 90s, 30m, 1h or 7d, as seconds."""

    name = "AGE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the duration in seconds, or fail with a usage error."""
        try:
            return value if isinstance(value, float) else parse_age(value)
        except ValueError:
            self.fail(f"{value} is not a duration such as 90s, 30m, 1h or 7d", param, ctx)


class Speed(click.ParamType[float]):
    """The speed of a replay as a multiple of the original speed, such as 10x; `max`, as 0, means without pauses."""

    name = "SPEED"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the factor, 0 for `max`, or fail with a usage error."""
        if isinstance(value, float):
            return value
        try:
            speed = 0.0 if value == "max" else float(value.removesuffix("x"))
        except ValueError:
            speed = -1.0
        if value != "max" and not 0 < speed < 1e9:
            self.fail(f"{value} is not a speed such as 1x, 10x, 0.5x or max", param, ctx)
        return speed


@click.group("lake")
def lake_group() -> None:
    """Query the lake that `halley pipeline ingest` fills.

    The lake keeps events that the log has deleted.
    """


_FROM = click.option("--from", "from_us", type=Moment(), help="Only what is at or after this time (RFC 3339).")
_TO = click.option("--to", "to_us", type=Moment(), help="Only what is before this time.")
_FORMAT = click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json", "parquet"]),
    help="The format of the rows; parquet needs --out. [default: a table on a terminal, else csv]",
)
_OUT = click.option("--out", type=click.Path(path_type=Path), help="Write to this new file instead of standard output.")


@lake_group.command()
@click.argument("query")
@_FORMAT
@_OUT
@click.option("--explain", is_flag=True, help="Instead, print which files would be read, and the plan.")
@spark_options
def sql(*, query: str, form: str | None, out: Path | None, explain: bool, place: Place) -> None:
    """Run a QUERY in Spark's SQL on the lake.

    The views are events, rejected, gaps, rollups, sessions and alerts. Each view with a topic has its channel, too, and
    each column that ends in _us also exists as a timestamp (UTC): time_us as time. Files that cannot have matching
    rows, according to the tables' statistics, are not read.
    """
    from app.cli import lake

    sys.exit(lake.sql(place, query, form, out, explains=explain))


@lake_group.command()
@click.option(
    "--by", type=click.Choice(["events", "bytes"]), default="events", show_default=True, help="What to count."
)
@click.option("--last", type=Age(), help="Only events of at most this age, such as 1h or 7d. [default: all]")
@click.option("--limit", type=click.IntRange(1, 100_000), default=20, show_default=True, help="Number of channels.")
@_FORMAT
@_OUT
@spark_options
def top(*, by: str, last: float | None, limit: int, form: str | None, out: Path | None, place: Place) -> None:
    """Print the busiest channels."""
    from app.cli import lake

    sys.exit(lake.top(place, by, last, limit, form, out))


@lake_group.command()
@click.argument("channel")
@_FROM
@_TO
@click.option("--limit", type=click.IntRange(1), help="The maximum number of events. [default: all]")
@lake_options
def history(*, channel: str, from_us: int | None, to_us: int | None, limit: int | None, place: Place) -> None:
    """Print the events of a CHANNEL or pattern, one JSON object a line, oldest first.

    This is `halley history` for times that the log has deleted. Anyone who can read the lake's files can read all
    events: audiences and access rules are enforced by servers only.
    """
    from app.cli import lake

    sys.exit(lake.history(place, channel, from_us, to_us, limit))


@lake_group.command()
@click.option("--channel", required=True, help="The channel to replay, or a pattern such as /plc/**.")
@_FROM
@_TO
@click.option("--speed", type=Speed(), default="1x", show_default=True, help="10x: ten times as fast; max: no pauses.")
@click.option(
    "--prefix", default="/replay", show_default=True, help="Publish below this channel: /replay, or one below it."
)
@click.option("--restart", is_flag=True, help="Begin again from the start instead of resuming.")
@lake_options
@server_options
def replay(  # noqa: PLR0913 - one for each option
    *,
    channel: str,
    from_us: int | None,
    to_us: int | None,
    speed: float,
    prefix: str,
    restart: bool,
    server: str,
    token: str | None,
    place: Place,
) -> None:
    """Publish old events again, in their order and at their pace, each for the audience that it had.

    /a/b becomes /replay/a/b. The same command resumes a replay that was stopped; no event is published twice or left
    out. The server's own channels (/stats, /alerts, /halley, /replay) are never replayed.
    """
    from app.cli import lake

    if prefix != "/replay" and not prefix.startswith("/replay/"):
        raise click.UsageError(f"--prefix {prefix}: expected /replay, or a channel below it")
    plan = lake.plan(channel, from_us, to_us, speed, prefix, server)
    sys.exit(lake.replay(place, plan, token, is_new=restart))


@lake_group.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The page, an HTML file.")
@_FROM
@_TO
@lake_options
def report(*, out: Path, from_us: int | None, to_us: int | None, place: Place) -> None:
    """Write a page of plots: events by time and protocol, busy channels, the delay of the lake, alerts.

    The page is one file, which loads nothing from the network.
    """
    from app.cli import lake

    sys.exit(lake.report(place, out, from_us, to_us))


@lake_group.command()
@click.argument("channel", required=False)
@click.option("--publisher", metavar="AUTHID", help="Instead of a channel: an authid's events, and those about it.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@lake_options
def forget(*, channel: str | None, publisher: str | None, yes: bool, place: Place) -> None:
    """Erase the rows of a CHANNEL or pattern permanently, from every table and from the disk.

    If the log still has these events, purge them there first (halley history purge): otherwise an ingest into a new
    lake would bring them back.
    """
    from app.cli import pipeline_upkeep

    erasure = erasure_of(named(channel, publisher, is_sure=yes), place.settings)
    sys.exit(pipeline_upkeep.forget(place, erasure))
