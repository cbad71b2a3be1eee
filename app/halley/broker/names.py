"""Topic names and patterns: the canonical form of a name, and which topics a pattern matches.

A canonical name is segments joined by `/`, without a leading one, in which every UTF-8 byte outside `[A-Za-z0-9_-]` is
written `!hh` (lower-case hexadecimal). Each protocol shows a character plain where its own grammar allows it, and
escapes it where not. Only what spells a character that the protocol does not write plain is an escape: in Bayeux `!2e`
is a dot, but `!41` is these three characters, since `A` is written `A`. Any other `!` is plain. Where a `!` of the name
itself would begin an escape, `21` is inserted after it: `!2e` of the name is shown `!212e`, `!212e` as `!21212e`, and
so on. So names map one to one, and every name in a protocol's grammar is some topic's. WAMP's form is defined here too,
since string prefixes compare names as WAMP shows them, and Bayeux's, since the limit on length applies to names as
Bayeux shows them (`protocols/nt4/names.py`).

There are five kinds of patterns, in three protocols' languages. Each is a sequence of parts, one for each segment of
the topic, that is either closed or goes on (further segments may follow). A part names a segment, or stands for all
segments that begin with some text. So `/a/*` is `a` and any one; `/a/**` is `a`, any one, and goes on; WAMP's prefix
`a.b` is `a`, any that begins with `b`, and goes on; its wildcard `a..c` is `a`, any one, `c`. A prefix's last part is
as WAMP shows it. Topics in a separate space are matched only by patterns of that space.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from typing import NamedTuple

from halley.broker.errors import InvalidName
from halley.broker.remembered import remembered

REALM_MARK = ":"
"""Begins the first segment of topics in a separate space, such as a second WAMP realm's: `:name/segment`.

No name that a protocol can write maps to such a segment, so clients outside the space cannot name its topics.
"""

PLACEHOLDER = "{"
"""Begins a segment of an access rule's pattern that stands for a value of the client that asks.

