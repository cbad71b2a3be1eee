"""One WAMP long-poll connection: a `Link` that keeps what the engine says until the peer comes for it.

Nothing of this waits. What a receive takes stays here until it is known to have been written: if that poll died before,
the next one gets it.
"""

from __future__ import annotations

from collections import deque
from time import monotonic
from typing import TYPE_CHECKING

from app.protocols.links import Close
from app.protocols.wamp.formats import is_batched, serializer_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from app.protocols.links import Speaker


def _copied(message: bytes) -> bytes:
    """A message that waits without a frame: a copy, since what orjson makes keeps kilobytes behind its end."""
    return bytes(memoryview(message))


class Poll:
    """One connection. `speaker` is its engine's, `account` whose address it comes from (`addresses.py`)."""

    kind = "poll"
    text = binary = staticmethod(_copied)

    def __init__(self, subprotocol: str, account: str | None, now: float) -> None:
        self.subprotocol = subprotocol
        self.is_binary = serializer_of(subprotocol).is_binary
        self._is_batched = is_batched(subprotocol)
        self.account = account
        self.speaker: Speaker
        self.backlog_bytes = 0
        self.heard_at = now  # of the peer, by a receive
        self.wake: Callable[[], None] | None = None  # tells the receive that waits to look
        self.is_ending = False  # the engine has said its last
        self._waiting: deque[bytes] = deque()
        self._is_paused = False  # the engine is
        self._is_settled = True  # what was taken last has been written
        self._has_lost = False  # the engine knows

    def answer(self, outcome: list[bytes] | Close) -> None:
        """See `Link`."""
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
            self.speaker.paused()

    @property
    def has_news(self) -> bool:
        """Whether a receive need not wait."""
        return self._is_settled and (bool(self._waiting) or self.is_ending or self._has_lost)

    @property
    def is_over(self) -> bool:
        """Whether nothing will ever come of it."""
        return self._has_lost or (self.is_ending and self._is_settled and not self._waiting)

    def take(self) -> list[bytes]:
        """What one receive brings: one message, or all that wait where there are batches; may be none.

        Nothing before the last is settled by `written` or `put_back`: messages must come in order.
        """
        if not (self._waiting and self._is_settled):
            return []
        taken = [self._waiting.popleft() for _ in range(len(self._waiting) if self._is_batched else 1)]
        self.backlog_bytes -= sum(map(len, taken))
        self._is_settled = False
        return taken

    def put_back(self, taken: list[bytes]) -> None:
        """That receive died before it was written."""
        self._is_settled = True
        if not self._has_lost:
            self._waiting.extendleft(reversed(taken))
            self.backlog_bytes += sum(map(len, taken))
            self._tell()

    def written(self) -> None:
        """That receive has reached the peer."""
        self._is_settled = True
        if self._waiting or self.is_over:
            self._tell()
        else:
            self._is_paused = False
            self.speaker.resumed(monotonic())

    def lose(self, now: float) -> None:
        """The peer has left, or is not heard of any more."""
        if not self._has_lost:
            self._has_lost = True
            self._waiting.clear()
            self.backlog_bytes = 0
            self._tell()
            self.speaker.lost(now)

    def _tell(self) -> None:
        if self.wake is not None:
            self.wake()
