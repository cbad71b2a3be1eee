"""Whether a program's own policy and authorizers let a channel's history be read: what they decide for a subscriber.

They are called as for a subscription without a session. A policy that reads the session raises then, which denies the
request.
"""

from __future__ import annotations

from app.broker.topics import Pattern
from app.protocols.bayeux.hooks import Hooks
from app.transports.guard import Rejection
from app.transports.head import Head
from app.transports.waits import outcome_of

DENIED = "the server's policy does not allow reading this history"


async def may_read(hooks: Hooks, pattern: Pattern, head: Head, limit_s: float) -> None:
    """Check that the program's policy and authorizers allow reading the history of a channel or pattern.

    They have `limit_s` seconds. Raises `Rejection` (403).
    """
    answer = hooks.permit("subscribe", pattern, head)
    if not isinstance(answer, bool):
        answer, error = await outcome_of(answer, limit_s)
        if error is not None:
            hooks.report("policy.can_subscribe", error)
    if not answer:
        raise Rejection(403, DENIED)
