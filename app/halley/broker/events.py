"""An event: one published message, shared by all its subscribers, live or from the history; its id and its time.

Publication ids are numbers from 1 to 2^53 that look random, but whose order is known to the holder of a key. WAMP
requires random ids; an index over random numbers would cost a log half of its speed. So the ids are a counter, shown
through a permutation whose key stays with the log: with the key an event is found by its id without an index.

Times are text as in RFC 3339, in every protocol. Events are stamped in microseconds and written with six digits, so
that a written time finds the same event again. A time that is read, as the bound of a query, may be finer than that: it
is compared exactly, without rounding it first.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Hashable, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final, NamedTuple

from halley.broker.traceparent import IN_BAYEUX, traceparent_in, with_traceparent

_OBJECTS_BYTES: Final = 640
"""About how many bytes Python needs for an event in addition to its texts."""

MOST_AROUND_BYTES: Final = 40_000
"""The most that an event counts in addition to its payload: its objects, and twice its details (`forwarded_ext`)."""

_MARKS_CHARS = 4
"""What a name takes in addition to its own characters in a stored audience: quotes, a comma, a space."""

BARE: Final = "bare"
"""The shape of a payload that is one JSON value, as Bayeux and NT4 publish them."""


class Stage(Enum):
    """Which subscribers a fan-out is for: those that receive events live, those that replay, or both.

    Sessions that do not replay receive an event once, before or after it is recorded. Sessions that replay receive it
    when it is in the log or known never to get there, since the committed position is their border between history
    and live (`commits.py`).
    """

    LIVE = "live"  # not yet in the log: only sessions that do not replay
    COMMITTED = "committed"  # delivered live before: only sessions that replay
    BOTH = "both"


LIVE: Final = Stage.LIVE
COMMITTED: Final = Stage.COMMITTED
BOTH: Final = Stage.BOTH
"""By name for the hot path: an attribute of an enum costs CPython 3.11 a call."""


class Audience(NamedTuple):
    """The subscribers that may receive an event, by authid and role; None in a field: no restriction.

    If `eligible_*` is given, only these authids or roles may; the `excluded_*` ones may not.
    """

    eligible_authids: tuple[str, ...] | None = None
    eligible_roles: tuple[str, ...] | None = None
    excluded_authids: tuple[str, ...] = ()
    excluded_roles: tuple[str, ...] = ()

    @property
    def chars(self) -> int:
        """About how many characters the audience takes in the log."""
        return sum(len(name) + _MARKS_CHARS for names in self if names for name in names)

    def admits(self, authid: str | None, role: str) -> bool:
        """Whether a subscriber with this authid (None if it has none) and role may receive the event."""
        if authid in self.excluded_authids or role in self.excluded_roles:
            return False
        if self.eligible_authids is not None and authid not in self.eligible_authids:
            return False
        return self.eligible_roles is None or role in self.eligible_roles


class SessionFilter(NamedTuple):
    """The subscribers within an event's audience that may receive it, by session id; None: no restriction.

    It applies to live delivery only: a session's id means nothing once the session has ended.
    """

    eligible: frozenset[str] | None = None
    excluded: frozenset[str] = frozenset()

    def admits(self, session_id: str) -> bool:
        """Whether the session with that id may receive the event."""
        return session_id not in self.excluded and (self.eligible is None or session_id in self.eligible)


class Event:
    """One publication, the same for all its subscribers, whether it is live, from another server or from the history.

    `topic` is canonical, `payload` the value as JSON text. `publisher` is the id of the publishing session if it had
    one; `authid` and `role` are the publisher's identity. With an idempotency key comes `key_digest`, that of the data
    as the client sent them (`protocols/value_digest.py`), where it is known. `chosen` restricts delivery to some
    sessions; an event that `is_transient` was meant for some and not others by its publisher, and is not logged, since
    sessions end.

    Bayeux's sessions may get one that `is_lazy` later, with others.

    The broker gives it `time_us`, wall-clock microseconds, and `publication`, a number that no other has, when it is
    published; the log gives it its offset there, `position`, which is 0 until it is on disk.

    The last three fields are about its delivery. `frames` has each protocol's encoded bytes: made when they are first
    written, reused for all others. `matched` are the subscriptions that the latest fan-out found for it: WAMP names
    them in what it writes. `refs` is the number of places in which it waits to be delivered (`waiting.py`).
    """

    __slots__ = (
        "audience",
        "authid",
        "chosen",
        "details",
        "frames",
        "idempotency_key",
        "is_lazy",
        "is_transient",
        "key_digest",
        "matched",
        "nt4_time_us",
        "nt4_type",
        "payload",
        "position",
        "protocol",
        "publication",
        "publisher",
        "refs",
        "role",
        "shape",
        "time_us",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        payload: bytes,
        publisher: str | None = None,
        protocol: str = "bayeux",
        authid: str | None = None,
        role: str | None = None,
        idempotency_key: str | None = None,
        audience: Audience | None = None,
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.publisher = publisher
        self.protocol = protocol
        self.authid = authid
        self.role = role
        self.idempotency_key = idempotency_key
        self.key_digest: bytes | None = None
        self.audience = audience
        self.chosen: SessionFilter | None = None
        self.is_transient = False
        self.is_lazy = False
        self.shape = BARE
        self.details: str | None = None  # JSON text: further details from the publisher's protocol
        self.nt4_type: str | None = None
        self.nt4_time_us: int | None = None
        self.publication = 0
        self.time_us = 0
        self.position = 0
        self.frames: dict[Hashable, bytes] = {}
        self.matched: tuple[Any, ...] = ()  # of `subscriptions.Subscription`
        self.refs = 0

    @property
    def nbytes(self) -> int:
        """About the event's size in memory, in bytes: payload, encoded frames and Python's objects."""
        if self.details is None:
            return 2 * len(self.payload) + _OBJECTS_BYTES
        return 2 * (len(self.payload) + len(self.details)) + _OBJECTS_BYTES

    @property
    def ext(self) -> str | None:
        """What Bayeux's subscribers get of its publisher's `ext`, as the text of a JSON object; None if nothing."""
        return None if self.details is None else ext_of(self.protocol, self.details)

    @property
    def traceparent(self) -> str | None:
        """The trace in which it was published, as W3C Trace Context writes it; None if its publisher gave none."""
        return None if self.details is None else traceparent_in(self.details)

    def __repr__(self) -> str:
        return f"<Event {self.position or self.publication} on {self.topic}>"


def ext_of(protocol: str, details: str) -> str | None:
    """What Bayeux's subscribers get of an event's details, as the text of a JSON object; None if nothing.

    They get all of Bayeux's own, and of another protocol's the `traceparent`.
    """
    if protocol == "bayeux":
        return details
    traceparent = traceparent_in(details)
    return None if traceparent is None else with_traceparent(None, IN_BAYEUX, traceparent)


class EventRange:
    """Events of another server that follow each other in the log, from the offset `first` to `position`.

    They are made when they are needed: where nobody subscribes to any of their `topics`, that is never.
    """

    __slots__ = ("_make", "first", "is_recorded", "nbytes", "position", "topics")

    def __init__(
        self, first: int, count: int, topics: Sequence[str], nbytes: int, make: Callable[[Collection[str]], list[Event]]
    ) -> None:
        """`nbytes` are those of all payloads. `make` returns the events on some of the topics, in their order."""
        self.first = first
        self.position = first + count - 1
        self.topics = topics
        self.nbytes = 2 * nbytes + _OBJECTS_BYTES * count
        self.is_recorded = True
        self._make = make

    @property
    def count(self) -> int:
        """The number of events: one at each offset from `first` to `position`."""
        return self.position - self.first + 1

    def events(self, topics: Collection[str]) -> list[Event]:
        """Those on `topics`, made for this call."""
        return self._make(topics)


_MODULUS: Final = 1 << 53
_MASK: Final = _MODULUS - 1
LAST_PUBLICATION = _MODULUS


def new_key() -> int:
    """Create a random key for `Publications`; each log needs its own."""
    return secrets.randbits(106) | 1


class Publications:
    """The source of publication ids. `following` is the number of the last id issued before; `last` of the latest."""

    def __init__(self, key: int, following: int = 0) -> None:
        self._factor = key % _MODULUS | 1  # odd, so that it has an inverse
        self._shift = key // _MODULUS % _MODULUS
        self._inverse = pow(self._factor, -1, _MODULUS)
        self.last = following
        self._latest = following * self._factor + self._shift & _MASK  # its id less 1

    def next(self) -> int:
        """Issue a publication id, from 1 to 2^53; none is repeated before all of them have been issued."""
        self.last += 1
        self._latest = self._latest + self._factor & _MASK  # as `id_of`, by a sum and no product
        return self._latest + 1

    def id_of(self, number: int) -> int:
        """The id at an index in the order of issue; the inverse of `number_of`."""
        return (number * self._factor + self._shift & _MASK) + 1  # as `%`, which takes long for a number this large

    def ids_of(self, first: int, behind: Sequence[int]) -> list[int]:
        """The ids that are so far `behind` the one at the index `first`; each next one takes a sum and no product."""
        found: list[int] = []
        at, before, factor = self.id_of(first) - 1, 0, self._factor
        for far in behind:
            at = at + (factor if far == before + 1 else (far - before) * factor) & _MASK
            before = far
            found.append(at + 1)
        return found

    def number_of(self, publication: int) -> int:
        """The index of an id (1 to 2^53) in the order of issue: a later id has a higher number."""
        return (publication - 1 - self._shift) * self._inverse % _MODULUS


SECONDS_TO_2026 = 1_767_225_600
"""Seconds from 1970 to 2026; counters that begin with the clock start there, so that they stay small."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_RFC_3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt]((?:[01]\d|2[0-3]):\d\d:)(\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)", re.ASCII
)
# The hours too: `datetime` takes more of ISO 8601 than RFC 3339 has, the newer Python is, the more: 24:00 since 3.14.
_LEAP = "60"

