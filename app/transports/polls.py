"""One WAMP long-poll connection: a `Link` that keeps the engine's messages until the peer fetches them.

Nothing here waits. The messages that a receive takes must be settled by `written` or `put_back`: if a receive died
before its response was written, the next one gets them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic

from app.protocols.contract import Close, Engine
from app.protocols.wamp.serializers import is_batched, serializer_of


def _copied(message: bytes) -> bytes:
    """A message that waits without a frame: a copy, since a result of orjson keeps kilobytes behind its end."""
    return bytes(memoryview(message))


class Poll:
    """One connection. `engine` is its engine, `account` that of the peer's address (`addresses.py`)."""

    kind = "poll"
    text = binary = staticmethod(_copied)

    def __init__(self, subprotocol: str, account: str | None, now: float) -> None:
        self.subprotocol = subprotocol
        self.is_binary = serializer_of(subprotocol).is_binary
        self._is_batched = is_batched(subprotocol)
        self.account = account
        self.engine: Engine
        self.backlog_bytes = 0
        self.heard_at = now  # the latest receive of the peer
        self.wake: Callable[[], None] | None = None  # wakes the receive that waits
        self.is_ending = False  # the engine has sent its last message
        self._waiting: deque[bytes] = deque()
        self._is_paused = False  # the engine is
        self._is_settled = True  # what was taken last has been written
        self._has_lost = False  # the engine has been notified that the peer is lost

    def write(self, outcome: list[bytes] | Close) -> None:
        """Keep messages for the peer; a `Close` ends the connection after them. See `Link`."""
        if self.is_ending or self._has_lost:
            return
        if isinstance(outcome, Close):
            self.is_ending = True
            outcome = outcome.frames
        self._waiting.extend(outcome)
        self.backlog_bytes += sum(map(len, outcome))
        self._tell()
        if not (self._is_paused or self.is_ending):
            self._is_paused = True
            self.engine.paused()

    @property
    def has_news(self) -> bool:
        """Whether a receive can be answered immediately."""
        return self._is_settled and (bool(self._waiting) or self.is_ending or self._has_lost)

    @property
    def is_over(self) -> bool:
        """Whether the connection has ended, with nothing left to fetch."""
        return self._has_lost or (self.is_ending and self._is_settled and not self._waiting)

    def take(self) -> list[bytes]:
        """Take the messages for one receive: one, or all that wait if the subprotocol is batched; may be empty.

        It is empty until the messages taken before are settled by `written` or `put_back`, to keep their order.
        """
        if not (self._waiting and self._is_settled):
            return []
        taken = [self._waiting.popleft() for _ in range(len(self._waiting) if self._is_batched else 1)]
        self.backlog_bytes -= sum(map(len, taken))
        self._is_settled = False
        return taken

    def put_back(self, taken: list[bytes]) -> None:
        """Put back the messages of a receive that ended before its response was written."""
        self._is_settled = True
        if not self._has_lost:
            self._waiting.extendleft(reversed(taken))
            self.backlog_bytes += sum(map(len, taken))
            self._tell()

    def written(self) -> None:
        """Note that the messages taken last have been written to the peer."""
        self._is_settled = True
        if self._waiting or self.is_over:
            self._tell()
        else:
            self._is_paused = False
            self.engine.resumed(monotonic())

    def lose(self, now: float) -> None:
        """End the connection: the peer has closed it or has timed out."""
        if not self._has_lost:
            self._has_lost = True
            self._waiting.clear()
            self.backlog_bytes = 0
            self._tell()
            self.engine.lost(now)

    def _tell(self) -> None:
        if self.wake is not None:
            self.wake()
