"""What one client listens to, and for a topic what its subscriptions amount to together (nt4.md A49 to A57)."""

from __future__ import annotations

from collections import Counter
from math import gcd
from typing import TYPE_CHECKING, NamedTuple

from app.protocols.nt4.names import is_reserved

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from app.protocols.nt4.messages import Subscribe

_STEP_MS = 10
LEAST_PERIOD_MS = 5


class Interest(NamedTuple):
    """How a client hears a topic's values: all, or of each period the newest."""

    is_all: bool
    period_ms: int


class Subscriptions:
    """One client's, by their `subuid`."""

    def __init__(self, max_period_s: float) -> None:
        self._max_period_s = max_period_s
        self._by_id: dict[int, Subscribe] = {}
        self._exact: dict[str, _Named] = {}  # by name, the ones that have it
        self._prefixes: dict[str, _Named] = {}
        self._lengths: Counter[int] = Counter()  # of prefixes
        self._reserved = 0  # names that begin with `$`
        self.names = 0  # in all of them; one without any counts as one

    def __iter__(self) -> Iterator[Subscribe]:
        """All of them, in the order in which they began."""
        return iter(self._by_id.values())

    def put(self, subscription: Subscribe) -> None:
        """Add one whose `subuid` is free."""
        subuid = subscription.subuid
        self._by_id[subuid] = subscription
        self.names += len(subscription.topics) or 1
        kept = self._prefixes if subscription.options.is_prefix else self._exact
        for name in subscription.topics:
            if subscription.options.is_prefix and name not in kept:
                self._lengths[len(name)] += 1
            self._reserved += is_reserved(name)
            named = kept.setdefault(name, _Named())
            named.by_id[subuid] = subscription
            named.interest = _together([named.interest, merged([subscription], self._max_period_s)])

    def remove(self, subuid: int) -> Subscribe | None:
        """Undo `put`; None if there is nothing of that id."""
        subscription = self._by_id.pop(subuid, None)
        if subscription is None:
            return None
        self.names -= len(subscription.topics) or 1
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
        """The ones that a topic of that name belongs to. The prefix "" is not for meta topics (A49)."""
        found: dict[int, Subscribe] = {}
        for named in self._named(name):
            found |= named.by_id
        return [*found.values()]

    def hears(self, name: str) -> bool:
        """Whether there is any."""
        return any(True for _ in self._named(name))

    def interest(self, name: str) -> Interest | None:
        """What they ask for of such a topic's values; None where they want none."""
        return _together([named.interest for named in self._named(name)])

    def _named(self, name: str) -> Iterator[_Named]:
        if is_reserved(name) and not self._reserved:
            return
        if name in self._exact:
            yield self._exact[name]
        for length in self._lengths:
            if length <= len(name) and (length or not is_reserved(name)) and name[:length] in self._prefixes:
                yield self._prefixes[name[:length]]


class _Named:
    """The subscriptions of one client that have one name, and what they amount to."""

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
    """What they ask for of one topic's values; None where they want topics only (A51)."""
    wanted = [each.options for each in subscriptions if not each.options.is_topics_only]
    if not wanted:
        return None
    period_ms = gcd(*(period_of(options.periodic_s, max_period_s) for options in wanted))
    return Interest(any(options.is_all for options in wanted), max(period_ms, LEAST_PERIOD_MS))


def period_of(periodic_s: float, max_period_s: float) -> int:
    """A period in milliseconds, rounded to tens as ntcore does, and never below 5 (A56)."""
    ms = min(periodic_s, max_period_s) * 1000
    return max(int(ms + _STEP_MS / 2) // _STEP_MS * _STEP_MS, LEAST_PERIOD_MS)