A canonical name has no such character, so a pattern with it is matched as one that has any one segment there.
"""

_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_PLAIN_OR_MARK = re.compile(r"[A-Za-z0-9_!-]+")
_OTHER = re.compile(r"[^A-Za-z0-9_-]+")
_BYTE = re.compile(rb"!([0-9a-f]{2})")
_NEXT = "(?:![89ab][0-9a-f])"
_SPELLED = re.compile(rf"!((?:21)*)([0-7][0-9a-f]|[cd][0-9a-f]{_NEXT}|e[0-9a-f]{_NEXT}{{2}}|f[0-7]{_NEXT}{{3}})")
"""The bytes of one character in UTF-8, and before them the `21`s that mark a `!` of the name itself."""


def to_segment(segment: str, is_plain: Callable[[str], bool]) -> str:
    """The canonical form of one segment as a protocol shows it.

    `is_plain` decides which characters besides `[A-Za-z0-9_!-]` the protocol writes as they are.
    Raises `InvalidName` if the segment is empty or has other characters.
    """
    if _PLAIN.fullmatch(segment):
        return segment
    if not segment or not all(map(is_plain, _PLAIN_OR_MARK.sub("", segment))):
        raise InvalidName(segment)

    def read(found: re.Match[str]) -> str:
        char = _spelled(found, is_plain)
        if not char:
            return found[0]
        return f"!{found[0][3:]}" if found[1] else char

    try:
        return escaped(_SPELLED.sub(read, segment))
    except UnicodeEncodeError:  # half of a surrogate pair, which no text has
        raise InvalidName(segment) from None


def from_segment(canonical: str, is_plain: Callable[[str], bool]) -> str:
    """One canonical segment in the form of a protocol; `is_plain` as in `to_segment`."""
    if "!" not in canonical:
        return canonical

    def marked(found: re.Match[str]) -> str:
        return f"!21{found[0][1:]}" if _spelled(found, is_plain) else found[0]

    text = _SPELLED.sub(marked, unescaped(canonical))
    return "".join(char if _is_plain(char, is_plain) else _escaped(char) for char in text)


def escaped(text: str) -> str:
    """The canonical segment of a literal text: no part of it is read as an escape."""
    if _PLAIN.fullmatch(text):
        return text
    return _OTHER.sub(lambda found: _escaped(found[0]), text)


def unescaped(canonical: str, *, errors: str = "replace") -> str:
    """The literal text of a canonical segment; the inverse of `escaped`.

    The space of a WAMP realm has escapes of another kind: where they stand for bytes that no character has, the
    result has U+FFFD, or a `UnicodeDecodeError` is raised if `errors` is "strict".
    """
    if "!" not in canonical:
        return canonical
    return _BYTE.sub(lambda pair: bytes.fromhex(pair[1].decode()), canonical.encode()).decode(errors=errors)


def is_plain_in_channel(char: str) -> bool:
    """Whether Bayeux writes a character as it is, in addition to letters, digits, `-` and `_` (Bayeux 2.1)."""
    return char in "~()$@"


def is_plain_in_uri(char: str) -> bool:
    """Whether WAMP writes a character of a component as it is: all but white space, `.` and `#` (Basic Profile)."""
    return not char.isspace() and char not in ".#"


@remembered()
def component(segment: str) -> str:
    """A canonical segment as WAMP shows it."""
    return from_segment(segment, is_plain_in_uri)


def plain_beginning(segment: str) -> str:
    """The longest beginning of a segment that is the same in the canonical form, regardless of what follows."""
    found = _PLAIN.match(segment)
    return found[0] if found else ""


def _spelled(found: re.Match[str], is_plain: Callable[[str], bool]) -> str:
    """The character whose bytes `_SPELLED` has found, or "" if there is none, or one that is written plain."""
    try:
        char = bytes.fromhex(found[2].replace("!", "")).decode()
    except UnicodeDecodeError:  # no character has these bytes
        return ""
    return "" if _is_plain(char, is_plain) else char


def _is_plain(char: str, is_plain: Callable[[str], bool]) -> bool:
    return char == "!" or _PLAIN.fullmatch(char) is not None or is_plain(char)


def _escaped(chars: str) -> str:
    return f"!{chars.encode().hex('!')}"


RESERVED = "halley"
"""The first segment of the server's own topics."""


def is_reserved(topic: str) -> bool:
    """Whether a topic is one of the server's own, on which it reports what happens in it."""
    return topic.partition("/")[0] == RESERVED


_BAYEUX_OWN = frozenset({"meta", "service"})
NAMED_ONLY = frozenset({RESERVED, "wamp"})
"""First segments that a WAMP pattern matches only if it names them: the server's own, and WAMP's for routers."""

_REST = "[^/]*"
_AFTER_ALL = "\U0010ffff"


class Match(Enum):
    """How a pattern's topic is compared with an event's."""

    EXACT = "exact"
    CHILDREN = "children"  # Bayeux /a/*: one more segment
    DESCENDANTS = "descendants"  # Bayeux /a/**: one or more further segments
    PREFIX = "prefix"  # WAMP: the name begins with this text, wherever it ends
    WILDCARD = "wildcard"  # WAMP: as many segments; an empty one stands for any

    __hash__ = object.__hash__  # of the one member that it is; an enum's own is a function in Python, for each look-up


WIDE_IN_WAMP = frozenset({Match.PREFIX, Match.WILDCARD})


class Pattern(NamedTuple):
    """The name or wildcard that a subscription is for.

    `topic` is canonical; "" is the root of all topics. In a prefix the last segment is as WAMP shows it, and may be
    empty; in a wildcard any segment may be empty.
    """

    match: Match
    topic: str


