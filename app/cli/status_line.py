"""How far jobs are: one line of a terminal that changes, or a line now and then in a log."""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import TYPE_CHECKING

import click

from app.cli.console import say
from app.cli.pipes import STDERR

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_EVERY_S = 10.0
"""Where nobody looks at a terminal."""

_CLEAR_LINE = "\r\x1b[2K"


class StatusLine:
    """Shows what was said last; the parts that matter most come first, and a narrow terminal cuts the others."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._is_terminal = os.isatty(STDERR)
        self._said_at: float | None = None
        self._text = ""

    def show(self, parts: Sequence[str]) -> None:
        """Say it; in a log not more often than every ten seconds."""
        self._text = "; ".join(parts)
        if self._is_terminal:
            click.echo(_CLEAR_LINE + self._text[: _width() - 1], nl=False, err=True)
            sys.stderr.flush()
        elif self._text and (self._said_at is None or self._clock() - self._said_at >= _EVERY_S):
            self._said_at = self._clock()
            say(self._text)

    def finish(self) -> None:
        """Leave the line as it is, and in a log say how all has ended."""
        if self._is_terminal:
            if self._text:
                click.echo(err=True)
        elif self._text:
            say(self._text)
        self._text = ""


def _width() -> int:
    """The columns of standard error's terminal: standard output, of which `shutil` asks, may be a pipe."""
    try:
        columns = os.get_terminal_size(STDERR).columns
    except OSError:
        columns = 0
    return columns or shutil.get_terminal_size().columns  # some terminals do not know
