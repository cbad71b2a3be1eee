"""The channels that exist, and when a channel is created or forgotten.

A channel is created by the first message that subscribes or publishes to it, and forgotten when it has been idle for
three sweeps: no subscriber, no publish. Delivery does not depend on it, so nothing is lost with a channel. Its creation
matters only to the policy's `can_create` and to the hooks that prepare a channel before it is used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from app.broker.index import TopicIndex
from app.broker.sessions import Session
from app.broker.topics import Pattern
from app.protocols.bayeux.hooks import Hooks

_IDLE_SWEEPS = 3


def is_used(channel: Pattern, index: TopicIndex[Session], hooks: Hooks) -> bool:
    """Whether a channel is in use; service channels always count as used, since they have no subscribers."""
    if channel.topic.partition("/")[0] == "service":
        return True
    return channel in index.subscriptions or channel in hooks.listeners or channel in hooks.authorizers


class Channels:
    """The names of at most `most` channels, with the number of sweeps that each has been idle.

    `hits` counts the channels forgotten at that bound.
    """

    def __init__(self, most: int, hits: Counter[str]) -> None:
        self._most = most
        self._hits = hits
        self._idle_sweeps: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._idle_sweeps)

    def __contains__(self, name: str) -> bool:
        return name in self._idle_sweeps

    def add(self, name: str) -> bool:
        """Create a channel, or note that it is in use; True if it is new.

        At the bound the oldest channel is forgotten: its next use creates it again.
        """
        is_new = name not in self._idle_sweeps
        if is_new and len(self._idle_sweeps) >= self._most:
            self._hits["channels"] += 1
            del self._idle_sweeps[next(iter(self._idle_sweeps))]
        self._idle_sweeps[name] = 0
        return is_new

    def sweep(self, is_used: Callable[[str], bool]) -> list[str]:
        """Forget the channels that were idle for three sweeps, and return them."""
        gone = []
        for name, idle_sweeps in self._idle_sweeps.items():
            if is_used(name):
                self._idle_sweeps[name] = 0
            elif idle_sweeps + 1 >= _IDLE_SWEEPS:
                gone.append(name)
            else:
                self._idle_sweeps[name] = idle_sweeps + 1
        for name in gone:
            del self._idle_sweeps[name]
        return gone
