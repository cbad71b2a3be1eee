"""Who may do what: the one object that every part of the server asks, so that new settings count everywhere at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from app.access.authenticator import Authenticator
from app.broker.errors import TokenRefused
from app.broker.policy import ANONYMOUS, Identity, Principal, Rights
from app.broker.topics import Pattern
from app.settings import Settings, Token, User, Verb


class Grants(NamedTuple):
    """What one version of the settings grants: the rights of roles, and what proves that a client has a role."""

    rights: Rights
    authenticator: Authenticator
    users: Mapping[str, User]
    credentials: frozenset[Token | User]

    @classmethod
    def of(cls, settings: Settings, rights: Rights, authenticator: Authenticator) -> Grants:
        """The grants of some settings, from which `rights` and `authenticator` have been made."""
        users = {user.id: user for user in settings.user}
        return cls(rights, authenticator, users, frozenset((*settings.tokens, *settings.user)))


class AccessControl:
    """Answers by the present `grants` who a client is and what it may do (`policy.Identities`, `policy.Rights`).

    Nothing else keeps any part of the grants: to change them is to set `grants`. `refused` is called for each token
    that proves nothing.
    """

    def __init__(self, grants: Grants, refused: Callable[[TokenRefused], None] = lambda _: None) -> None:
        self.grants = grants
        self._refused = refused

    # Rights

    @property
    def are_written(self) -> bool:
        """See `Rights`."""
        return self.grants.rights.are_written

    def may(self, session: Principal | None, verb: Verb, what: str | Pattern, visitor: Identity = ANONYMOUS) -> bool:
        """See `Rights`."""
        return self.grants.rights.may(session, verb, what, visitor)

    def grants_any(self, verb: Verb, role: str) -> bool:
        """See `Rights`."""
        return self.grants.rights.grants_any(verb, role)

    # Identities

    @property
    def accept_tokens(self) -> bool:
        """See `Identities`."""
        return self.grants.authenticator.knows_any

    @property
    def users(self) -> Mapping[str, User]:
        """See `Identities`."""
        return self.grants.users

    def prove(self, token: str, wall_s: float) -> Identity:
        """See `Identities`."""
        try:
            return self.grants.authenticator(token, wall_s)
        except TokenRefused as refused:
            self._refused(refused)
            raise

    def stand_by(self, credential: Token | User | None) -> bool:
        """See `Identities`."""
        return credential is None or credential in self.grants.credentials

    def look(self, now_s: float) -> None:
        """Read key files that have changed; to be called often. `now_s` is in seconds."""
        self.grants.authenticator.look(now_s)
