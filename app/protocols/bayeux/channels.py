"""Living channels: which exist, and when one comes into being or goes.

A channel is made by the first message that subscribes or publishes to it, and goes when it has been idle for three
sweeps: no subscriber, no publish. Nothing is delivered by way of a channel, so one that has gone loses nothing; what
hangs on its life is the policy's question `can_create` and the hooks that prepare a channel before anyone sees it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from app.broker.index import TopicIndex
    from app.broker.topics import Pattern
    from app.protocols.bayeux.hooks import Hooks

_IDLE_SWEEPS = 3


def is_used(channel: Pattern, index: TopicIndex, hooks: Hooks) -> bool:
    """Whether anybody would miss a channel; those for services have no subscribers to keep them."""
    if channel.topic.partition("/")[0] == "service":
        return True
    return channel in index.subscriptions or channel in hooks.listeners or channel in hooks.authorizers


class Channels:
    """The names of all that exist, with the number of sweeps each has been idle; `hits` counts what the bound did."""

    def __init__(self, most: int, hits: Counter[str]) -> None:
        self._most = most
        self._hits = hits
        self._idle_sweeps: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._idle_sweeps)

    def __contains__(self, name: str) -> bool:
        return name in self._idle_sweeps

    def add(self, name: str) -> bool:
        """Make a channel, or note that it is in use; True if it is new.

        At the bound the one made first is forgotten: its next use makes it again.
        """
        is_new = name not in self._idle_sweeps
        if is_new and len(self._idle_sweeps) >= self._most:
            self._hits["channels"] += 1
            del self._idle_sweeps[next(iter(self._idle_sweeps))]
        self._idle_sweeps[name] = 0
        return is_new

    def sweep(self, is_used: Callable[[str], bool]) -> list[str]:
        """Forget the channels that nobody used since three sweeps ago; returns them."""
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
