"""Channel names as programs give them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.broker.errors import InvalidName
from app.protocols.bayeux.names import to_pattern

if TYPE_CHECKING:
    from app.broker.topics import Pattern
    from app.protocols.bayeux.engine import Engine


def pattern_of(channel: str, engine: Engine) -> Pattern:
    """What a channel or pattern stands for. Raises `ValueError`: a program's mistake is told plainly."""
    try:
        return to_pattern(channel, engine.bounds)
    except InvalidName:
        raise ValueError(f"{channel!r} is no channel or pattern") from None
