"""The received events that the program has not read yet: a bounded queue that can be ended.

`asyncio.Queue` cannot be ended before Python 3.13.
"""

from __future__ import annotations

import asyncio
from collections import deque

from app.client.messages import Event


class Inbox:
    """A queue of `bound` events, which `put_now` can exceed."""

    def __init__(self, bound: int) -> None:
        self._events: deque[Event] = deque()
        self._bound = bound
        self._has_news = asyncio.Event()
        self._has_room = asyncio.Event()
        self._is_over = False
        self._error: BaseException | None = None

    async def put(self, event: Event) -> None:
        """Wait until there is room, and add an event. If this is cancelled, the event has not been added."""
        while len(self._events) >= self._bound:
            self._has_room.clear()
            await self._has_room.wait()
        self.put_now(event)

    def put_now(self, event: Event) -> None:
        """Add an event, whether there is room or not."""
        self._events.append(event)
        self._has_news.set()

    async def get(self) -> Event:
        """Return the oldest event. After `end` and the last event, raises its error or `StopAsyncIteration`."""
        if not await self._has_more():
            raise StopAsyncIteration
        self._has_room.set()
        return self._events.popleft()

    async def get_all(self) -> list[Event]:
        """Return all queued events, at least one. After `end` and the last event, raises its error or returns none."""
        await self._has_more()
        self._has_room.set()
        events = [*self._events]
        self._events.clear()
        return events

    async def _has_more(self) -> bool:
        while not self._events:
            if self._error is not None:
                raise self._error
            if self._is_over:
                return False
            self._has_news.clear()
            await self._has_news.wait()
        return True

    def end(self, error: BaseException | None) -> None:
        """End the queue: no more events will be added. `error` is the reason; None if the program closed the client."""
        self._is_over = True
        self._error = error
        self._has_news.set()
