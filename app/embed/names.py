"""Channel names in calls of the embedding API."""

from __future__ import annotations

from app.broker.errors import InvalidName
from app.broker.topics import Pattern
from app.protocols.bayeux.engine import Engine
from app.protocols.bayeux.names import to_pattern


def pattern_of(channel: str, engine: Engine) -> Pattern:
    """The pattern that a channel name or wildcard stands for. Raises `ValueError` if it is invalid."""
    try:
        return to_pattern(channel, engine.bounds)
    except InvalidName:
        raise ValueError(f"{channel!r} is not a channel or pattern") from None
