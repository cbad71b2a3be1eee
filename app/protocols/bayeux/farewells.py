"""The last reply of a session, to the connect that it holds when it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.protocols.bayeux import replay
from app.protocols.bayeux.messages import reply_to

if TYPE_CHECKING:
    from app.protocols.bayeux.engine import Engine
    from app.protocols.bayeux.exchanges import Hold, Reply


def dismissal(engine: Engine, hold: Hold, now: float, *, is_told: bool) -> Reply:
    """For a session that left, or was sent away and must be told so; with its last events."""
    reply = reply_to(hold.request, successful=True)
    reply["advice"] = engine.advisor.advice(hold.session, "none")
    messages = [reply]
    if is_told:
        messages.append({"channel": "/meta/disconnect", "successful": True})
    may_take = engine.can_take(hold.session)
    events = engine.take(hold.session, now) if may_take else []
    if hold.session.replay is not None:
        reply["ext"] = replay.told(engine, hold, with_events=may_take)
    session = hold.session if hold.session.replay is not None else None  # whose events are written in a way of its own
    return engine.reply_with(session, messages, events, now, connection=hold.connection)


def refusal(engine: Engine, hold: Hold, now: float, error: str) -> Reply:
    """For one that cannot go on; its client may begin another."""
    reply = reply_to(hold.request, successful=False)
    reply["error"] = error
    reply["advice"] = engine.advisor.for_stranger("handshake")
    return engine.reply_with(None, [reply], [], now, connection=hold.connection)
