"""The channels and patterns that are given to verbs which read them on this machine."""

from __future__ import annotations

from collections.abc import Mapping

import click

from halley.broker.errors import InvalidName
from halley.broker.names import Pattern
from halley.broker.ports import Erasure
from halley.protocols.bayeux.names import Bounds, to_pattern
from halley.settings import Settings


def pattern_of(channel: str, bounds: Bounds) -> Pattern:
    """Parse a channel or a pattern of channels. Raises `click.UsageError`."""
    try:
        return to_pattern(channel, bounds)
    except InvalidName:
        raise click.UsageError(f"{channel} is not a channel or pattern") from None


def erasure_of(what: Mapping[str, str], settings: Settings) -> Erasure:
    """Return the `Erasure` for what `named` returned, to erase on this machine. Raises `click.UsageError`."""
    channel = what.get("channel")
    bounds = Bounds(settings.limits.topic_chars, settings.limits.topic_segments)
    return Erasure(None if channel is None else pattern_of(channel, bounds), what.get("publisher"))
