"""`halley lake`: queries of the lake, with results on standard output or in a file, and replays of its events.

Spark and Arrow are imported by the verb that needs them, as in `pipeline.py`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from halley.broker.errors import InvalidName
from halley.broker.events import to_ns
from halley.cli.channels import erasure_of, pattern_of_name
from halley.cli.options import client_of, named, server_options
from halley.cli.pipeline import Place, lake_bar, lake_options, spark_options
from halley.cli.terminal import CONTROLS, DONE, FAILED, STDOUT, USAGE_ERROR, ProgressBar, print_status, run
from halley.history.rules import parse_age
from halley.pipeline.errors import JobRejected, PipelineError, cause_of
from halley.pipeline.lake.place import LakePath
from halley.protocols.bayeux.names import NameLimits, to_topic

if TYPE_CHECKING:  # heavy
    from halley.client import Client
    from halley.pipeline.queries.replay import Plan
    from halley.pipeline.queries.sql import Answer, By

_NO_BOUNDS = NameLimits(1 << 20, 1 << 20)
"""No limits: the names in the lake were within the limits of its server."""


# Options


def _moment(text: str) -> int:
    """Parse an RFC 3339 time, as microseconds since 1970, rounded up."""
    try:
        return -(-to_ns(text) // 1_000)
    except ValueError:
        raise click.BadParameter(f"{text} is not an RFC 3339 time such as 2026-07-01T12:00:00Z") from None


def _age(text: str) -> float:
    """Parse a duration, as seconds."""
    try:
        return parse_age(text)
    except ValueError:
        raise click.BadParameter(f"{text} is not a duration such as 90s, 30m, 1h or 7d") from None


def _speed(text: str) -> float:
    """Parse the speed of a replay as a multiple of the original speed; 0 for `max`, without pauses."""
    if text == "max":
        return 0.0
    with suppress(ValueError):
        speed = float(text.removesuffix("x"))
        if 0 < speed < 1e9:
            return speed
    raise click.BadParameter(f"{text} is not a speed such as 1x, 10x, 0.5x or max")


# Verbs


@click.group("lake")
def lake_group() -> None:
    """Query the lake that `halley pipeline ingest` fills.

    The lake keeps events that the log has deleted.
    """


_FROM = click.option(
    "--from", "from_us", type=_moment, metavar="TIME", help="Only what is at or after this time (RFC 3339)."
)
_TO = click.option("--to", "to_us", type=_moment, metavar="TIME", help="Only what is before this time.")
_SOURCE = click.option("--source", metavar="NAME", help="Only events of this source. [default: the lake's only one]")
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
def sql(*, query: str, form: str | None, out: Path | None, explain: bool, place: Place) -> int:
    """Run a QUERY in Spark's SQL on the lake, or SHOW TABLES, SHOW COLUMNS, DESCRIBE or EXPLAIN.

    The views are events, rejected, gaps, mismatches, rollups, sessions and alerts. Each view with a topic has its
    channel, too, and its name as its publisher writes it; each column that ends in _us also exists as a timestamp
    (UTC): time_us as time. Files that cannot have matching rows, according to the tables' statistics, are not read.
    """
    from halley.pipeline.queries.sql import ask

    return _answer(place, lambda spark: ask(spark, place.lake, query), form, out, explains=explain)


@lake_group.command()
@click.option(
    "--by", type=click.Choice(["events", "bytes"]), default="events", show_default=True, help="What to count."
)
@click.option(
    "--last", type=_age, metavar="AGE", help="Only events of at most this age, such as 1h or 7d. [default: all]"
)
@click.option("--limit", type=click.IntRange(1, 100_000), default=20, show_default=True, help="Number of channels.")
@_FORMAT
@_OUT
@spark_options
def top(*, by: str, last: float | None, limit: int, form: str | None, out: Path | None, place: Place) -> int:
    """Print the busiest channels, with the names that most of their events were published to."""
    from halley.pipeline.queries.sql import top as ask

    since_us = None if last is None else int((time.time() - last) * 1_000_000)
    return _answer(place, lambda spark: ask(spark, place.lake, cast("By", by), since_us, limit), form, out)


@lake_group.command()
@click.argument("name")
@_FROM
@_TO
@click.option("--limit", type=click.IntRange(1), help="The maximum number of events. [default: all]")
@_SOURCE
@lake_options
def history(
    *, name: str, from_us: int | None, to_us: int | None, limit: int | None, source: str | None, place: Place
) -> None:
    """Print the events of a channel, a pattern or a NAME, one JSON object a line, oldest first.

    A NAME such as com.shop.order is a URI of WAMP, of the first realm; one that begins with a slash and is not a
    channel is a name of NetworkTables. Events of all protocols on that topic are printed.

    This is `halley history` for times that the log has deleted. Anyone who can read the lake's files can read all
    events: audiences and access rules are enforced by servers only.
    """
    from halley.pipeline.queries.events import Selection, lines

    selection = Selection(pattern_of_name(name, _NO_BOUNDS), from_us, to_us)

    events = islice(chain.from_iterable(lines(place.lake, selection, source)), limit)
    _print(f"{line.translate(CONTROLS)}\n" for line in events)


@lake_group.command()
@click.option("--channel", required=True,
              help="The channel to replay, a pattern such as /plc/**, or a name in WAMP or NetworkTables.")  # fmt: skip
@_FROM
@_TO
@click.option("--speed", type=_speed, default="1x", show_default=True, metavar="SPEED",
              help="10x: ten times as fast; max: no pauses.")  # fmt: skip
@click.option("--prefix", default="/replay", show_default=True,
              help="Publish below this channel: /replay, or one below it.")  # fmt: skip
@click.option("--restart", is_flag=True, help="Begin again from the start instead of resuming.")
@_SOURCE
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
    source: str | None,
    server: str,
    token: str | None,
    place: Place,
) -> int:
    """Publish old events again, in their order and at their pace, each for the audience that it had.

    /a/b becomes /replay/a/b. The same command resumes a replay that was stopped; no event is published twice or left
    out. The server's own channels (/stats, /alerts, /halley, /replay) are never replayed.
    """
    from halley.client import Client
    from halley.pipeline.queries.events import Selection
    from halley.pipeline.queries.replay import Plan

    if prefix != "/replay" and not prefix.startswith("/replay/"):
        raise click.UsageError(f"--prefix {prefix}: expected /replay, or a channel below it")
    try:
        to_topic(prefix, _NO_BOUNDS)
    except InvalidName:
        raise click.UsageError(f"--prefix {prefix} is not a channel") from None
    plan = Plan(Selection(pattern_of_name(channel, _NO_BOUNDS), from_us, to_us), speed, prefix, server, source)
    client = client_of(Client, server, token)
    return run(_replay(client, place.lake, plan, is_new=restart))


@lake_group.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The page, an HTML file.")
@_FROM
@_TO
@lake_options
def report(*, out: Path, from_us: int | None, to_us: int | None, place: Place) -> None:
    """Write a page of plots: events by time and protocol, busy channels, the delay of the lake, alerts.

    The page is one file, which loads nothing from the network.
    """
    from halley.pipeline.queries.report import page
    from halley.pipeline.queries.report_data import collect

    text = page(collect(place.lake, from_us, to_us), place.lake, time.time_ns() // 1_000)
    with _new_file(out, replaces=True) as draft:
        draft.write_text(text, encoding="utf-8")
    print_status(f"{out} shows the lake at {place.lake}")


@lake_group.command()
@click.argument("name", required=False)
@click.option("--publisher", metavar="AUTHID", help="Instead of a name: an authid's events, and those about it.")
@click.option("--source", metavar="NAME", help="Only what is from the log of this source. [default: from all logs]")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@lake_options
def forget(*, name: str | None, publisher: str | None, source: str | None, yes: bool, place: Place) -> None:
    """Erase the rows of a channel, a pattern or a NAME permanently, from every table and from the disk.

    A NAME is one in WAMP or NetworkTables, as for `halley lake history`; the whole topic is erased.

    If the log still has these events, purge them there first (halley history purge): otherwise an ingest into a new
    lake would bring them back.
    """
    from halley.pipeline.lake import forget as erasing

    erasure = erasure_of(named(name, publisher, is_sure=yes), place.settings, pattern_of_name)

    with lake_bar("erasing", place.lake, writes=True) as bar:
        show = partial(bar.show, note="files")
        erased_rows = erasing.forget(place.lake, erasure, show, source=source)
    for table, rows in erased_rows.items():
        if rows:
            print_status(f"{table}: {rows:,} rows")
    print_status(f"erased {sum(erased_rows.values()):,} rows")


# The work


async def _replay(client: Client, lake: LakePath, wanted: Plan, *, is_new: bool) -> int:
    from halley.client import ClientError
    from halley.pipeline.queries.replay import Replay

    work = Replay(lake, wanted, is_new=is_new)
    if work.doubt is not None:
        first, last = work.doubt
        print_status(
            f"offsets {first} to {last} were being published when this replay was killed: some may be published twice"
        )
    bar = ProgressBar("replaying")
    try:
        async with client:
            outcome = await work.run(client, bar.show)
    except (ClientError, PipelineError, asyncio.CancelledError) as error:
        bar.finish()
        if not isinstance(error, asyncio.CancelledError):
            print_status(str(error))
        if work.published:
            print_status(f"published {work.published:,} events; the same command resumes from there")
        if isinstance(error, asyncio.CancelledError):
            raise
        return USAGE_ERROR if isinstance(error, JobRejected) else FAILED
    bar.finish()
    for reason in outcome.reasons:
        print_status(f"not published: {reason}")
    refused = f", {outcome.refused:,} were refused" if outcome.refused else ""
    print_status(f"published {outcome.published:,} events below {wanted.prefix}{refused}")
    return FAILED if outcome.refused else DONE


def _answer(
    place: Place, ask: Callable[[Any], Answer], form: str | None, out: Path | None, *, explains: bool = False
) -> int:
    form = form or ("table" if out is None and os.isatty(STDOUT) else "csv")
    if form == "parquet" and out is None:
        raise click.UsageError("--format parquet needs --out FILE")
    from halley.pipeline import session
    from halley.pipeline.queries.sql import computing

    if out is not None and out.exists():
        raise JobRejected(f"{out} already exists")
    with ExitStack() as stack:
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.CRITICAL)  # PySpark logs errors, which we say in a sentence, and Ctrl-C
        try:
            spark = session.start(place.settings.pipeline, "halley lake", configuration=place.spark)
            stack.callback(spark.stop)
            signal.signal(signal.SIGINT, signal.default_int_handler)  # PySpark's calls Java in the middle of a call
            found = ask(spark)
            if explains or found.explained:
                _put([f"{found.plan}\n"], out)
                return DONE
            with computing():
                _write(found, form, out)
        except Exception as error:
            raise cause_of(error) from error
    if os.isatty(STDOUT):
        for reading in found.readings:
            print_status(f"read {reading}")
    return DONE


def _write(found: Answer, form: str, out: Path | None) -> None:
    from halley.pipeline.queries import output

    if form == "parquet":
        assert out is not None
        output.write_parquet(found.rows, out)
        return
    width = shutil.get_terminal_size().columns if out is None and os.isatty(STDOUT) else None
    if form == "table":
        texts = output.as_table(found.rows, width)
    elif form == "csv":
        texts = output.as_csv(found.rows)
    else:
        texts = (line.translate(CONTROLS) for line in output.as_json(found.rows))
    _put(texts, out)


def _put(texts: Iterable[str], out: Path | None) -> None:
    """Write to a new file, or without one to standard output."""
    if out is None:
        _print(texts)
        return
    with _new_file(out) as draft, draft.open("w", encoding="utf-8", newline="") as file:
        file.writelines(texts)


def _print(texts: Iterable[str]) -> None:
    """Write to standard output until its reader, if that is a pipe, closes it."""
    try:
        for text in texts:
            sys.stdout.buffer.write(text.encode())
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)  # else Python would report an error when it exits


@contextmanager
def _new_file(out: Path, *, replaces: bool = False) -> Iterator[Path]:
    """Yield a draft that becomes the file `out` when the block ends without an error. Raises `JobRejected`."""
    draft = out.with_name(f".{out.name}.part")
    try:
        try:
            yield draft
            if out.exists() and not replaces:
                raise JobRejected(f"{out} already exists")
            draft.replace(out)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise JobRejected(f"{out} cannot be written: {error.strerror}") from error
