"""`halley lake`: queries of the lake, with results on standard output or in a file, and replays of its events."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from app.broker.errors import InvalidName
from app.cli.console import DONE, FAILED, WRONG_USE, run, say
from app.cli.options import pattern_of
from app.cli.outcome import told
from app.cli.pipeline_options import Place
from app.cli.pipes import STDOUT
from app.cli.progress import ShareBar
from app.client import Client, ClientError
from app.pipeline.errors import PipelineError, Refused
from app.pipeline.queries import output
from app.pipeline.queries.events import Selection, lines
from app.pipeline.queries.replay import Plan, Replay
from app.protocols.bayeux.names import Bounds, to_topic

if TYPE_CHECKING:
    from app.pipeline.queries.sql import Answer, By

_NO_BOUNDS = Bounds(1 << 20, 1 << 20)
"""No limits: the names in the lake were within the limits of its server."""

# JSON escapes the control characters below U+0020, but terminals also obey those from U+0080 on.
_CONTROLS = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}


def sql(place: Place, query: str, form: str | None, out: Path | None, *, explains: bool) -> int:
    """Run a query and write its rows, or with `explains` print its plan; returns the exit code.

    `form` is a format of `--format`; None: a table on a terminal, else csv.
    """
    from app.pipeline.queries.sql import ask

    return _answered(place, lambda spark: ask(spark, place.lake, query), form, out, explains=explains)


def top(place: Place, by: str, last_s: float | None, most: int, form: str | None, out: Path | None) -> int:
    """Write the `most` busiest channels of the last `last_s` seconds, or of all time; returns the exit code."""
    from app.pipeline.queries.sql import top as ask_top

    since_us = None if last_s is None else int((time.time() - last_s) * 1_000_000)
    return _answered(place, lambda spark: ask_top(spark, place.lake, cast("By", by), since_us, most), form, out)


def history(place: Place, channel: str, from_us: int | None, to_us: int | None, limit: int | None) -> int:
    """Print the events of a channel or pattern, at most `limit` unless that is None; returns the exit code.

    `from_us` is the first time that is included, `to_us` the first that is not, in microseconds since 1970.
    """
    selection = Selection(pattern_of(channel, _NO_BOUNDS), from_us, to_us)

    def wanted() -> Iterator[str]:
        left = limit
        for stretch in lines(place.lake, selection):
            found = stretch[:left]
            yield "".join(f"{line}\n" for line in found).translate(_CONTROLS)
            if left is not None:
                left -= len(found)
                if left <= 0:
                    return

    return told(lambda: _print(wanted()))


def plan(channel: str, from_us: int | None, to_us: int | None, speed: float, prefix: str, server: str) -> Plan:
    """Return the plan of a replay with these options. Raises `click.UsageError`."""
    try:
        to_topic(prefix, _NO_BOUNDS)
    except InvalidName:
        raise click.UsageError(f"--prefix {prefix} is not a channel") from None
    return Plan(Selection(pattern_of(channel, _NO_BOUNDS), from_us, to_us), speed, prefix, server)


def replay(place: Place, wanted: Plan, token: str | None, *, is_new: bool) -> int:
    """Publish the events of a plan again; returns the exit code. With `is_new` an interrupted replay is not resumed."""
    try:
        client = Client(wanted.server, token=token)
    except ValueError as error:
        raise click.UsageError(f"--server or --token: {error}") from None
    return told(lambda: run(_replay(client, place.lake, wanted, is_new=is_new)))


async def _replay(client: Client, lake: Path, wanted: Plan, *, is_new: bool) -> int:
    work = Replay(lake, wanted, is_new=is_new)
    if work.doubt is not None:
        first, last = work.doubt
        say(f"offsets {first} to {last} were being published when this replay was killed: some may be published twice")
    bar = ShareBar("replaying")
    try:
        async with client:
            outcome = await work.run(client, bar.show)
    except (ClientError, PipelineError, asyncio.CancelledError) as error:
        bar.finish()
        if not isinstance(error, asyncio.CancelledError):
            say(str(error))
        if work.published:
            say(f"published {work.published:,} events; the same command resumes from there")
        if isinstance(error, asyncio.CancelledError):
            raise
        return WRONG_USE if isinstance(error, Refused) else FAILED
    bar.finish()
    for reason in outcome.reasons:
        say(f"not published: {reason}")
    refused = f", {outcome.refused:,} were refused" if outcome.refused else ""
    say(f"published {outcome.published:,} events below {wanted.prefix}{refused}")
    return FAILED if outcome.refused else DONE


def report(place: Place, out: Path, from_us: int | None, to_us: int | None) -> int:
    """Write a page with plots of the lake's events to `out`; returns the exit code."""
    from app.pipeline.queries.report import page_of

    def draw() -> int:
        page = page_of(place.lake, from_us, to_us)
        with _new_file(out, replaces=True) as draft:
            draft.write_text(page, encoding="utf-8")
        say(f"{out} shows the lake at {place.lake}")
        return DONE

    return told(draw)


