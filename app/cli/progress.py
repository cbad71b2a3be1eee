"""Progress bars of what takes a while: only on a terminal, and on standard error."""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING, Any

import click

from app.cli.pipes import STDERR

if TYPE_CHECKING:
    from app.bench import Phase

_LONG_EVENTS = 1_000  # fewer are over before a bar is seen
_CLEAR_LINE = "\r\x1b[K"


class Progress:
    """The bar of a long publish: counts what was done, and shows it from the thousandth event on."""

    def __init__(self, total_bytes: int | None) -> None:
        """`total_bytes`: how long the input is, if that is known."""
        self._total_bytes = total_bytes
        self._events = 0
        self._unshown_bytes = 0
        self._bar: Any = None  # click does not export its class

    def advance(self, events: int, read_bytes: int) -> None:
        """Take note of further events done, which took so much of the input."""
        self._events += events
        self._unshown_bytes += read_bytes
        if self._bar is None and self._events >= _LONG_EVENTS and os.isatty(STDERR):
            self._bar = click.progressbar(
                length=self._total_bytes,
                iterable=None if self._total_bytes else iter(int, 1),  # something without a length
                item_show_func=lambda events: f"{events or 0:,} events",
                label="publishing",
                file=sys.stderr,
            )
            self._bar.render_progress()
        if self._bar is not None:
            self._bar.update(self._unshown_bytes, self._events)
            self._unshown_bytes = 0

    def make_room(self) -> None:
        """Clear the bar's line for something else to be said there; the next step draws it below."""
        if self._bar is not None:
            click.echo(_CLEAR_LINE, nl=False, err=True)

    def finish(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.render_finish()


class PhaseBar:
    """The bars of a measurement, one for each of its phases."""

    def __init__(self) -> None:
        self._phase = ""
        self._bar: Any = None

    def show(self, phase: Phase) -> None:
        """Draw how far it is; a new phase gets a bar of its own."""
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
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.render_finish()
            self._bar = None
            self._phase = ""


class ShareBar:
    """The bar of something whose size is known."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._bar: Any = None

    def show(self, done: int, of: int, note: str) -> None:
        """Draw how far it is."""
        if not os.isatty(STDERR):
            return
        if self._bar is None:
            self._bar = click.progressbar(
                length=100, item_show_func=lambda note: note, label=self._label, file=sys.stderr
            )
        self._bar.update(int(100 * done / max(of, 1)) - self._bar.pos, note)
        self._bar.render_progress()  # also within one hundredth, which may take hours

    def finish(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.render_finish()
            self._bar = None


def input_bytes(descriptor: int) -> int | None:
    """How much there is to read, if that is a file; None for a pipe or a terminal, or where there is no input."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return max(found.st_size - os.lseek(descriptor, 0, os.SEEK_CUR), 0) or None
