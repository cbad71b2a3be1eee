"""`halley pipeline compact | vacuum | verify` and `halley lake forget`: maintenance of a lake."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

import click

from app.cli.console import DONE, FAILED, say
from app.cli.outcome import told
from app.cli.pipeline_options import Place
from app.cli.progress import ShareBar
from app.history.rules import parse_age
from app.pipeline.errors import Refused
from app.pipeline.lake import forget as erasing
from app.pipeline.lake import tables, upkeep
from app.pipeline.lake import verify as looking

if TYPE_CHECKING:
    from app.broker.erasure import Erasure


def compact(place: Place, names: Iterable[str]) -> int:
    """Compact the named tables, one after the other; returns the exit code."""

    def work(bar: ShareBar) -> int:
        for name in names:
            done = upkeep.compact(place.lake, name, partial(_show, bar, name))
            bar.finish()
            if done.before:
                say(f"{name}: compacted {done.before:,} files into {done.after:,}, with {done.rows:,} rows")
        return DONE

    return _with_bar("compacting", place, work)


def vacuum(place: Place) -> int:
    """Delete unused files of all tables; returns the exit code."""

    def work(bar: ShareBar) -> int:
        age_s = parse_age(place.settings.pipeline.vacuum_age)
        done = upkeep.vacuum(place.lake, age_s, lambda done, of: bar.show(done, of, ""))
        bar.finish()
        say(f"deleted {done.files:,} files with {done.nbytes:,} bytes")
        return DONE

    return _with_bar("deleting", place, work)


def verify(place: Place, *, is_thorough: bool) -> int:
    """Check the lake, and print each finding; returns the exit code."""

    def work(bar: ShareBar) -> int:
        is_sound = True
        for finding in looking.verify(place.lake, is_thorough=is_thorough, on_progress=partial(_show, bar, "rows")):
            bar.finish()
            click.echo(f"{finding.what}: {finding.told}")
            is_sound = is_sound and finding.is_sound
        say("sound" if is_sound else "something is wrong")
        return DONE if is_sound else FAILED

    return _with_bar("verifying", place, work)


def forget(place: Place, erasure: Erasure) -> int:
    """Erase a channel's or a publisher's rows from all tables; returns the exit code."""

    def work(bar: ShareBar) -> int:
        gone = erasing.forget(place.lake, erasure, lambda done, of: bar.show(done, of, "files"))
        bar.finish()
        for each in gone:
            if each.rows:
                say(f"{each.table}: {each.rows:,} rows")
        say(f"erased {sum(each.rows for each in gone):,} rows")
        return DONE

    return _with_bar("erasing", place, work)


def _show(bar: ShareBar, note: str, done: int, of: int) -> None:
    bar.show(done, of, note)


def _with_bar(label: str, place: Place, work: Callable[[ShareBar], int]) -> int:
    bar = ShareBar(label)

    def with_bar() -> int:
        if not tables.look(place.lake):  # first of all, since a lock is a file that would be created there
            raise Refused(f"there is no lake in {place.lake}: halley pipeline ingest makes one")
        try:
            return work(bar)
        finally:
            bar.finish()

    return told(with_bar)
