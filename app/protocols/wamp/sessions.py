"""WAMP sessions: the router's state of one client, in addition to the broker's."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

from app.broker.events import Event
from app.broker.outbox import Outbox
from app.broker.sessions import Session
from app.protocols.wamp.messages import Publish

if TYPE_CHECKING:
    from app.protocols.wamp.engine import Engine
    from app.protocols.wamp.realms import LiveSubscription, Realm

_LARGEST = 1 << 53


def new_id() -> int:
    """Return an id in WAMP's global scope: uniformly random from 1 to 2^53 (Basic Profile, 2.1.2)."""
    return secrets.randbelow(_LARGEST) + 1


class Standing(NamedTuple):
    """The authentication details of a session in WELCOME and the meta API; an anonymous `authid` is random."""

    authid: str
    authrole: str
    authmethod: str
    authprovider: str


class WampSession(Session):
    """One client in one realm.

    `number` is its WAMP id, which is not secret; `id` is the same as text. Access rules apply to `role`, audiences to
    `role` and `authid`; `standing` is what WELCOME and the meta API show. `testaments` are by scope.
    """

    owner: Engine

    __slots__ = (
        "announces_passthru",
        "announces_revocation",
        "live",
        "number",
        "realm",
        "standing",
        "testaments",
        "transport",
    )

    def __init__(self, number: int, realm: Realm, standing: Standing, owner: Engine, outbox: Outbox) -> None:
        super().__init__(str(number), "wamp", owner, outbox)
        self.number = number
        self.realm = realm
        self.standing = standing
        self.role = standing.authrole
        self.live: dict[int, LiveSubscription] = {}  # the session's subscriptions, by id
        self.announces_passthru = False
        self.announces_revocation = False
        self.testaments: dict[str, list[tuple[Publish, Event]]] = {"detached": [], "destroyed": []}
        self.transport: dict[str, str] = {}

    def shown(self) -> dict[str, Any]:
        """Return the details of the session for the session meta API, without anything of its HTTP request."""
        return {"session": self.number, **self.standing._asdict(), "transport": self.transport}
