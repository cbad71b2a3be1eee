"""What takes long, done a part in each turn of the loop: nobody waits while ten thousand topics go or are announced.

Clients of NetworkTables hang up on a server that they have not heard for a second.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_COST_OF_A_TURN = 400
"""For all together. A step that concerns one topic and one client costs 1; that is some ten or twenty microseconds."""


class Chores:
    """Iterators, each of which does a step when it is asked for the next item, and says what that has cost."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._waiting: deque[Iterator[int]] = deque()
        self._left = _COST_OF_A_TURN

    def __len__(self) -> int:
        """How many are not done."""
        return len(self._waiting)

    def begin(self, chore: Iterator[int]) -> None:
        """Do as much of it now as this turn has time for, and what is left then in later ones."""
        if not self.is_done(chore):
            self.put_off(chore)

    def put_off(self, chore: Iterator[int]) -> None:
        """Do it in later turns."""
        self._waiting.append(chore)
        self._wake()

    def work(self) -> None:
        """Once a turn: go on with the one that has waited longest."""
        self._left = _COST_OF_A_TURN
        if self._waiting:
            self.begin(self._waiting.popleft())

    def is_done(self, chore: Iterator[int]) -> bool:
        """Do as much of it as this turn has time for; whether that was all."""
        while self._left > 0:
            cost = next(chore, None)
            if cost is None:
                return True
            self._left -= cost
        return False
