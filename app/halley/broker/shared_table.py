"""A table that all clients share, and which entry it loses when it is full.

If the oldest entry went, whosever it is, one stranger who adds enough would have everybody's forgotten: after 101,000
publishes with idempotency keys of their own a member's order counts twice. So the oldest entry of the anonymous goes
first while they have more than a tenth of the table together, and else the oldest of all. While a table has room nobody
loses anything.

The anonymous are those who have proved no identity: their authid is None. Addresses do not count, since what a table is
made of again after a restart, and at all nodes of a cluster alike, does not have them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final, Generic

from halley.broker.aging import Key, Value, drop_expired, has_expired

_PARTS: Final = 10
"""How many parts a full table has, of which the anonymous keep one together."""


def part_of(room: int) -> int:
    """What the anonymous keep together of a table with so much room, in entries or in bytes."""
    return room // _PARTS


class SharedTable(Generic[Key, Value]):
    """Entries of the anonymous and of all others, each in the order of their use; their owner bounds their number.

    `turn_of` returns when an entry was used, by any clock that does not go back.
    """

    def __init__(self, turn_of: Callable[[Value], float]) -> None:
        self.anonymous: OrderedDict[Key, Value] = OrderedDict()
        self.others: OrderedDict[Key, Value] = OrderedDict()
        self._turn_of = turn_of

    def __len__(self) -> int:
        return len(self.anonymous) + len(self.others)

    def of(self, *, is_anonymous: bool) -> OrderedDict[Key, Value]:
        """The entries of the anonymous, or of all others."""
        return self.anonymous if is_anonymous else self.others

    def items(self) -> Iterator[tuple[Key, Value]]:
        """All entries."""
        return chain(self.anonymous.items(), self.others.items())

    def oldest(self) -> Value:
        """The entry that was used longest ago. Raises `StopIteration` if there is none."""
        return next(iter((self.anonymous if self._begins_with_anonymous() else self.others).values()))

    def lose(self, *, of_the_anonymous: bool) -> tuple[Key, Value]:
        """Remove and return the entry that was used longest ago: of those of the anonymous, if there is one, or of all.

        Raises `KeyError` if there is none.
        """
        if (of_the_anonymous and self.anonymous) or self._begins_with_anonymous():
            return self.anonymous.popitem(last=False)
        return self.others.popitem(last=False)

    def make_room(self, most: int) -> Value:
        """Remove and return the entry whose turn it is because there are more than `most`."""
        anonymous = self.anonymous
        if len(anonymous) * _PARTS > most:  # as `lose` does, without a call more for each publish with a key
            return anonymous.popitem(last=False)[1]
        return self.lose(of_the_anonymous=False)[1]

    def drop_expired(self, is_over: Callable[[Value], bool]) -> bool:
        """Remove entries that are over, some in each turn of the event loop; whether there are more."""
        if not has_expired(self.anonymous, is_over):
            return drop_expired(self.others, is_over)
        return drop_expired(self.anonymous, is_over) or has_expired(self.others, is_over)

    def _begins_with_anonymous(self) -> bool:
        """Whether the entry that was used longest ago is one of the anonymous."""
        if not (self.anonymous and self.others):
            return len(self.anonymous) > 0
        first, other = next(iter(self.anonymous.values())), next(iter(self.others.values()))
        return self._turn_of(first) <= self._turn_of(other)
