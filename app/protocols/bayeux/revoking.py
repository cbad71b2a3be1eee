"""Subscriptions that a session's rights no longer grant are taken away from it.

Bayeux has no word for this. The client gets the message that would answer its own unsubscribe, without an id and with
`ext: {"revoked": true}`, as an event of the session: cometd.js passes it to its listeners for `/meta/unsubscribe`, and
Faye ignores it. Events that wait because of such a subscription are dropped, also those that were sent and whose reply
has not been written or acknowledged.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from app.broker.events import Event
from app.broker.topics import Pattern, matches, patterns_heard
from app.protocols.bayeux import replay
from app.protocols.bayeux.messages import encode
from app.protocols.bayeux.names import to_subscription
from app.protocols.bayeux.sessions import BayeuxSession

if TYPE_CHECKING:
    from app.protocols.bayeux.engine import Engine

_TOPIC = "meta/unsubscribe"
_REMEMBERED_FRAMES = 100  # a rule usually takes the same few subscriptions from very many sessions


def take_away(engine: Engine, session: BayeuxSession, now: float) -> int:
    """End the subscriptions that the session's rights no longer grant; return their number."""
    denied = [each for each in session.subscriptions if not engine.rights.may(session, "subscribe", each)]
    if not denied:
        return 0
    replay.forget(session, denied)
    for pattern in denied:
        engine.broker.unsubscribe(session, pattern)
    _drop_events(session, denied)
    for name in map(to_subscription, denied):
        engine.hooks.tell(engine.hooks.unsubscribed, session, name)
        engine.broker.deliver(session, _notice(engine, name, now), now)
    return len(denied)


def _drop_events(session: BayeuxSession, denied: Sequence[Pattern]) -> None:
    """Drop the published events that the session has only because of subscriptions that it no longer has."""

    def is_unwanted(event: Event) -> bool:
        if not event.publication or not any(matches(pattern, event.topic) for pattern in denied):
            return False  # what a program sends to one session needs no subscription
        return not any(pattern in session.subscriptions for pattern in patterns_heard(event.topic))

    session.outbox.discard(is_unwanted)
    if session.unsettled is not None:
        session.unsettled.events = [event for event in session.unsettled.events if not is_unwanted(event)]
    if session.acks is not None:
        session.outbox.release(session.acks.discard(is_unwanted))


def _notice(engine: Engine, name: str, now: float) -> Event:
    frame = _frame(name)
    event = Event(_TOPIC, frame)
    event.time_us = int(engine.wall_s(now) * 1_000_000)
    event.frames["bayeux"] = frame
    return event


@lru_cache(maxsize=_REMEMBERED_FRAMES)
def _frame(name: str) -> bytes:
    return encode({"channel": f"/{_TOPIC}", "subscription": name, "successful": True, "ext": {"revoked": True}})
