"""The subscriptions of a client: which handler gets a message, and what waits while it is busy."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from halley import telemetry
from halley.nats.wire import Message

Handler = Callable[[Message], Awaitable[None] | None]

_WAITING_BYTES = 67_108_864
"""How much may wait for a subscription's handler; what comes then is dropped."""


class Subscription:
    """A subscription. While `rest` is awaited, which its handler has returned, messages wait, `nbytes` of them.

    `line` subscribes at a server, and `sid` is its id there.
    """

    __slots__ = ("handler", "line", "nbytes", "rest", "sid", "waiting")

    def __init__(self, sid: bytes, line: bytes, handler: Handler) -> None:
        self.sid, self.line, self.handler = sid, line, handler
        self.waiting: deque[Message] = deque()
        self.nbytes = 0
        self.rest: asyncio.Future[None] | None = None

    def handle(self, message: Message) -> None:
        """Have a message handled: now, or behind those that wait."""
        if self.rest is None:
            self._handle(message)
        elif self.nbytes < _WAITING_BYTES:
            self.waiting.append(message)
            self.nbytes += message.nbytes
        else:
            dropped("too much waits", message.subject, len(message.data))

    def end(self) -> None:
        """Drop the messages that wait, and cancel what the handler has under way."""
        self.waiting.clear()
        if self.rest is not None:
            self.rest.cancel()

    def _handle(self, message: Message) -> None:
        rest = None
        try:
            rest = self.handler(message)
        except Exception as error:  # noqa: BLE001 - the next message must be handled
            telemetry.fault("cluster", error)
        if rest is None and len(self.waiting) > 0:  # the next one gets a turn of the loop that is its own
            rest = asyncio.sleep(0)
        self.rest = None if rest is None else asyncio.ensure_future(rest)
        if self.rest is not None:
            self.rest.add_done_callback(self._go_on)

    def _go_on(self, rest: asyncio.Future[None]) -> None:
        if not rest.cancelled() and (error := rest.exception()) is not None:
            telemetry.fault("cluster", error)
        self.rest = None
        if len(self.waiting) > 0:
            message = self.waiting.popleft()
            self.nbytes -= message.nbytes
            self._handle(message)


class Subscriptions:
    """Those of one client, which lets its wire call `deliver`."""

    def __init__(self) -> None:
        self._by_id: dict[bytes, Subscription] = {}
        self._last_id = 0

    @property
    def lines(self) -> list[bytes]:
        """What subscribes to all of them at a server."""
        return [each.line for each in self._by_id.values()]

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
        subscription.end()
        return self._by_id.pop(subscription.sid, None) is not None

    def end_all(self) -> list[asyncio.Future[None]]:
        """End all; what handlers have under way, which is cancelled."""
        ended = list(self._by_id.values())
        self._by_id.clear()
        under_way = [each.rest for each in ended if each.rest is not None]
        for each in ended:
            each.end()
        return under_way

    def deliver(self, sid: bytes, message: Message) -> None:
        """Have a message handled that a server has sent for the subscription `sid`."""
        subscription = self._by_id.get(sid)
        if subscription is not None:  # else it has ended, and the server does not know yet
            subscription.handle(message)


def dropped(why: str, subject: str, nbytes: int) -> None:
    """Log that a message is dropped."""
    telemetry.log.warning("cluster_dropped", why=why, subject=subject, bytes=nbytes)
