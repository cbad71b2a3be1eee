"""Chores: long work, done in parts over several turns of the loop, such as deleting or announcing 10,000 topics.

NetworkTables clients disconnect from a server that is silent for a second, so no client may wait for such work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

_COST_OF_A_TURN = 400
"""The cost of all chores in one turn. A step for one topic and one client costs 1, some 10 to 20 microseconds."""


class Chores:
    """The unfinished chores: iterators that do one step for each item, and yield the step's cost.

    `wake` requests a further turn of the loop.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._waiting: deque[Iterator[int]] = deque()
        self._left = _COST_OF_A_TURN

    def __len__(self) -> int:
        """Return the number of unfinished chores."""
        return len(self._waiting)

    def begin(self, chore: Iterator[int]) -> None:
        """Do as much of a chore as this turn's cost allows, and the rest in later turns."""
        if not self.is_done(chore):
            self.put_off(chore)

    def put_off(self, chore: Iterator[int]) -> None:
        """Do a chore in later turns."""
        self._waiting.append(chore)
        self._wake()

    def work(self) -> None:
        """Continue the chore that has waited longest; to be called once a turn."""
        self._left = _COST_OF_A_TURN
        if self._waiting:
            self.begin(self._waiting.popleft())

    def is_done(self, chore: Iterator[int]) -> bool:
        """Do as much of a chore as this turn's cost allows, and return whether it is done."""
        while self._left > 0:
            cost = next(chore, None)
            if cost is None:
                return True
            self._left -= cost
        return False
