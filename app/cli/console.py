"""What the person at the terminal is told, and how a verb ends."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

DONE, FAILED, WRONG_USE, INTERRUPTED = 0, 1, 2, 130

_LINE_CHARS = 400


def say(text: str) -> None:
    """One line on standard error. What a server sent cannot steer the terminal by it, nor fill it."""
    tame = text if text.isprintable() else text.encode("unicode_escape").decode()
    with suppress(OSError):  # nobody listens any more
        click.echo(f"halley: {tame[:_LINE_CHARS]}", err=True)


def run(work: Coroutine[None, None, int], *, leave_on: Iterable[signal.Signals] = ()) -> int:
    """Run a verb to its exit code. Ctrl-C and SIGTERM cancel it, so that it can say goodbye; again, it goes at once.

    A verb that runs until it is told to leave has done its work when one of the signals `leave_on` says so.
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
        with suppress(NotImplementedError):  # on Windows Ctrl-C cancels all the same
            asyncio.get_running_loop().add_signal_handler(wanted, cancel, wanted)
    try:
        return await work
    except asyncio.CancelledError:
        return DONE if received and received[0] in leave_on else INTERRUPTED
