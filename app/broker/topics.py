"""Topics: their canonical names, the patterns over them, and the index that answers "who hears this topic".

Inside, a name is segments joined by `/` without a leading one, in which every UTF-8 byte outside `[A-Za-z0-9_-]` is
written `!hh` (lower-case hexadecimal). Each protocol shows a character plain where its own grammar allows it and
escapes it where not; `!` itself is plain unless two hexadecimal digits follow. A shown name must be in that shortest
form, so names map one to one between protocols.

Matching works on canonical names. The answer for a topic is kept until a subscription that could change it changes, so
a publish to a known topic costs one dictionary look-up whatever the number of subscriptions.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from app.broker.errors import InvalidName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from app.broker.sessions import Session

RESERVED = "halley"
"""The first segment of the server's own topics."""

_BAYEUX_OWN = frozenset({"meta", "service"})

_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPE = re.compile(rb"!([0-9a-f]{2})")
_HEX_PAIR = re.compile(r"[0-9a-f]{2}")
_CACHED_TOPICS = 100_000


def to_segment(shown: str, shows_plain: Callable[[str], bool]) -> str:
    """The canonical form of one segment as a protocol shows it.

    `shows_plain` tells which further characters that protocol writes as they are.
    Raises `InvalidName` where the segment is empty, is not in its shortest form or escapes what is no UTF-8.
    """
    if _PLAIN.fullmatch(shown):
        return shown
    try:
        text = _ESCAPE.sub(_unescaped, shown.encode()).decode()
    except UnicodeError:
        raise InvalidName(shown) from None
    if not text or _show(text, shows_plain) != shown:
        raise InvalidName(shown)
    return "".join(char if _PLAIN.fullmatch(char) else _escaped(char) for char in text)


def from_segment(canonical: str, shows_plain: Callable[[str], bool]) -> str:
    """How a protocol writes one canonical segment."""
    if "!" not in canonical:
        return canonical
    return _show(_ESCAPE.sub(_unescaped, canonical.encode()).decode(), shows_plain)


def _show(text: str, shows_plain: Callable[[str], bool]) -> str:
    def shown(at: int, char: str) -> str:
        if char == "!":
            return "!21" if _HEX_PAIR.match(text, at + 1) else "!"
        return char if _PLAIN.fullmatch(char) or shows_plain(char) else _escaped(char)

    return "".join(shown(at, char) for at, char in enumerate(text))


def _escaped(char: str) -> str:
    return "".join(f"!{byte:02x}" for byte in char.encode())


def _unescaped(pair: re.Match[bytes]) -> bytes:
    return bytes.fromhex(pair[1].decode())


class Match(Enum):
    """How a pattern's topic is compared with an event's."""

    EXACT = "exact"
    CHILDREN = "children"  # Bayeux /a/*: one more segment
    DESCENDANTS = "descendants"  # Bayeux /a/**: one or more further segments


class Pattern(NamedTuple):
    """What is subscribed to. `topic` is canonical; "" stands for the root of all."""

    match: Match
    topic: str


class Subscription:
    """One pattern and all the sessions that subscribed to it; shared, so that an event is matched and encoded once."""

    __slots__ = ("pattern", "sessions")

    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern
        self.sessions: dict[Session, None] = {}  # a set that keeps the order of subscribing


