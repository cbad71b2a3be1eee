"""URIs, as WAMP writes topics (Basic Profile, 5.1.1): their grammar, their topics and patterns, and the realms' spaces.

A URI is components joined by `.`, none empty, of any characters except white space, `.` and `#`. In a wildcard pattern
components may be empty; a prefix may end anywhere. A strict realm accepts only `[0-9a-z_]`. Characters that other
protocols' topics may have and WAMP forbids are shown as `!hh`; any other `!` is plain (see `broker/names.py`).

Every realm except the first has its own space of topics, and so have the router's meta topics in each realm: `wamp.…`
is never a topic that another protocol or a publisher can reach.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from halley.broker.errors import InvalidName, NameTooDeep, NameTooLong
from halley.broker.names import REALM_MARK, Match, Pattern, component, is_plain_in_uri, to_segment
from halley.broker.remembered import remembered
from halley.settings import Realm, Settings

_PLAIN = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
_STRICT = re.compile(r"[0-9a-z_]+", re.ASCII)
_OWN = "wamp"

MATCHES = {"exact": Match.EXACT, "prefix": Match.PREFIX, "wildcard": Match.WILDCARD}
"""The values of `SUBSCRIBE.SourceOptions.match` (Advanced Profile, 5.9)."""


class Grammar(NamedTuple):
    """The grammar of a realm's URIs: their greatest length, the most components, and whether they must be strict."""

    chars: int
    components: int
    is_strict: bool


def is_own(uri: str) -> bool:
    """Return whether a URI begins with `wamp.`; such URIs belong to the router, and clients cannot publish to them."""
    return uri.startswith(f"{_OWN}.")


def is_meta(pattern: Pattern) -> bool:
    """Return whether a pattern is for the router's own topics, `wamp.…`."""
    return pattern.topic.startswith(REALM_MARK * 2)


def check_uri(uri: str, grammar: Grammar) -> None:
    """Check the URI of a realm, an error or a procedure; the rule of strict realms is not applied.

    Raises `InvalidName`.
    """
    for each in _components(uri, grammar):
        if not each or not all(map(is_plain_in_uri, each)):
            raise InvalidName(uri)


def to_topic(uri: str, space: str, grammar: Grammar) -> str:
    """Return the canonical topic of a URI in a realm's `space`. Raises `InvalidName`."""
    components = _components(uri, grammar)
    if not grammar.is_strict and _PLAIN.fullmatch(uri):  # as nearly all are
        topic = uri.replace(".", "/")
    else:
        topic = "/".join(_segment(each, grammar) for each in components)
    return _within(topic, _space_of(uri, space))


def to_pattern(uri: str, match: Match, space: str, grammar: Grammar) -> Pattern:
    """Return the pattern for a subscription to a URI with a match policy, in a realm's `space`.

    Raises `InvalidName`.
    """
    if match is Match.EXACT:
        return Pattern(match, to_topic(uri, space, grammar))
    if match is Match.PREFIX and uri == _OWN:
        return Pattern(match, f"{_space_of(f'{_OWN}.', space)}/{_OWN}")
    *whole, last = _components(uri, grammar)
    if match is Match.WILDCARD:
        parts = [each and _segment(each, grammar) for each in (*whole, last)]
    else:
        if not all(map(is_plain_in_uri, last)) or (grammar.is_strict and last and not _STRICT.fullmatch(last)):
            raise InvalidName(uri)
        parts = [*(_segment(each, grammar) for each in whole), last]
    return Pattern(match, _within("/".join(parts), _space_of(uri, space)))


def own_topic(uri: str, space: str) -> str:
    """Return the topic of a URI of the router itself in a realm; the settings' limits on topics do not apply to it."""
    return _within(uri.replace(".", "/"), _space_of(uri, space))


@remembered()
def to_uri(topic: str) -> str:
    """Return the URI of a canonical topic, without its space."""
    if topic.startswith(REALM_MARK):
        topic = topic.partition("/")[2]
    if "!" not in topic:  # as in nearly all
        return topic.replace("/", ".")
    segments = topic.split("/")
    return ".".join(map(component, segments))


def uri_of(pattern: Pattern) -> str:
    """Return the URI of a pattern; the inverse of `to_pattern`."""
    if pattern.match is not Match.PREFIX:
        return to_uri(pattern.topic)
    whole, slash, last = pattern.topic.rpartition("/")
    if whole.startswith(REALM_MARK) and "/" not in whole:
        return last
    return f"{to_uri(whole)}.{last}" if slash else last


def space_of(realm: str) -> str:
    """Return the space of a realm other than the first."""
    return REALM_MARK + "".join(char if char.isalnum() and char.isascii() else f"!{ord(char):x}." for char in realm)


def _components(uri: str, grammar: Grammar) -> list[str]:
    if len(uri) > grammar.chars:
        raise NameTooLong(uri)
    components = uri.split(".")
    if len(components) > grammar.components:
        raise NameTooDeep(uri)
    return components


def _segment(text: str, grammar: Grammar) -> str:
    if grammar.is_strict and not _STRICT.fullmatch(text):
        raise InvalidName(text)
    return to_segment(text, is_plain_in_uri)


def _space_of(uri: str, space: str) -> str:
    return f"{REALM_MARK}{space or REALM_MARK}" if is_own(uri) else space


def _within(topic: str, space: str) -> str:
    return f"{space}/{topic}" if space else topic


DEFAULT_REALM = Realm("realm1")
"""The only realm if the settings name none."""


def realms_of(settings: Settings) -> tuple[Realm, ...]:
    """Return all realms of the settings, or the default one; the first realm has the shared space."""
    return settings.realm or (DEFAULT_REALM,)


def spaces_of(settings: Settings) -> Mapping[str, str]:
    """Return the space of each realm by its name; the name "" also stands for the first realm."""
    first, *others = realms_of(settings)
    return {"": "", first.name: ""} | {realm.name: space_of(realm.name) for realm in others}


def within(pattern: Pattern, space: str) -> Pattern:
    """Return an exact or Bayeux pattern prefixed with a space; `/**` becomes everything in that space."""
    if not space:
        return pattern
    return Pattern(pattern.match, f"{space}/{pattern.topic}" if pattern.topic else space)
