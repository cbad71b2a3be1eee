"""The line of a session's requests: what must wait for a policy, the disk or a page of the history, and what is behind.

Reading goes on meanwhile. What a client publishes and subscribes behind something that blocks waits in line, and its
goodbye too, so that it happens in order; calls overtake. Both are bounded, and what has no room is refused.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from app.protocols.wamp import errors, publishing
from app.protocols.wamp.errors import Refused
from app.protocols.wamp.messages import (
    SUBSCRIBE,
    UNSUBSCRIBE,
    Goodbye,
    Publish,
    Subscribe,
    Unsubscribe,
    Violation,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from app.broker.topics import Pattern
    from app.protocols.wamp.engine import Engine
    from app.protocols.wamp.messages import Message
    from app.settings import Verb

_TOO_MANY = "too many requests wait"


class Line:
    """One session's, as long as it is there."""

    __slots__ = ("_behind", "_behind_bytes", "_engine", "_is_blocked", "_waiting")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting = 0  # requests that are answered later
        self._is_blocked = False
        self._behind: deque[tuple[Message, int]] = deque()
        self._behind_bytes = 0

    def takes(self, message: Message, nbytes: int) -> bool:
        """Whether a message of so many bytes waits, or is refused, because something blocks the line."""
        if not self._is_blocked or not isinstance(message, Publish | Subscribe | Unsubscribe | Goodbye):
            return False
        if self._behind and isinstance(self._behind[-1][0], Goodbye):  # nothing comes behind it
            return True
        limits = self._engine.router.broker.limits
        if isinstance(message, Goodbye):
            self._behind.append((message, 0))
        elif len(self._behind) >= limits.queue_events:
            self._refuse(message, "queue_events")
        elif self._behind and self._behind_bytes + nbytes > limits.queue_bytes:
            self._refuse(message, "queue_bytes")
        else:
            self._behind.append((message, nbytes))
            self._behind_bytes += nbytes
        return True

    def _refuse(self, message: Publish | Subscribe | Unsubscribe, limit: str) -> None:
        self._engine.router.broker.hits[limit] += 1
        refused = Refused(errors.UNAVAILABLE, _TOO_MANY)
        if isinstance(message, Publish):
            publishing.refuse(self._engine, message, refused)
        else:
            code = SUBSCRIBE if isinstance(message, Subscribe) else UNSUBSCRIBE
            self._engine.refuse(code, message.request, refused)

    def check_room(self) -> None:
        """Whether one more request may be answered later. Raises `Refused`."""
        if self._waiting >= self._engine.router.options.waiting_calls:
            self._engine.router.broker.hits["waiting_calls"] += 1
            raise Refused(errors.UNAVAILABLE, _TOO_MANY)

    def later(
        self,
        awaitable: Awaitable[Any],
        limit_s: float,
        then: Callable[[Any, Exception | None, float], None],
        *,
        blocks: bool = False,
    ) -> None:
        """Go on with `then` when that has been awaited, if the session is still there."""
        self._waiting += 1
        self._is_blocked = self._is_blocked or blocks

        def resume(value: Any, error: Exception | None, now: float) -> None:
            self._waiting -= 1
            if self._engine.line is not self:
                return
            if blocks:
                self._is_blocked = False
            try:
                then(value, error, now)
                while self._behind and not self._is_blocked and self._engine.line is self:
                    message, nbytes = self._behind.popleft()
                    self._behind_bytes -= nbytes
                    self._engine.act(message, now)
            except Violation as violation:
                self._engine.violated(str(violation), now)

        self._engine.router.wait(awaitable, limit_s, resume)

    def if_permitted(
        self,
        verb: Verb,
        what: str | Pattern,
        go_on: Callable[[float], None],
        refuse: Callable[[Refused], None],
        now: float,
        *,
        blocks: bool = True,
    ) -> None:
        """Ask the program's own policy, which may take its time; either calls `go_on`, or `refuse`.

        `blocks` says whether what comes behind waits meanwhile. One that does is never asked while another waits.
        """
        permission = self._engine.router.permission(verb, what, self._engine.context)

        def decided(is_allowed: object, error: Exception | None, now: float) -> None:
            try:
                if error is not None:
                    raise Refused(errors.AUTHORIZATION_FAILED)
                if is_allowed is not True:
                    raise Refused(errors.NOT_AUTHORIZED)
                go_on(now)
            except Refused as refused:
                refuse(refused)

        if isinstance(permission, bool):
            decided(permission, None, now)
        else:
            self.later(permission, self._engine.router.policy_s, decided, blocks=blocks)
