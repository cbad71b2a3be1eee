"""The progress of jobs: one line on a terminal that is updated, or a line every ten seconds in a log."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence

import click

from app.cli.console import say
from app.cli.pipes import STDERR

_EVERY_S = 10.0
"""Seconds between lines if standard error is not a terminal."""

_CLEAR_LINE = "\r\x1b[2K"


class StatusLine:
    """Shows the latest status. A narrow terminal cuts the line, so the most important parts should be first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._is_terminal = os.isatty(STDERR)
        self._said_at: float | None = None
        self._text = ""

    def show(self, parts: Sequence[str]) -> None:
        """Show a status, made of these parts; in a log, at most every ten seconds."""
        self._text = "; ".join(parts)
        if self._is_terminal:
            click.echo(_CLEAR_LINE + self._text[: _width() - 1], nl=False, err=True)
            sys.stderr.flush()
        elif self._text and (self._said_at is None or self._clock() - self._said_at >= _EVERY_S):
            self._said_at = self._clock()
            say(self._text)

    def finish(self) -> None:
        """End the line on a terminal; in a log, write the last status."""
        if self._is_terminal:
            if self._text:
                click.echo(err=True)
        elif self._text:
            say(self._text)
        self._text = ""


def _width() -> int:
    """The columns of standard error's terminal; `shutil` uses standard output, which may be a pipe."""
    try:
        columns = os.get_terminal_size(STDERR).columns
    except OSError:
        columns = 0
    return columns or shutil.get_terminal_size().columns  # some terminals report 0
