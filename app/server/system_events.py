"""The events that the server itself publishes about sessions and subscriptions.

Their channels are `/halley/sessions` and `/halley/subscriptions`; they are recorded like other events, but nothing
waits for their commit. A session's name there is a keyed hash of its id, 16 hexadecimal digits that are valid for this
run of the server: the id itself is a secret.

    /halley/sessions        {"event": "opened", "session", "protocol", "authid", "role", "address"}
                            {"event": "closed", "session", "protocol", "authid", "role", "reason"}
    /halley/subscriptions   {"event": "subscribed" or "unsubscribed", "session", "protocol", "channels"}

When a session closes, the subscriptions that it still has are reported as unsubscribed first.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from time import monotonic
from typing import Any

import orjson

from app.broker.broker import Broker
from app.broker.events import Event
from app.broker.names import SPACE
from app.broker.policy import SERVER
from app.broker.sessions import Session
from app.broker.topics import WIDE_IN_WAMP, Pattern
from app.protocols.bayeux.names import to_subscription
from app.protocols.wamp.names import uri_of

SESSIONS = "halley/sessions"
SUBSCRIPTIONS = "halley/subscriptions"

_NAME_BYTES = 8


class SystemEvents:
    """Publishes the system events of the sessions of all protocols (`broker.sessions.SessionObserver`).

    Subscriptions in a WAMP realm other than the shared one are not published: nobody outside that realm can name them.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._key = secrets.token_bytes(16)

    def opened(self, session: Session) -> None:
        """Publish that a session was admitted."""
        self._publish(SESSIONS, {"event": "opened", **self.who(session), "address": session.address})

    def closed(self, session: Session, reason: str) -> None:
        """Publish that a session has ended, after its subscriptions."""
        if session.protocol == "nt4":
            for name in session.subscription_names():
                self.unsubscribed(session, [name])
        else:
            self.unsubscribed(session, session.subscription_names())
        self._publish(SESSIONS, {"event": "closed", **self.who(session), "reason": reason})

    def subscribed(self, session: Session, names: Sequence[Pattern | str]) -> None:
        """Publish that a session has subscribed."""
        self._subscription("subscribed", session, names)

    def unsubscribed(self, session: Session, names: Sequence[Pattern | str]) -> None:
        """Publish that a session has unsubscribed."""
        self._subscription("unsubscribed", session, names)

    def who(self, session: Session) -> dict[str, Any]:
        """The fields that identify a session in these events: its hash, protocol, authid and role."""
        return {
            "session": self._name(session),
            "protocol": session.protocol,
            "authid": session.lasting_authid,
            "role": session.role,
        }

    @staticmethod
    def subscriptions(session: Session, most: int) -> tuple[int, list[str]]:
        """The number of a session's subscriptions, and the names of the first `most` of them.

        Those in other WAMP realms than the shared one are neither counted nor named.
        """
        told = _shared(session.subscription_names())
        return len(told), [shown(name) for name in told[:most]]

    def _subscription(self, event: str, session: Session, names: Sequence[Pattern | str]) -> None:
        channels = [shown(name) for name in _shared(names)]
        if channels:
            told = {"event": event, "session": self._name(session), "protocol": session.protocol, "channels": channels}
            self._publish(SUBSCRIPTIONS, told)

    def _name(self, session: Session) -> str:
        return hashlib.blake2b(session.id.encode(), key=self._key, digest_size=_NAME_BYTES).hexdigest()

    def _publish(self, topic: str, told: dict[str, Any]) -> None:
        self._broker.announce(Event(topic, orjson.dumps(told), protocol="halley", role=SERVER), monotonic())


def _shared(names: Sequence[Pattern | str]) -> list[Pattern | str]:
    """Those of the names that are in the space that all protocols share."""
    return [name for name in names if isinstance(name, str) or not name.topic.startswith(SPACE)]


def shown(name: Pattern | str) -> str:
    """A subscription as these events write it: in Bayeux's form, or in WAMP's where Bayeux has none."""
    if isinstance(name, str):
        return name
    return uri_of(name) if name.match in WIDE_IN_WAMP else to_subscription(name)
