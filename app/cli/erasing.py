"""Arguments of the verbs that erase events, and the confirmation that they ask for."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import click

from app.broker.ports import Erasure
from app.cli.options import pattern_of
from app.cli.terminal import STDERR, STDIN, WRONG_USE, say
from app.protocols.bayeux.names import Bounds
from app.settings import Settings


def named(channel: str | None, publisher: str | None, *, is_sure: bool) -> dict[str, str]:
    """Return what to erase, in the form of a `POST /log/purge`: a channel or pattern, or a publisher.

    Unless `is_sure`, a person at a terminal is asked to confirm; without a terminal the program ends. Raises
    `click.UsageError` unless exactly one of the two is given.
    """
    match channel, publisher:
        case str(), None:
            what = {"channel": channel}
        case None, str():
            what = {"publisher": publisher}
        case _:
            raise click.UsageError("expected either a CHANNEL or --publisher")
    if not is_sure:
        if not (os.isatty(STDIN) and os.isatty(STDERR)):
            say("erased events cannot be restored; confirm with --yes")
            sys.exit(WRONG_USE)
        click.confirm(f"Erase {' '.join(what.values())} permanently?", abort=True, err=True)
    return what


def erasure_of(what: Mapping[str, str], settings: Settings) -> Erasure:
    """Return the `Erasure` for what `named` returned, to erase on this machine. Raises `click.UsageError`."""
    channel = what.get("channel")
    bounds = Bounds(settings.limits.topic_chars, settings.limits.topic_segments)
    return Erasure(None if channel is None else pattern_of(channel, bounds), what.get("publisher"))


def erased(count: int) -> str:
    """The message at the end of a purge."""
    return "erased 1 event" if count == 1 else f"erased {count:,} events"
