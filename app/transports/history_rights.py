"""Whether a program's own policy and authorizers let a channel's history be read: what they say to a subscriber.

They are asked as for a subscription that has no session. A policy that looks into the session raises then, and whoever
raises says no.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING

from app.protocols.bayeux.hooks import Refused
from app.protocols.bayeux.messages import Message
from app.transports.guard import Rejection

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from app.broker.topics import Pattern
    from app.protocols.bayeux.hooks import Hooks
    from app.transports.head import Head

DENIED = "the server's policy does not let you read that"


async def may_read(hooks: Hooks, channel: str, pattern: Pattern, head: Head, limit_s: float) -> None:
    """That nobody minds. Raises `Rejection`."""
    ask: Callable[..., Any] | None = getattr(hooks.policy, "can_subscribe", None)
    authorizers = hooks.authorizers_over(pattern)
    if ask is None and not authorizers:
        return
    message = Message({"channel": "/meta/subscribe", "subscription": channel}, head)
    if (
        ask is not None
        and await _answer(hooks, limit_s, "policy.can_subscribe", ask, None, channel, message) is not True
    ):
        raise Rejection(403, DENIED)
    verdicts = [
        await _answer(hooks, limit_s, "authorizer", authorize, None, "subscribe", channel, message)
        for authorize in authorizers
    ]
    if authorizers and (False in verdicts or True not in verdicts):
        raise Rejection(403, DENIED)


async def _answer(hooks: Hooks, limit_s: float, what: str, hook: Callable[..., Any], *arguments: object) -> object:
    """What a hook says, within its time; False if it refuses, raises or takes longer."""
    try:
        answer = hook(*arguments)
        if inspect.isawaitable(answer):
            async with asyncio.timeout(limit_s):
                return await answer
    except Refused:
        return False
    except Exception as error:  # noqa: BLE001 - a program's hook may raise anything
        hooks.report(what, error)
        return False
    return answer
