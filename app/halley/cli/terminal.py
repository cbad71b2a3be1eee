"""The terminal: messages, exit codes, interruptions, standard input and output, and the progress of long work.

Standard input and output are for a program that can be interrupted while it waits for them. A read or write that blocks
cannot be cancelled. Each is done by a thread for which the program does not wait when it ends; the event loop, and with
it the session, keeps running in the meantime. Progress is shown on standard error, as bars only where that is a
terminal.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import click

Result = TypeVar("Result")

DONE, FAILED, USAGE_ERROR, SIGNALLED, INTERRUPTED = 0, 1, 2, 128, 130
STDIN, STDOUT, STDERR = 0, 1, 2
CHUNK_BYTES = 65_536

CONTROLS = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}
"""For `str.translate` of JSON: it escapes the control characters below U+0020, but terminals also obey these."""

_LINE_CHARS = 400
_CLEAR_BAR = "\r\x1b[K"
_CLEAR_STATUS = "\r\x1b[2K"
_STATUS_EVERY_S = 10.0
"""Seconds between lines of status if standard error is not a terminal."""


def print_status(text: str) -> None:
    """Print a line on standard error. Control characters are escaped and long texts cut: they may be a server's."""
    tame = text if text.isprintable() else text.encode("unicode_escape").decode()
    with suppress(OSError):  # standard error has been closed
        click.echo(f"halley: {tame[:_LINE_CHARS]}", err=True)


def run(work: Coroutine[None, None, int], *, ended_by: Iterable[signal.Signals] = ()) -> int:
    """Run a verb and return its exit code.

    Ctrl-C and SIGTERM cancel it, so that it can close its session; a second one cancels that, too. The exit code is
    then `INTERRUPTED`, but `DONE` where the first signal was one of `ended_by`: those are how a verb that runs until it
    is stopped is meant to end.
    """
    return asyncio.run(_interruptible(work, {*ended_by}))


async def _interruptible(work: Coroutine[None, None, int], ended_by: set[signal.Signals]) -> int:
    task = asyncio.current_task()
    assert task is not None
    received: list[signal.Signals] = []

    def cancel(number: signal.Signals) -> None:
        received.append(number)
        task.cancel()

    for wanted in {signal.SIGINT, signal.SIGTERM, *ended_by}:
        with suppress(NotImplementedError):  # on Windows, where Ctrl-C cancels anyway
            asyncio.get_running_loop().add_signal_handler(wanted, cancel, wanted)
    try:
        return await work
    except asyncio.CancelledError:
        return DONE if received and received[0] in ended_by else INTERRUPTED


# Standard input and output


async def read_some(descriptor: int) -> bytes:
    """Wait for at least one byte and return what can be read; empty at the end of the input. Raises `OSError`."""
    return await _in_thread(lambda: os.read(descriptor, CHUNK_BYTES))


async def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`, unbuffered. Raises `OSError`, of which `BrokenPipeError` if the reader closed the pipe."""

    def write() -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]

    await _in_thread(write)


@contextmanager
def on_hang_up(descriptor: int, react: Callable[[], object]) -> Iterator[None]:
    """Within the block, call `react` as soon as the reader of a pipe closes it, without a write.

    Has no effect if `descriptor` is not a pipe.
    """
    is_pipe = stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    if not is_pipe:
        yield
        return
    loop = asyncio.get_running_loop()

    def hung_up() -> None:
        loop.remove_reader(descriptor)
        react()

    # The writing end of a pipe is never readable, but the event loop also reports its error condition as readable.
    with suppress(NotImplementedError):  # on Windows
        loop.add_reader(descriptor, hung_up)
    try:
        yield
    finally:
        with suppress(NotImplementedError):
            loop.remove_reader(descriptor)


async def _in_thread(work: Callable[[], Result]) -> Result:
    done: Future[Result] = Future()

    def thread() -> None:
        with suppress(InvalidStateError):  # it was cancelled: nobody waits for it any more
            try:
                done.set_result(work())
            except OSError as error:
                done.set_exception(error)

    threading.Thread(target=thread, daemon=True).start()
    return await asyncio.wrap_future(done)


# Progress


class ProgressBar:
    """The progress bar of long work; another `label` begins a new bar."""

    def __init__(self, label: str = "", *, shows_eta: bool = True) -> None:
        self._label = label
        self._shows_eta = shows_eta
        self._bar: Any = None  # click does not export its class

    def show(self, done: float, of: float | None, note: str = "", label: str = "") -> None:
        """Draw the progress: `done` parts of the total `of` (None: unknown), with a note next to the bar."""
        if not os.isatty(STDERR):
            return
        if label not in ("", self._label):
            self.finish()
            self._label = label
        if self._bar is None:
            self._bar = click.progressbar(
                iterable=iter(int, 1) if of is None else None,  # an iterable without a length
                length=None if of is None else 100,
                item_show_func=lambda note: note,
                label=self._label,
                file=sys.stderr,
                show_eta=self._shows_eta,
            )
        self._bar.update(1 if of is None else int(100 * done / max(of, 1)) - self._bar.pos, note)
        self._bar.render_progress()  # update() draws whole hundredths only, which can take hours

    def make_room(self) -> None:
        """Clear the bar's line, so that a message can be printed there; the next step draws the bar below."""
        if self._bar is not None:
            click.echo(_CLEAR_BAR, nl=False, err=True)

    def finish(self) -> None:
        """End the bar's line; the bar stays on the terminal."""
        if self._bar is not None:
            self._bar.render_finish()
            self._bar = None


def input_bytes(descriptor: int) -> int | None:
    """Return how many bytes of a file are left to read; None if there are none, or if it is not a regular file."""
    with suppress(OSError):
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode):
            return max(found.st_size - os.lseek(descriptor, 0, os.SEEK_CUR), 0) or None
    return None


class StatusLine:
    """Shows the latest status. A narrow terminal cuts the line, so the most important parts should be first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._is_terminal = os.isatty(STDERR)
        self._printed_at: float | None = None
        self._text = ""

    def show(self, parts: Sequence[str]) -> None:
        """Show a status, made of these parts; in a log, at most every ten seconds."""
        self._text = "; ".join(parts)
        if self._is_terminal:
            click.echo(_CLEAR_STATUS + self._text[: _width() - 1], nl=False, err=True)
            sys.stderr.flush()
        elif self._text and (self._printed_at is None or self._clock() - self._printed_at >= _STATUS_EVERY_S):
            self._printed_at = self._clock()
            print_status(self._text)

    def finish(self) -> None:
        """End the line on a terminal; in a log, write the last status."""
        if self._is_terminal:
            if self._text:
                click.echo(err=True)
        elif self._text:
            print_status(self._text)
        self._text = ""


def _width() -> int:
    """The columns of standard error's terminal; `shutil` uses standard output, which may be a pipe."""
    with suppress(OSError):
        if columns := os.get_terminal_size(STDERR).columns:  # some terminals report 0
            return columns
    return shutil.get_terminal_size().columns
