"""The last reply of a session: to the connect that is held when the session ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.protocols.bayeux import replay
from app.protocols.bayeux.exchanges import Hold, Reply
from app.protocols.bayeux.messages import reply_to

if TYPE_CHECKING:
    from app.protocols.bayeux.engine import Engine


def dismissal(engine: Engine, hold: Hold, now: float, *, is_told: bool) -> Reply:
    """Make the reply, with the last events, for a session that is disconnected by its client or the program.

    `is_told`: add a `/meta/disconnect` message, since the client did not ask for the disconnect itself.
    """
    reply = reply_to(hold.request, successful=True)
    reply["advice"] = engine.advisor.advice(hold.session, "none")
    messages = [reply]
    if is_told:
        messages.append({"channel": "/meta/disconnect", "successful": True})
    may_take = engine.can_take(hold.session)
    events = engine.take(hold.session, now) if may_take else []
    if hold.session.replay is not None:
        reply["ext"] = replay.told(engine, hold, with_events=may_take)
    session = hold.session if hold.session.replay is not None else None  # replay frames differ
    return engine.reply_with(session, messages, events, now, connection=hold.connection)


def refusal(engine: Engine, hold: Hold, now: float, error: str) -> Reply:
    """Make the reply with `error` for a session that cannot continue; its client may begin a new one."""
    reply = reply_to(hold.request, successful=False)
    reply["error"] = error
    reply["advice"] = engine.advisor.for_stranger("handshake")
    return engine.reply_with(None, [reply], [], now, connection=hold.connection)
