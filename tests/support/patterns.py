"""A small world of topics, and which of them a pattern matches by the definitions of its protocol."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from halley.broker.names import Match, Pattern

if TYPE_CHECKING:
    from collections.abc import Callable

SEGMENTS = ("a", "ab", "halley", "wamp", "service", "new")
_BELOW = ["/".join(names) for depth in (1, 2, 3, 4) for names in product(SEGMENTS, repeat=depth)]
TOPICS = [*_BELOW, *(f":r/{topic}" for topic in _BELOW if topic.count("/") < 3)]
"""Patterns are at most two segments deep and never have the segment "new", so deeper topics or other names could not
distinguish them. The space `:r` has the same names again.
"""

WAMPS = (Match.PREFIX, Match.WILDCARD)


def is_own(pattern: Pattern, topic: str) -> bool:
    """Whether a topic is internal traffic that a pattern matches only if it names it."""
    first = topic.partition("/")[0]
    if pattern.match in WAMPS:
        return first in ("halley", "wamp") and pattern.topic.partition("/")[0] != first
    if pattern.match is Match.EXACT or pattern.topic:
        return False
    return first == "halley" or (first in ("meta", "service") and "/" in topic)


def matches_by_the_word(pattern: Pattern, topic: str, is_own: Callable[[Pattern, str], bool] = is_own) -> bool:
    """A17, A18, W19: match by string prefix, or by equal components, of which empty ones match any."""
    if pattern.topic.startswith(":") != topic.startswith(":") or is_own(pattern, topic):
        return False
    if pattern.match is Match.EXACT:
        return pattern.topic == topic
    if pattern.match is Match.PREFIX:
        return topic.startswith(pattern.topic)
    if pattern.match is Match.WILDCARD:
        asked, there = pattern.topic.split("/"), topic.split("/")
        return len(asked) == len(there) and all(one in ("", other) for one, other in zip(asked, there, strict=True))
    above = f"{pattern.topic}/" if pattern.topic else ""
    return topic.startswith(above) and (pattern.match is Match.DESCENDANTS or "/" not in topic[len(above) :])


def _in_space(names: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return names.map(lambda name: f":r/{name}")


topics = st.sampled_from(TOPICS)
_names = st.lists(st.sampled_from(SEGMENTS[:-1]), min_size=1, max_size=2).map("/".join)
_parts = st.lists(st.sampled_from([*SEGMENTS[:-1], ""]), min_size=1, max_size=2).map("/".join)
_texts = st.builds(
    lambda whole, cut: whole + cut, st.sampled_from(["", "a/", "halley/"]), st.sampled_from(["", "a", "ha", "wamp"])
)
bayeux_patterns = st.builds(Pattern, st.just(Match.EXACT), _names) | st.builds(
    Pattern, st.sampled_from([Match.CHILDREN, Match.DESCENDANTS]), _names | st.just("")
)
wamp_patterns = st.builds(Pattern, st.just(Match.PREFIX), _texts | _names) | st.builds(
    Pattern, st.just(Match.WILDCARD), _parts
)
space_patterns = (
    st.builds(Pattern, st.just(Match.EXACT), _in_space(_names))
    | st.just(Pattern(Match.DESCENDANTS, ":r"))
    | st.builds(Pattern, st.just(Match.PREFIX), _in_space(_texts))
    | st.builds(Pattern, st.just(Match.WILDCARD), _in_space(_parts))
)
patterns = bayeux_patterns | wamp_patterns | space_patterns
