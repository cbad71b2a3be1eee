"""Progress bars on standard error, shown only if that is a terminal."""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING, Any

import click

from app.cli.pipes import STDERR

if TYPE_CHECKING:
    from app.bench import Phase

_LONG_EVENTS = 1_000  # fewer are done before a bar could be seen
_CLEAR_LINE = "\r\x1b[K"


class Progress:
    """The bar of a long publish: counts events, and is shown from the thousandth on."""

    def __init__(self, total_bytes: int | None) -> None:
        """`total_bytes` is the length of the input; None if it is unknown."""
        self._total_bytes = total_bytes
        self._events = 0
        self._unshown_bytes = 0
        self._bar: Any = None  # click does not export its class

    def advance(self, events: int, read_bytes: int) -> None:
        """Count `events` more as done, for which `read_bytes` more of the input were read."""
        self._events += events
        self._unshown_bytes += read_bytes
        if self._bar is None and self._events >= _LONG_EVENTS and os.isatty(STDERR):
            self._bar = click.progressbar(
                length=self._total_bytes,
                iterable=None if self._total_bytes else iter(int, 1),  # an iterable without a length
                item_show_func=lambda events: f"{events or 0:,} events",
                label="publishing",
                file=sys.stderr,
            )
            self._bar.render_progress()
        if self._bar is not None:
            self._bar.update(self._unshown_bytes, self._events)
            self._unshown_bytes = 0

    def make_room(self) -> None:
        """Clear the bar's line, so that a message can be printed there; the next step draws the bar below."""
        if self._bar is not None:
            click.echo(_CLEAR_LINE, nl=False, err=True)

    def finish(self) -> None:
        """End the bar's line; the bar stays on the terminal."""
        if self._bar is not None:
            self._bar.render_finish()


class PhaseBar:
    """The progress bars of a measurement, one for each phase."""

    def __init__(self) -> None:
        self._phase = ""
        self._bar: Any = None

    def show(self, phase: Phase) -> None:
        """Draw a phase's progress; a new phase gets a new bar."""
        if not os.isatty(STDERR):
            return
        if phase.name != self._phase:
            self.finish()
            self._phase = phase.name
            self._bar = click.progressbar(
                length=100, item_show_func=lambda note: note, label=f"{phase.name:<10}", file=sys.stderr, show_eta=False
            )
        self._bar.update(int(100 * phase.done / phase.total) - self._bar.pos, phase.note)

    def finish(self) -> None:
        """End the bar's line; the bar stays on the terminal."""
        if self._bar is not None:
            self._bar.render_finish()
            self._bar = None
            self._phase = ""


class ShareBar:
    """The progress bar of work whose size is known."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._bar: Any = None

    def show(self, done: int, of: int, note: str) -> None:
        """Draw the progress: `done` parts of the total `of`, with a note next to the bar."""
        if not os.isatty(STDERR):
            return
        if self._bar is None:
            self._bar = click.progressbar(
                length=100, item_show_func=lambda note: note, label=self._label, file=sys.stderr
            )
        self._bar.update(int(100 * done / max(of, 1)) - self._bar.pos, note)
        self._bar.render_progress()  # update() draws whole hundredths only, which can take hours

    def finish(self) -> None:
        """End the bar's line; the bar stays on the terminal."""
        if self._bar is not None:
            self._bar.render_finish()
            self._bar = None


def input_bytes(descriptor: int) -> int | None:
    """Return how many bytes of a file are left to read; None if there are none, or if it is not a regular file."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return max(found.st_size - os.lseek(descriptor, 0, os.SEEK_CUR), 0) or None
