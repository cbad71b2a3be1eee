"""The channels, patterns and names that are given to verbs which read them on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import click

from halley.broker.errors import InvalidName
from halley.broker.names import Pattern
from halley.broker.ports import Erasure
from halley.protocols import names
from halley.protocols.bayeux.names import NameLimits, to_pattern
from halley.settings import Settings


def pattern_of(channel: str, bounds: NameLimits) -> Pattern:
    """Parse a channel or a pattern of channels. Raises `click.UsageError`."""
    try:
        return to_pattern(channel, bounds)
    except InvalidName:
        raise click.UsageError(f"{channel} is not a channel or pattern") from None


def pattern_of_name(name: str, bounds: NameLimits) -> Pattern:
    """Parse a channel, a pattern, or a name as WAMP or NetworkTables write it. Raises `click.UsageError`."""
    try:
        return names.to_pattern(name, bounds)
    except InvalidName:
        raise click.UsageError(f"{name} is not a channel or pattern, nor a name in WAMP or NetworkTables") from None


def erasure_of(
    what: Mapping[str, str], settings: Settings, parse: Callable[[str, NameLimits], Pattern] = pattern_of
) -> Erasure:
    """Return the `Erasure` for what `named` returned, to erase on this machine. Raises `click.UsageError`."""
    channel = what.get("channel")
    bounds = NameLimits(settings.limits.topic_chars, settings.limits.topic_segments)
    return Erasure(None if channel is None else parse(channel, bounds), what.get("publisher"))
