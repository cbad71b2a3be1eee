"""The line of a session's requests: those that wait for a policy, the disk or the history, and those behind them.

Reading continues meanwhile. PUBLISH, SUBSCRIBE, UNSUBSCRIBE and GOODBYE that follow a blocking request wait in line, so
that they take effect in order; calls overtake them. Both kinds are bounded, and requests beyond a bound are refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from app.broker.topics import Pattern
from app.protocols.wamp import errors, publishing
from app.protocols.wamp.errors import Refused
from app.protocols.wamp.messages import (
    SUBSCRIBE,
    UNSUBSCRIBE,
    Goodbye,
    Message,
    Publish,
    Subscribe,
    Unsubscribe,
    Violation,
)
from app.settings import Verb

if TYPE_CHECKING:
    from app.protocols.wamp.engine import Engine

_TOO_MANY = "too many pending requests"


class Line:
    """The line of one session; the engine discards it at the end of the session."""

    __slots__ = ("_behind", "_behind_bytes", "_engine", "_is_blocked", "_waiting")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting = 0  # the number of requests that are answered later
        self._is_blocked = False
        self._behind: deque[tuple[Message, int]] = deque()
        self._behind_bytes = 0

    def takes(self, message: Message, nbytes: int) -> bool:
        """Put a message of `nbytes` in line, or refuse it, if the line is blocked; return whether that was so."""
        if not self._is_blocked or not isinstance(message, Publish | Subscribe | Unsubscribe | Goodbye):
            return False
        if self._behind and isinstance(self._behind[-1][0], Goodbye):  # what follows a GOODBYE is ignored
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
        """Check that one more request may be answered later (`wamp.waiting_calls`). Raises `Refused`."""
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
        """Await something for `limit_s` seconds at most, then call `then` with its value or error, and the time.

        `then` is not called if the session has ended. `blocks` makes the requests behind this one wait.
        """
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
        """Ask the program's own policy about a topic or pattern, and call `go_on` or `refuse`, now or later.

        `blocks` makes the requests behind this one wait meanwhile; so at most one blocking question is open at a time.
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
