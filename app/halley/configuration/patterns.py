"""The patterns of access rules: channels and wildcards as Bayeux writes them, and placeholders."""

from __future__ import annotations

from halley.access.placeholders import is_placeholder
from halley.broker.names import Pattern
from halley.protocols.bayeux.names import Bounds, to_pattern

_ANY_NAME = "x"


def pattern_of_rule(text: str, bounds: Bounds) -> Pattern:
    """The pattern that a rule names; its placeholders are kept as they are written. Raises `InvalidName`."""
    root, *segments = text.split("/")
    if not any(map(is_placeholder, segments)):
        return to_pattern(text, bounds)
    plain = "/".join((root, *(_ANY_NAME if is_placeholder(each) else each for each in segments)))
    match, topic = to_pattern(plain, bounds)
    named = zip(segments, topic.split("/"), strict=False)  # without a wildcard at the end
    return Pattern(match, "/".join(written if is_placeholder(written) else name for written, name in named))
