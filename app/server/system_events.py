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
from collections.abc import Iterable
from itertools import islice
from time import monotonic
from typing import Any, cast

import orjson

from app.broker.broker import Broker
from app.broker.events import Event
from app.broker.names import SPACE
from app.broker.policy import SERVER
from app.broker.topics import WIDE_IN_WAMP, Pattern
from app.protocols.bayeux.hooks import Hooks
from app.protocols.bayeux.names import to_subscription
from app.protocols.bayeux.sessions import BayeuxSession
from app.protocols.nt4.clients import Client
from app.protocols.nt4.messages import Subscribe
from app.protocols.nt4.tables import Tables
from app.protocols.wamp.router import Router
from app.protocols.wamp.sessions import WampSession
from app.protocols.wamp.uris import uri_of

AnySession = BayeuxSession | WampSession | Client

SESSIONS = "halley/sessions"
SUBSCRIPTIONS = "halley/subscriptions"

_NAME_BYTES = 8


class SystemEvents:
    """Publishes the system events of Bayeux sessions, by `hooks`, and of WAMP sessions, by `router`.

    Subscriptions in a WAMP realm other than the shared one are not published: nobody outside that realm can name them.
    """

    def __init__(self, broker: Broker, hooks: Hooks, router: Router) -> None:
        self._broker = broker
        self._key = secrets.token_bytes(16)
        router.opened.append(self._opened)
        router.closed.append(self._closed)
        router.subscribed.append(lambda session, pattern: self._subscriptions("subscribed", session, [pattern]))
        router.unsubscribed.append(lambda session, pattern: self._subscriptions("unsubscribed", session, [pattern]))
        hooks.session_opened.append(self._opened)
        hooks.session_closed.append(self._closed)
        hooks.subscribed.append(lambda session, channel: self._subscription("subscribed", session, [channel]))
        hooks.unsubscribed.append(lambda session, channel: self._subscription("unsubscribed", session, [channel]))

    def watch(self, tables: Tables) -> None:
        """Publish the events of NetworkTables' clients too."""
        tables.opened.append(self._opened)
        tables.closed.append(self._closed_client)
        tables.subscribed.append(
            lambda client, subscription: self._subscription("subscribed", client, shown_names(subscription))
        )
        tables.unsubscribed.append(
            lambda client, subscription: self._subscription("unsubscribed", client, shown_names(subscription))
        )

    def _closed_client(self, client: Client, reason: str) -> None:
        for subscription in client.listens:
            self._subscription("unsubscribed", client, shown_names(subscription))
        self._closed(client, reason)

    def who(self, session: AnySession) -> dict[str, Any]:
        """The fields that identify a session in these events: its hash, protocol, authid and role."""
        return {
            "session": self._name(session),
            "protocol": session.protocol,
            "authid": session.lasting_authid,
            "role": session.role,
        }

    @staticmethod
    def subscriptions(session: AnySession, most: int) -> tuple[int, list[str]]:
        """The number of a session's subscriptions, and the names of the first `most` of them.

        Those in other WAMP realms than the shared one are neither counted nor named.
        """
        if session.protocol == "nt4":
            listens = cast("Client", session).listens
            count = sum(len(each.topics) for each in listens)
            return count, list(islice((name for each in listens for name in shown_names(each)), most))
        told = [pattern for pattern in session.subscriptions if not pattern.topic.startswith(SPACE)]
        return len(told), [shown(pattern) for pattern in told[:most]]

    def _opened(self, session: AnySession) -> None:
        self._publish(SESSIONS, {"event": "opened", **self.who(session), "address": session.address})

    def _closed(self, session: AnySession, reason: str) -> None:
        self._subscriptions("unsubscribed", session, session.heard)
        self._publish(SESSIONS, {"event": "closed", **self.who(session), "reason": reason})

    def _subscriptions(self, event: str, session: AnySession, patterns: Iterable[Pattern]) -> None:
        channels = [shown(pattern) for pattern in patterns if not pattern.topic.startswith(SPACE)]
        if channels:
            self._subscription(event, session, channels)

    def _subscription(self, event: str, session: AnySession, channels: list[str]) -> None:
        told = {"event": event, "session": self._name(session), "protocol": session.protocol, "channels": channels}
        self._publish(SUBSCRIPTIONS, told)

    def _name(self, session: AnySession) -> str:
        return hashlib.blake2b(session.id.encode(), key=self._key, digest_size=_NAME_BYTES).hexdigest()

    def _publish(self, topic: str, told: dict[str, Any]) -> None:
        self._broker.announce(Event(topic, orjson.dumps(told), protocol="halley", role=SERVER), monotonic())


def shown(pattern: Pattern) -> str:
    """A subscription's pattern as these events write it: in Bayeux's form, or in WAMP's where Bayeux has none."""
    return uri_of(pattern) if pattern.match in WIDE_IN_WAMP else to_subscription(pattern)


def shown_names(subscription: Subscribe) -> list[str]:
    """A NetworkTables subscription as these events write it: its topic names, each prefix with a star at its end."""
    return [name + "*" * subscription.options.is_prefix for name in subscription.topics]
