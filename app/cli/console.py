"""Messages to the person at the terminal, and the exit codes of verbs."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Iterable
from contextlib import suppress

import click

DONE, FAILED, WRONG_USE, INTERRUPTED = 0, 1, 2, 130

_LINE_CHARS = 400


def say(text: str) -> None:
    """Print a line on standard error. Control characters are escaped and long texts cut: they may be a server's."""
    tame = text if text.isprintable() else text.encode("unicode_escape").decode()
    with suppress(OSError):  # standard error has been closed
        click.echo(f"halley: {tame[:_LINE_CHARS]}", err=True)


def run(work: Coroutine[None, None, int], *, leave_on: Iterable[signal.Signals] = ()) -> int:
    """Run a verb and return its exit code.

    Ctrl-C and SIGTERM cancel it, so that it can close its session; a second one cancels that, too. The exit code is
    then `INTERRUPTED`, but `DONE` where the first signal was one of `leave_on`: those are how a verb that runs until it
    is stopped is meant to end.
    """
    return asyncio.run(_interruptible(work, {*leave_on}))


async def _interruptible(work: Coroutine[None, None, int], leave_on: set[signal.Signals]) -> int:
    task = asyncio.current_task()
    assert task is not None
    received: list[signal.Signals] = []

    def cancel(number: signal.Signals) -> None:
        received.append(number)
        task.cancel()

    for wanted in {signal.SIGINT, signal.SIGTERM, *leave_on}:
        with suppress(NotImplementedError):  # on Windows, where Ctrl-C cancels anyway
            asyncio.get_running_loop().add_signal_handler(wanted, cancel, wanted)
    try:
        return await work
    except asyncio.CancelledError:
        return DONE if received and received[0] in leave_on else INTERRUPTED
