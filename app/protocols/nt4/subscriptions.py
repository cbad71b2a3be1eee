"""The subscriptions of one client, and their combined options for a topic (NA49 to NA57)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import gcd
from typing import NamedTuple

from app.broker.memory import text_bytes
from app.protocols.nt4.messages import Subscribe
from app.protocols.nt4.names import is_reserved

_STEP_MS = 10
LEAST_PERIOD_MS = 5

_BESIDE_BYTES = 400
"""What a subscription takes besides its names, and what each name takes besides its text.

Measured by `tests/bench/session_memory.py`.
"""


class Interest(NamedTuple):
    """The combined options of a client for a topic: all values or the newest of each period; periods are in ms."""

    is_all: bool
    period_ms: int


class Subscriptions:
    """The subscriptions of one client, by `subuid`; a longer period than `max_period_s` is shortened to it."""

    def __init__(self, max_period_s: float) -> None:
        self._max_period_s = max_period_s
        self._by_id: dict[int, Subscribe] = {}
        self._exact: dict[str, _Named] = {}  # the subscriptions with each name
        self._prefixes: dict[str, _Named] = {}
        self._lengths: Counter[int] = Counter()  # the number of prefixes of each length
        self._reserved = 0  # the number of names that begin with `$`
        self.names = 0  # the number of names in all subscriptions; one without names counts as one
        self.nbytes = 0  # the memory that all subscriptions take

    def __iter__(self) -> Iterator[Subscribe]:
        """Iterate over the subscriptions in the order in which they began."""
        return iter(self._by_id.values())

    def put(self, subscription: Subscribe) -> None:
        """Add a subscription whose `subuid` is not in use."""
        subuid = subscription.subuid
        self._by_id[subuid] = subscription
        self.names += len(subscription.topics) or 1
        self.nbytes += bytes_of(subscription)
        own = merged([subscription], self._max_period_s)
        kept = self._prefixes if subscription.options.is_prefix else self._exact
        for name in subscription.topics:
            if subscription.options.is_prefix and name not in kept:
                self._lengths[len(name)] += 1
            self._reserved += is_reserved(name)
            named = kept.setdefault(name, _Named())
            named.by_id[subuid] = subscription
            named.interest = own if named.interest is None else _together([named.interest, own])

    def remove(self, subuid: int) -> Subscribe | None:
        """Remove and return the subscription with an id; None if there is none."""
        subscription = self._by_id.pop(subuid, None)
        if subscription is None:
            return None
        self.names -= len(subscription.topics) or 1
        self.nbytes -= bytes_of(subscription)
        kept = self._prefixes if subscription.options.is_prefix else self._exact
        self._reserved -= sum(map(is_reserved, subscription.topics))
        for name in set(subscription.topics):
            named = kept[name]
            del named.by_id[subuid]
            if named.by_id:
                named.interest = merged([*named.by_id.values()], self._max_period_s)
            else:
                del kept[name]
                if subscription.options.is_prefix:
                    self._lengths[len(name)] -= 1
                    if not self._lengths[len(name)]:
                        del self._lengths[len(name)]
        return subscription

    def over(self, name: str) -> list[Subscribe]:
        """Return the subscriptions that match a topic name; the prefix "" does not match meta topics (NA49)."""
        found: dict[int, Subscribe] = {}
        for named in self._named(name):
            found |= named.by_id
        return [*found.values()]

    def hears(self, name: str) -> bool:
        """Return whether any subscription matches a topic name."""
        return any(True for _ in self._named(name))

    def interest(self, name: str) -> Interest | None:
        """Return the combined options of the subscriptions that match a topic name; None if they want no values."""
        return _together([named.interest for named in self._named(name)])

    def _named(self, name: str) -> Iterator[_Named]:
        if is_reserved(name) and not self._reserved:
            return
        if name in self._exact:
            yield self._exact[name]
        for length in self._lengths:
            if length <= len(name) and (length or not is_reserved(name)) and name[:length] in self._prefixes:
                yield self._prefixes[name[:length]]


def bytes_of(subscription: Subscribe) -> int:
    """Return the memory that a subscription takes, in bytes."""
    names = subscription.topics
    return _BESIDE_BYTES * (1 + len(names)) + sum(map(text_bytes, names)) + len(subscription.options.others)


class _Named:
    """The subscriptions of one client that have one name, and their combined options."""

    __slots__ = ("by_id", "interest")

    def __init__(self) -> None:
        self.by_id: dict[int, Subscribe] = {}
        self.interest: Interest | None = None


def _together(interests: Sequence[Interest | None]) -> Interest | None:
    wanted = [each for each in interests if each is not None]
    if not wanted:
        return None
    return Interest(any(each.is_all for each in wanted), gcd(*(each.period_ms for each in wanted)))


def merged(subscriptions: Sequence[Subscribe], max_period_s: float) -> Interest | None:
    """Return the combined options of subscriptions for one topic; None if they want no values, only topics (NA51)."""
    wanted = [each.options for each in subscriptions if not each.options.is_topics_only]
    if not wanted:
        return None
    period_ms = gcd(*(period_of(options.periodic_s, max_period_s) for options in wanted))
    return Interest(any(options.is_all for options in wanted), max(period_ms, LEAST_PERIOD_MS))


def period_of(periodic_s: float, max_period_s: float) -> int:
    """Return a period in milliseconds, rounded to tens as in ntcore, and at least 5 (NA56)."""
    ms = min(periodic_s, max_period_s) * 1000
    return max(int(ms + _STEP_MS / 2) // _STEP_MS * _STEP_MS, LEAST_PERIOD_MS)