class TopicIndex:
    """All subscriptions, by pattern, and for each topic lately published the sessions that hear it."""

    def __init__(self) -> None:
        self.subscriptions: dict[Pattern, Subscription] = {}
        self._hearers: dict[str, tuple[Session, ...]] = {}

    def add(self, pattern: Pattern, session: Session) -> Subscription:
        """Let `session` hear `pattern`."""
        subscription = self.subscriptions.get(pattern)
        if subscription is None:
            subscription = self.subscriptions[pattern] = Subscription(pattern)
        subscription.sessions[session] = None
        self._forget(pattern)
        return subscription

    def remove(self, pattern: Pattern, session: Session) -> None:
        """Undo `add`; a subscription without sessions goes."""
        subscription = self.subscriptions[pattern]
        del subscription.sessions[session]
        if not subscription.sessions:
            del self.subscriptions[pattern]
        self._forget(pattern)

    def hearers(self, topic: str) -> tuple[Session, ...]:
        """The sessions that hear `topic`: each once, however many of its patterns match."""
        found = self._hearers.get(topic)
        if found is None:
            if len(self._hearers) >= _CACHED_TOPICS:  # topics are made up by clients: never without end
                self._hearers.clear()
            found = self._hearers[topic] = self._match(topic)
        return found

    def _match(self, topic: str) -> tuple[Session, ...]:
        sessions: dict[Session, None] = {}
        for pattern in patterns_heard(topic):
            subscription = self.subscriptions.get(pattern)
            if subscription is not None:
                sessions.update(subscription.sessions)
        return tuple(sessions)

    def _forget(self, pattern: Pattern) -> None:
        if pattern.match is Match.EXACT:
            self._hearers.pop(pattern.topic, None)
        else:
            self._hearers.clear()


def patterns_over(topic: str) -> Iterator[Pattern]:
    """Every pattern that matches `topic`, from `/**` down to the topic itself."""
    segments = topic.split("/")
    for depth in range(len(segments)):
        yield Pattern(Match.DESCENDANTS, "/".join(segments[:depth]))
    yield Pattern(Match.CHILDREN, "/".join(segments[:-1]))
    yield Pattern(Match.EXACT, topic)


def patterns_heard(topic: str) -> Iterator[Pattern]:
    """Those of them whose subscribers hear `topic`."""
    apart = is_apart(topic)
    return (pattern for pattern in patterns_over(topic) if pattern.topic or not apart)


def matches(pattern: Pattern, topic: str) -> bool:
    """Whether whoever asks for `pattern` gets `topic`. A read of the history asks this of very many."""
    match, base = pattern
    if match is Match.EXACT:
        return topic == base
    return _lies_under(topic, base, match) and (base != "" or not is_apart(topic))


def encloses(wide: Pattern, narrow: Pattern) -> bool:
    """Whether all names that `narrow` matches are matched by `wide`, whatever the names.

    Two patterns never meet in part: where neither encloses the other they have nothing in common.
    """
    if wide == narrow:
        return True
    if narrow.match is Match.EXACT:
        return wide.match is not Match.EXACT and _lies_under(narrow.topic, wide.topic, wide.match)
    return wide.match is Match.DESCENDANTS and (
        narrow.topic == wide.topic or _lies_under(narrow.topic, wide.topic, wide.match)
    )


def _lies_under(topic: str, base: str, match: Match) -> bool:
    """What a wildcard means: the one place that knows, beside `span`."""
    if match is Match.CHILDREN:
        return topic.rpartition("/")[0] == base
    return topic != "" and (not base or topic.startswith(f"{base}/"))


def common(one: Pattern, other: Pattern) -> Pattern | None:
    """The pattern of what whoever asks for either gets by both: always one of the two, or None for nothing."""
    for narrow, wide in ((one, other), (other, one)):
        if encloses(wide, narrow) and (wide.topic or not lies_apart(narrow)):
            return narrow
    return None


def span(pattern: Pattern) -> tuple[str, str]:
    """All topics that `pattern` matches, and maybe others, lie in this range of texts; its end is not part of it."""
    match, base = pattern
    if match is Match.EXACT:
        return base, base + "\0"
    return (base + "/", base + "0") if base else ("", "\U0010ffff")  # 0 is the character after /


def is_apart(topic: str) -> bool:
    """Whether subscribers of `/*` and `/**` do not hear `topic`: the server's own, Bayeux' meta and service."""
    first, slash, _ = topic.partition("/")
    return first == RESERVED or (first in _BAYEUX_OWN and bool(slash))


def lies_apart(pattern: Pattern) -> bool:
    """Whether all that a pattern matches does."""
    return is_apart(pattern.topic if pattern.match is Match.EXACT else f"{pattern.topic}/*")
