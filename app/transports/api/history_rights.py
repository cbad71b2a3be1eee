"""Whether a program's own policy and authorizers let a channel's history be read: what they decide for a subscriber.

They are called as for a subscription without a session. A policy that reads the session raises then, which denies the
request.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from app.broker.topics import Pattern
from app.protocols.bayeux.hooks import Hooks, Refused
from app.protocols.bayeux.messages import Message
from app.transports.guard import Rejection
from app.transports.head import Head

DENIED = "the server's policy does not allow reading this history"


async def may_read(hooks: Hooks, channel: str, pattern: Pattern, head: Head, limit_s: float) -> None:
    """Check that the program's policy and authorizers allow reading the history of `channel`.

    Each hook has `limit_s` seconds. Raises `Rejection` (403).
    """
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
    """The result of a hook within `limit_s` seconds; False if it refuses, raises or takes longer."""
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
