"""The subscriptions of a client: which handler gets a message, and what waits while it is busy."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from app import telemetry
from app.nats.wire import Message

Handler = Callable[[Message], Awaitable[None] | None]

_WAITING_BYTES: Final = 67_108_864
"""How much may wait for a subscription's handler; what comes then is dropped."""


class Subscription:
    """A subscription. While `task` awaits what the handler has returned, messages wait; `nbytes` is what they have.

    `line` subscribes at a server, and `sid` is its id there.
    """

    __slots__ = ("handler", "line", "nbytes", "sid", "task", "waiting")

    def __init__(self, sid: bytes, line: bytes, handler: Handler) -> None:
        self.sid, self.line, self.handler = sid, line, handler
        self.waiting: deque[Message] = deque()
        self.nbytes = 0
        self.task: asyncio.Task[None] | None = None


class Subscriptions:
    """Those of one client, which lets its wire call `deliver`."""

    def __init__(self) -> None:
        self._by_id: dict[bytes, Subscription] = {}
        self._last_id = 0

    @property
    def lines(self) -> list[bytes]:
        """What subscribes to all of them at a server."""
        return [each.line for each in self._by_id.values()]

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """What handlers have under way."""
        return [each.task for each in self._by_id.values() if each.task is not None]

    def add(self, subject: str, handler: Handler, queue: str) -> Subscription:
        """Add one to a subject, as one of a `queue` if that has a name."""
        self._last_id += 1
        sid = b"%d" % self._last_id
        words = ["SUB", subject, *([queue] if queue else []), sid.decode()]
        subscription = Subscription(sid, f"{' '.join(words)}\r\n".encode("latin-1"), handler)
        self._by_id[sid] = subscription
        return subscription

    def end(self, subscription: Subscription) -> bool:
        """End one; whether it had not ended before."""
        if subscription.task is not None:
            subscription.task.cancel()
        return self._by_id.pop(subscription.sid, None) is not None

    def deliver(self, sid: bytes, message: Message) -> None:
        """Have a message handled that a server has sent for the subscription `sid`."""
        subscription = self._by_id.get(sid)
        if subscription is None:  # it has ended, and the server does not know yet
            return
        if subscription.task is None:
            rest = _handled(subscription.handler, message)
            if rest is not None:
                subscription.task = asyncio.get_running_loop().create_task(_go_on(subscription, rest))
        elif subscription.nbytes < _WAITING_BYTES:
            subscription.waiting.append(message)
            subscription.nbytes += len(message.data)


def _handled(handler: Handler, message: Message) -> Awaitable[None] | None:
    try:
        return handler(message)
    except Exception as error:  # noqa: BLE001 - the next message must be handled
        telemetry.fault("cluster", error)
        return None


async def _go_on(subscription: Subscription, rest: Awaitable[None] | None) -> None:
    """Await what the handler has returned, and have it handle what has come meanwhile."""
    while True:
        if rest is not None:
            try:
                await rest
            except Exception as error:  # noqa: BLE001 - the next message must be handled
                telemetry.fault("cluster", error)
        if len(subscription.waiting) == 0:
            break
        message = subscription.waiting.popleft()
        subscription.nbytes -= len(message.data)
        rest = _handled(subscription.handler, message)
    subscription.task = None