class SegmentCondition(NamedTuple):
    """A pattern's condition on one segment: its name, or, if it `is_open`, its beginning as WAMP shows it."""

    text: str
    is_open: bool

    def accepts(self, segment: str) -> bool:
        """Whether a topic's segment meets this condition."""
        if not self.is_open:
            return segment == self.text
        return not segment.startswith(REALM_MARK) and (not self.text or component(segment).startswith(self.text))

    def includes(self, other: SegmentCondition) -> bool:
        """Whether every segment that `other` accepts is accepted here."""
        if not other.is_open:
            return self.accepts(other.text)
        return self.is_open and other.text.startswith(self.text)

    def meets(self, other: SegmentCondition) -> bool:
        """Whether there is a segment that both accept."""
        return self.includes(other) or other.includes(self)


_ANY = SegmentCondition("", is_open=True)


class Shape(NamedTuple):
    """A pattern as its parts; with `is_prefix`, further segments may follow."""

    parts: tuple[SegmentCondition, ...]
    is_prefix: bool

    @property
    def named(self) -> int:
        """The number of parts that name their segment, before the first that does not."""
        return next((at for at, part in enumerate(self.parts) if part.is_open), len(self.parts))


@remembered(entry_bytes=2_000)
def shape_of(pattern: Pattern) -> Shape:
    """The conditions of a pattern on the segments of a topic, in their order."""
    match, topic = pattern
    segments = topic.split("/") if topic or match in WIDE_IN_WAMP else []
    if match is Match.WILDCARD:
        return Shape(tuple(SegmentCondition(segment, is_open=not segment) for segment in segments), is_prefix=False)
    named = tuple(
        _ANY if segment.startswith(PLACEHOLDER) else SegmentCondition(segment, is_open=False) for segment in segments
    )
    if match is Match.PREFIX:
        return Shape((*named[:-1], SegmentCondition(segments[-1], is_open=True)), is_prefix=True)
    if match is Match.EXACT:
        return Shape(named, is_prefix=False)
    return Shape((*named, _ANY), is_prefix=match is Match.DESCENDANTS)


def patterns_over(topic: str) -> Iterator[Pattern]:
    """Every exact name and Bayeux pattern that matches `topic`, from `/**` down to the topic itself."""
    segments = topic.split("/")
    for depth in range(len(segments)):
        yield Pattern(Match.DESCENDANTS, "/".join(segments[:depth]))
    yield Pattern(Match.CHILDREN, "/".join(segments[:-1]))
    yield Pattern(Match.EXACT, topic)


def receiving_patterns(topic: str) -> Iterator[Pattern]:
    """The patterns of `patterns_over` whose subscribers receive events of `topic`."""
    apart = is_excluded_from_root(topic)
    return (pattern for pattern in patterns_over(topic) if pattern.topic or not apart)


def matches(pattern: Pattern, topic: str) -> bool:
    """Whether a subscriber to `pattern` receives events of `topic`. Called very often by reads of the history."""
    match, base = pattern
    if match is Match.EXACT:
        return topic == base
    if match is Match.DESCENDANTS:
        return topic.startswith(f"{base}/") if base else topic != "" and not is_excluded_from_root(topic)
    if match is Match.CHILDREN:
        return topic.rpartition("/")[0] == base and (base != "" or (topic != "" and not is_excluded_from_root(topic)))
    parts, goes_on = shape_of(pattern)
    segments = topic.split("/")
    if len(segments) != len(parts) and not (goes_on and len(segments) > len(parts)):
        return False
    if segments[0] in NAMED_ONLY and parts[0].text != segments[0]:
        return False
    return topic != "" and all(part.accepts(segment) for part, segment in zip(parts, segments, strict=False))


def matcher(pattern: Pattern) -> Callable[[str], bool]:
    """Return `matches` for one pattern, to be used for very many topics.

    A WAMP pattern becomes one regular expression if its parts can be expressed so.
    """
    if pattern.match not in WIDE_IN_WAMP:
        return partial(matches, pattern)
    parts, goes_on = shape_of(pattern)
    if any(plain_beginning(part.text) != part.text for part in parts if part.is_open):
        return partial(matches, pattern)
    texts = [
        f"(?!{REALM_MARK}){re.escape(part.text)}{_REST}" if part.is_open else re.escape(part.text) for part in parts
    ]
    named_only = "|".join(NAMED_ONLY - {parts[0].text})
    found = re.compile(f"(?!(?:{named_only})(?:/|$)){'/'.join(texts)}{'(?:/.*)?' * goes_on}", re.DOTALL).fullmatch
    return lambda topic: topic != "" and found(topic) is not None