BOUNDS = ("from", "after", "before", "until")
"""The bounds of a query, by time or publication: at or after, after, before, at or before."""


def to_text(time_us: int) -> str:
    """Microseconds since 1970 as RFC 3339 in UTC with six digits."""
    moment = _EPOCH + timedelta(microseconds=time_us)
    return moment.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def to_ns(text: str) -> int:
    """Nanoseconds since 1970 of an RFC 3339 time; a leap second counts as the second after it.

    Raises `ValueError`, also for a time without an offset from UTC: it would be ambiguous.
    """
    match = _RFC_3339.fullmatch(text)
    if match is None:
        raise ValueError("not an RFC 3339 time")
    day, minute, second, fraction, offset, _ = match.groups()
    is_leap = second == _LEAP
    zone = "+00:00" if offset in "Zz" else offset
    moment = datetime.fromisoformat(f"{day}T{minute}{'59' if is_leap else second}{zone}")
    if is_leap and (moment - _EPOCH) % timedelta(days=1) != timedelta(hours=23, minutes=59, seconds=59):
        raise ValueError("there is no leap second at that time")
    whole_us = (moment - _EPOCH) // _MICROSECOND + is_leap * 1_000_000  # `datetime` may not hold the last second of all
    return whole_us * 1_000 + int((fraction or "").ljust(9, "0"))


class Span:
    """The combination of several bounds of time, as inclusive microseconds; None where there is no bound."""

    def __init__(self) -> None:
        self.from_us: int | None = None
        self.until_us: int | None = None

    def narrow(self, bound: str, time_ns: int) -> None:
        """Add a bound: one of `BOUNDS`, and its time in nanoseconds since 1970."""
        floor_us, ceiling_us = time_ns // 1_000, -(-time_ns // 1_000)
        if bound in ("from", "after"):
            low = ceiling_us if bound == "from" else floor_us + 1
            self.from_us = low if self.from_us is None else max(self.from_us, low)
        else:
            high = floor_us if bound == "until" else ceiling_us - 1
            self.until_us = high if self.until_us is None else min(self.until_us, high)
