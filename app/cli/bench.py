"""`halley bench`: puts a load on a server, prints the result, and compares it with a saved one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from app.bench import (
    BenchFailed,
    Growth,
    comparison,
    durability_table,
    grow,
    growth_table,
    measure,
    measure_history,
    measure_nt4,
    measure_pipeline,
    measure_wamp,
    nt4_table,
    pipeline_table,
    table,
    wamp_table,
)
from app.bench.growth import check_plotting, plot
from app.cli.console import DONE, FAILED, say
from app.cli.progress import PhaseBar
from app.interpreter import module_command

if TYPE_CHECKING:
    from app.bench import Load, Nt4Plan, PipelinePlan, Plan, Target, WampPlan

    Serve = Callable[[], AbstractAsyncContextManager[Target]]


_FILL = [*module_command("app.cli.bench_stock"), "{folder}", "{count}", "{channels}", "{hours}", "{legible}"]


class Outcome(Protocol):
    """A `Result`, a `Growth`, a `Durability`, `PipelineFigures`, `WampFigures` or `Nt4Figures`."""

    @property
    def is_clean(self) -> bool:
        """Whether everything went as it should."""

    def as_json(self) -> dict[str, Any]:
        """Return the result as it is saved and compared."""


async def bench(load: Load, serve: Serve, *, is_json: bool, saved: dict[str, Any] | None) -> int:
    """Measure the server that `serve` provides once; returns the exit code. `saved` is a result to compare with."""
    try:
        with _bar() as bar:
            async with serve() as target:
                result = await measure(load, target, bar.show)
    except BenchFailed as error:
        say(str(error))
        return FAILED
    return _report(result, table(result), is_json=is_json, saved=saved)


async def bench_growth(
    serve: Serve,
    counts: dict[str, Any],
    *,
    seconds: float,
    processes: int,
    file: Path | None,
    is_json: bool,
    saved: dict[str, Any] | None,
) -> int:
    """Measure a server at many sizes, and plot the result into `file` unless that is None; returns the exit code."""
    try:
        with _bar() as bar:
            if file is not None:
                check_plotting()
            growth: Growth = await grow(serve, bar.show, seconds=seconds, processes=processes, **counts)
            if file is not None:
                plot(growth, file)
    except BenchFailed as error:
        say(str(error))
        return FAILED
    return _report(growth, growth_table(growth.receivers, growth.channels), is_json=is_json, saved=saved)


async def bench_history(plan: Plan, *, is_json: bool, saved: dict[str, Any] | None) -> int:
    """Measure the cost of the durable history and the speed of reading it; returns the exit code."""
    try:
        with _bar() as bar:
            found = await measure_history(plan, _FILL, bar.show)
    except BenchFailed as error:
        say(str(error))
        return FAILED
    return _report(found, durability_table(found), is_json=is_json, saved=saved)


async def bench_pipeline(plan: PipelinePlan, *, is_json: bool, saved: dict[str, Any] | None) -> int:
    """Measure Spark's reads, ingest and queries, the delay of rollups, and their cost to a server.

    Returns the exit code.
    """
    try:
        with _bar() as bar:
            found = await measure_pipeline(plan, _FILL, bar.show)
    except BenchFailed as error:
        say(str(error))
        return FAILED
    return _report(found, pipeline_table(found), is_json=is_json, saved=saved, wrong="; ".join(found.wrong))


async def bench_wamp(plan: WampPlan, *, is_json: bool, saved: dict[str, Any] | None) -> int:
    """Measure WAMP's fan-out on Halley with its history and without, and on crossbar; returns the exit code."""
    try:
        with _bar() as bar:
            found = await measure_wamp(plan, bar.show)
    except BenchFailed as error:
        say(str(error))
        return FAILED
    return _report(found, wamp_table(found), is_json=is_json, saved=saved, wrong="; ".join(found.wrong))


async def bench_nt4(plan: Nt4Plan, *, is_json: bool, saved: dict[str, Any] | None) -> int:
    """Measure NetworkTables' fan-out on Halley, and on ntcore; returns the exit code."""
    try:
        with _bar() as bar:
            found = await measure_nt4(plan, bar.show)
    except BenchFailed as error:
        say(str(error))
        return FAILED
    return _report(found, nt4_table(found), is_json=is_json, saved=saved, wrong="; ".join(found.wrong))


@contextmanager
def _bar() -> Iterator[PhaseBar]:
    """Show a progress bar within the block; it is finished before anything else is printed."""
    bar = PhaseBar()
    try:
        yield bar
    finally:
        bar.finish()


def _report(
    outcome: Outcome,
    text: str,
    *,
    is_json: bool,
    saved: dict[str, Any] | None,
    wrong: str = "see lost, repeated and errors",
) -> int:
    click.echo(json.dumps(outcome.as_json()) if is_json else text)
    if saved is not None:
        click.echo(comparison(saved, outcome.as_json()), err=is_json)
    if not outcome.is_clean:
        say(f"something went wrong: {wrong}")
        return FAILED
    return DONE
