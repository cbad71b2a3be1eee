"""The work of `halley bench`: the server that is measured, and what a measurement prints."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Protocol, TypeVar

import click

from halley.bench.load import BenchFailed
from halley.bench.measurement import Watch
from halley.bench.result import comparison
from halley.bench.target import Target, attached, halley_command, started
from halley.cli.terminal import DONE, FAILED, ProgressBar, print_status, run

Serve = Callable[[], AbstractAsyncContextManager[Target]]

_MOST_SESSIONS = 1_000_000  # what is measured is not the limit


def serving(
    *, server: str | None, token: str | None, pid: int | None, metrics: str | None, config: str | None, pin: bool
) -> Serve:
    """Return how to provide the server that the options describe."""
    if server is None:
        if pid or metrics:
            raise click.UsageError("--pid and --metrics are for a running --server")
        most = {} if config else {"HALLEY_LIMITS_SESSIONS": str(_MOST_SESSIONS)}
        return lambda: started(halley_command(config), token=token, is_pinned=pin, environment=most)
    if config:
        raise click.UsageError("--config is for a server that is started, not for a running --server")
    try:
        target = attached(server, token=token, pid=pid, metrics_url=metrics)
    except ValueError as error:
        raise click.UsageError(f"--server: {error}") from None
    return lambda: nullcontext(target)


# What measurements print


class Outcome(Protocol):
    """What a measurement found: a `Result`, or the figures of a measurement in tests/bench."""

    @property
    def wrong(self) -> Sequence[str]:
        """What went wrong, a phrase for each fault; if there are any, the exit code is `FAILED`."""

    def as_json(self) -> dict[str, Any]:
        """Return the result as it is saved and compared."""


Found = TypeVar("Found", bound=Outcome)


def print_measured(
    measuring: Callable[[Watch], Awaitable[Found]],
    show: Callable[[Found], str],
    *,
    is_json: bool,
    saved: dict[str, Any] | None,
) -> None:
    """Measure with a progress bar, print the result, and exit.

    The result is printed as JSON, or as the text that `show` makes of it, and compared with a `saved` one.
    """

    async def work() -> int:
        bar = ProgressBar(shows_eta=False)
        try:
            found = await measuring(
                lambda phase: bar.show(phase.done / phase.total, 1, phase.note, f"{phase.name:<10}")
            )
        except BenchFailed as error:
            bar.finish()
            print_status(str(error))
            return FAILED
        finally:
            bar.finish()  # before anything else is printed
        return report(found, show(found), is_json=is_json, saved=saved)

    sys.exit(run(work()))


def report(outcome: Outcome, text: str, *, is_json: bool, saved: dict[str, Any] | None) -> int:
    """Print an outcome, and compare it with a saved one; return the exit code."""
    click.echo(json.dumps(outcome.as_json()) if is_json else text)
    if saved is not None:
        click.echo(comparison(saved, outcome.as_json()), err=is_json)
    if outcome.wrong:
        print_status(f"something went wrong: {'; '.join(outcome.wrong)}")
        return FAILED
    return DONE
