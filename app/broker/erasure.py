"""Erasing events: which of them, and what else than the log has their data and must be notified.

The log erases its own rows (`app/history/purge.py`). Everything else that keeps data of events after their delivery is
in `Broker.holders`. Not among these are the queues of sessions: what is in them may still be delivered.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from app.broker.topics import RESERVED, Pattern, matches

Work = Callable[[], None]
"""What remains to be done on disk: it blocks, so a thread calls it. Raises `OSError`."""


@dataclass(frozen=True, slots=True)
class Erasure:
    """Which events to erase: those whose topic `pattern` matches, or those of `publisher` (an authid).

    One of the two is None. With a publisher go also the server's own events about it: its sessions and subscriptions.
    """

    pattern: Pattern | None
    publisher: str | None

    def concerns(self, topic: str, authid: str | None, payload: str | bytes | None = None) -> bool:
        """Whether an event on `topic` that was published by `authid` is to be erased; `payload` is JSON text."""
        if self.pattern is not None:
            return matches(self.pattern, topic)
        return authid == self.publisher or (topic.startswith(f"{RESERVED}/") and self._is_spoken_of(payload))

    def _is_spoken_of(self, payload: str | bytes | None) -> bool:
        told = json.loads(payload or "null")
        return isinstance(told, dict) and told.get("authid") == self.publisher


class Holder(Protocol):
    """Something that keeps data of events after their delivery, in memory or in a file next to the log."""

    def erase(self, erasure: Erasure) -> Work | None:
        """Drop from memory all that it has of the events concerned, and return what remains to be done on disk.

        It is called on the event loop, never blocks, and may be repeated.
        """
