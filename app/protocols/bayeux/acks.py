"""The acknowledge extension: events are kept until the client's next connect acknowledges them.

Wire form (CometD's): `ext.ack: true` in both handshake messages; then each connect reply carries `ext.ack: N`, which
closes batch N, and each connect carries `ext.ack: k`, which frees all batches up to k. Events that are not freed are
sent again, before newer events and in a batch with a new number, but their first number frees them too. A client that
lost a reply repeats its old k and gets all of the events again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from app.broker.events import Event


class Acks:
    """The events of one session that were sent and not yet acknowledged."""

    __slots__ = ("_unacknowledged", "batch")

    def __init__(self) -> None:
        self.batch = 0
        """The number of the newest batch."""
        self._unacknowledged: deque[tuple[int, Event]] = deque()

    def __len__(self) -> int:
        return len(self._unacknowledged)

    def __iter__(self) -> Iterator[Event]:
        """Iterate over the unacknowledged events, oldest first."""
        return (event for _, event in self._unacknowledged)

    def clear(self) -> None:
        """Free all events."""
        self._unacknowledged.clear()

    def acknowledge(self, batch: int) -> list[Event]:
        """Free and return the events of all batches up to `batch`, which may be any number."""
        freed = []
        while self._unacknowledged and self._unacknowledged[0][0] <= batch:
            freed.append(self._unacknowledged.popleft()[1])
        return freed

    def discard(self, is_unwanted: Callable[[Event], bool]) -> list[Event]:
        """Free and return the events for which `is_unwanted` is true: they are not sent again."""
        freed = [event for _, event in self._unacknowledged if is_unwanted(event)]
        self._unacknowledged = deque(each for each in self._unacknowledged if not is_unwanted(each[1]))
        return freed

    def close_batch(self, fresh: Sequence[Event]) -> list[Event]:
        """Add `fresh` events in a new batch; return all that the connect reply carries, the unacknowledged ones first.

        The new batch's number is `batch`.
        """
        self.batch += 1
        self._unacknowledged.extend((self.batch, event) for event in fresh)
        return [event for _, event in self._unacknowledged]
