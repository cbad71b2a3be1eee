"""Whether a program's own policy and authorizers let a channel's history be read: what they decide for a subscriber.

They are called as for a subscription without a session. A policy that reads the session raises then, which denies the
request.
"""

from __future__ import annotations

import asyncio

from app.broker.topics import Pattern
from app.protocols.bayeux.hooks import Hooks
from app.transports.guard import Rejection
from app.transports.head import Head

DENIED = "the server's policy does not allow reading this history"


async def may_read(hooks: Hooks, pattern: Pattern, head: Head, limit_s: float) -> None:
    """Check that the program's policy and authorizers allow reading the history of a channel or pattern.

    They have `limit_s` seconds. Raises `Rejection` (403).
    """
    answer = hooks.permit("subscribe", pattern, head)
    if not isinstance(answer, bool):
        try:
            async with asyncio.timeout(limit_s):
                answer = await answer
        except TimeoutError as error:
            hooks.report("policy.can_subscribe", error)
            answer = False
    if not answer:
        raise Rejection(403, DENIED)
