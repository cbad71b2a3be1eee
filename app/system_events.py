"""What the server itself publishes: sessions that begin and end, subscriptions made and undone.

On `/halley/sessions` and `/halley/subscriptions`, recorded like other events but never waited for. A session is named
by 16 digits that stand for its id within this run of the server: the id itself is a secret.

    /halley/sessions        {"event": "opened", "session", "protocol", "authid", "role", "address"}
                            {"event": "closed", "session", "protocol", "authid", "role", "reason"}
    /halley/subscriptions   {"event": "subscribed" or "unsubscribed", "session", "protocol", "channels"}

Where a session closes, what it was still subscribed to is unsubscribed first.
"""

from __future__ import annotations

import hashlib
import secrets
from time import monotonic
from typing import TYPE_CHECKING, Any

import orjson

from app.broker.events import Event
from app.broker.policy import SERVER
from app.protocols.bayeux.names import to_subscription

if TYPE_CHECKING:
    from app.broker.broker import Broker
    from app.protocols.bayeux.hooks import Hooks
    from app.protocols.bayeux.sessions import BayeuxSession

SESSIONS = "halley/sessions"
SUBSCRIPTIONS = "halley/subscriptions"

_NAME_BYTES = 8


class SystemEvents:
    """Publishes them for the sessions of one engine, whose `hooks` tell of them."""

    def __init__(self, broker: Broker, hooks: Hooks) -> None:
        self._broker = broker
        self._key = secrets.token_bytes(16)
        hooks.session_opened.append(self._opened)
        hooks.session_closed.append(self._closed)
        hooks.subscribed.append(lambda session, channel: self._subscription("subscribed", session, [channel]))
        hooks.unsubscribed.append(lambda session, channel: self._subscription("unsubscribed", session, [channel]))

    def _opened(self, session: BayeuxSession) -> None:
        self._publish(SESSIONS, {"event": "opened", **self._who(session), "address": session.address})

    def _closed(self, session: BayeuxSession, reason: str) -> None:
        if session.heard:
            self._subscription("unsubscribed", session, [to_subscription(pattern) for pattern in session.heard])
        self._publish(SESSIONS, {"event": "closed", **self._who(session), "reason": reason})

    def _subscription(self, event: str, session: BayeuxSession, channels: list[str]) -> None:
        told = {"event": event, "session": self._name(session), "protocol": session.protocol, "channels": channels}
        self._publish(SUBSCRIPTIONS, told)

    def _who(self, session: BayeuxSession) -> dict[str, Any]:
        return {
            "session": self._name(session),
            "protocol": session.protocol,
            "authid": session.authid,
            "role": session.role,
        }

    def _name(self, session: BayeuxSession) -> str:
        return hashlib.blake2b(session.id.encode(), key=self._key, digest_size=_NAME_BYTES).hexdigest()

    def _publish(self, topic: str, told: dict[str, Any]) -> None:
        self._broker.announce(Event(topic, orjson.dumps(told), protocol="halley", role=SERVER), monotonic())
