"""What is to be erased for good, and whether that is meant."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from app.cli.console import WRONG_USE, say
from app.cli.options import pattern_of
from app.cli.pipes import STDERR, STDIN
from app.history.purge import Erasure
from app.protocols.bayeux.names import Bounds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from app.settings import Settings


def named(channel: str | None, publisher: str | None, *, is_sure: bool) -> dict[str, str]:
    """What is to go, as `POST /log/purge` wants it: a channel's or a pattern's events, or those of a publisher.

    Asks whoever sits at a terminal, unless that `is_sure`; nobody else can be asked.
    """
    match channel, publisher:
        case str(), None:
            what = {"channel": channel}
        case None, str():
            what = {"publisher": publisher}
        case _:
            raise click.UsageError("say either a CHANNEL or --publisher")
    if not is_sure:
        if not (os.isatty(STDIN) and os.isatty(STDERR)):
            say("what is erased cannot be had back; say --yes")
            sys.exit(WRONG_USE)
        click.confirm(f"Erase {' '.join(what.values())} for good?", abort=True, err=True)
    return what


def erasure_of(what: Mapping[str, str], settings: Settings) -> Erasure:
    """The same, for who erases here. Raises `click.UsageError`."""
    channel = what.get("channel")
    bounds = Bounds(settings.limits.topic_chars, settings.limits.topic_segments)
    return Erasure(None if channel is None else pattern_of(channel, bounds), what.get("publisher"))