def _answered(
    place: Place, ask: Callable[[Any], Answer], form: str | None, out: Path | None, *, explains: bool = False
) -> int:
    form = form or ("table" if out is None and os.isatty(STDOUT) else "csv")
    if form == "parquet" and out is None:
        raise click.UsageError("--format parquet needs --out FILE")

    def answer() -> int:
        from app.pipeline import session
        from app.pipeline.queries.sql import computing

        if out is not None and out.exists():
            raise Refused(f"{out} already exists")
        spark = session.start(place.settings.pipeline, "halley lake", configuration=place.spark)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # PySpark's handler calls Java in the middle of a call
        try:
            found = ask(spark)
            if explains:
                return _explain(found)
            with computing():
                code = _write(found, form, out)
        finally:
            session.stop(spark)
        if os.isatty(STDOUT):
            for reading in found.readings:
                say(f"read {reading}")
        return code

    with _silent_logging():
        return told(answer)


@contextmanager
def _silent_logging() -> Iterator[None]:
    """Silence PySpark's log within the block: its errors are reported in one sentence, and Ctrl-C is not an error."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _explain(found: Answer) -> int:
    frame: Any = found.rows
    for reading in found.readings:
        click.echo(f"reads {reading}; no other file can have matching rows")
    click.echo(frame._jdf.queryExecution().toString())  # noqa: SLF001 - PySpark only prints it
    return DONE


def _write(found: Answer, form: str, out: Path | None) -> int:
    if form == "parquet":
        assert out is not None
        output.write_parquet(found.rows, out)
        return DONE
    width = shutil.get_terminal_size().columns if out is None and os.isatty(STDOUT) else None
    if form == "table":
        texts = output.as_table(found.rows, width)
    elif form == "csv":
        texts = output.as_csv(found.rows)
    else:
        texts = (line.translate(_CONTROLS) for line in output.as_json(found.rows))
    if out is None:
        return _print(texts)
    with _new_file(out) as draft, draft.open("w", encoding="utf-8", newline="") as file:
        file.writelines(texts)
    return DONE


def _print(texts: Iterable[str]) -> int:
    """Write to standard output until its reader, if that is a pipe, closes it."""
    try:
        for text in texts:
            sys.stdout.buffer.write(text.encode())
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)  # else Python would report an error when it exits
    return DONE


@contextmanager
def _new_file(out: Path, *, replaces: bool = False) -> Iterator[Path]:
    """Yield a draft that becomes the file `out` when the block ends without an error. Raises `Refused`."""
    draft = out.with_name(f".{out.name}.part")
    try:
        try:
            yield draft
            if out.exists() and not replaces:
                raise Refused(f"{out} already exists")
            draft.replace(out)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise Refused(f"{out} cannot be written: {error.strerror}") from error