def narrowed(pattern: Pattern, topic: str) -> Pattern | None:
    """The exact pattern of `topic` if `pattern` matches it, else None."""
    return Pattern(Match.EXACT, topic) if matches(pattern, topic) else None


def encloses(wide: Pattern, narrow: Pattern) -> bool:
    """Whether `wide` matches all names that `narrow` does, except for what `is_excluded_from_root`."""
    if wide == narrow:
        return True
    if narrow.match is Match.EXACT and wide.match not in WIDE_IN_WAMP and not (_varies(wide) or _varies(narrow)):
        return _covers_one(wide, narrow.topic)
    outer, inner = shape_of(wide), shape_of(narrow)
    if len(inner.parts) < len(outer.parts) or (
        not outer.is_prefix and (inner.is_prefix or len(inner.parts) > len(outer.parts))
    ):
        return False
    return all(part.includes(other) for part, other in zip(outer.parts, inner.parts, strict=False))


def _varies(pattern: Pattern) -> bool:
    """Whether a pattern has placeholders, so that even an exact one stands for many topics."""
    return PLACEHOLDER in pattern.topic


def _covers_one(wide: Pattern, topic: str) -> bool:
    """What `encloses` returns for a Bayeux pattern and one topic: of topics there are too many for shapes."""
    match, base = wide
    if match is Match.EXACT:
        return topic == base
    if base and not topic.startswith(f"{base}/"):
        return False
    rest = topic[len(base) + 1 :] if base else topic
    return bool(topic) and not rest.startswith(REALM_MARK) and (match is Match.DESCENDANTS or "/" not in rest)


def meet(one: Pattern, other: Pattern) -> bool:
    """Whether both patterns match some name, not regarding which topics are apart (`is_excluded_from_root`)."""
    if one.match is Match.EXACT and not _varies(one):
        return encloses(other, one)
    if other.match is Match.EXACT and not _varies(other):
        return encloses(one, other)
    left, right = shape_of(one), shape_of(other)
    if len(left.parts) > len(right.parts):
        left, right = right, left
    if len(left.parts) < len(right.parts) and not left.is_prefix:
        return False
    return all(part.meets(other) for part, other in zip(left.parts, right.parts, strict=False))


def span(pattern: Pattern) -> tuple[str, str]:
    """The half-open range of texts that contains all topics that `pattern` matches, and possibly others."""
    match, base = pattern
    if match is Match.EXACT:
        return base, base + "\0"
    shape = shape_of(pattern)
    parts, named = shape.parts, shape.named
    if named == len(parts):  # a wildcard without an empty segment
        return base, base + "\0"
    first = "".join(f"{part.text}/" for part in parts[:named]) + plain_beginning(parts[named].text)
    return first, first + _AFTER_ALL


def is_excluded_from_root(topic: str) -> bool:
    """Whether `/*` and `/**` do not match `topic`: it is the server's own, Bayeux's own, or in a separate space."""
    first, slash, _ = topic.partition("/")
    return first == RESERVED or (first in _BAYEUX_OWN and bool(slash)) or first.startswith(REALM_MARK)


def excludes(wide: Pattern, narrow: Pattern) -> bool:
    """Whether a subscriber to `wide` receives nothing that `narrow` matches, since all of that is apart."""
    outer, inner = shape_of(wide).parts[0], shape_of(narrow).parts[0]
    if inner.is_open or not outer.is_open or outer.text == inner.text:
        return False
    if wide.match in WIDE_IN_WAMP:
        return inner.text in NAMED_ONLY
    is_one_topic = narrow.match is Match.EXACT or (narrow.match is Match.WILDCARD and "/" not in narrow.topic)
    return is_excluded_from_root(narrow.topic if is_one_topic else f"{inner.text}/*")
