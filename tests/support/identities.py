"""Identities for tests of the engines: a function that checks tokens, and users."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halley.broker.errors import TokenRefused
from halley.settings import User

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from halley.broker.policy import Proof
    from halley.settings import Token


class Known:
    """Tokens as `authenticate` checks them (None: none is accepted), and users (`policy.Identities`).

    `withdrawn` are credentials that no longer count.
    """

    def __init__(self, authenticate: Callable[[str, float], Proof] | None = None, users: Iterable[User] = ()) -> None:
        self._authenticate = authenticate
        self.users = {user.id: user for user in users}
        self.withdrawn: set[Token | User] = set()

    @property
    def reads_tokens(self) -> bool:
        """The same: there is no program."""
        return self.accept_tokens

    def note_unread(self) -> None:
        """Count nothing."""

    @property
    def accept_tokens(self) -> bool:
        """Whether any tokens are accepted."""
        return self._authenticate is not None

    def prove(self, token: str, wall_s: float) -> Proof:
        """The identity that a token proves. Raises `TokenRefused`."""
        if self._authenticate is None:
            raise TokenRefused
        return self._authenticate(token, wall_s)

    def is_current(self, credential: Token | User | None) -> bool:
        """Whether a credential still counts."""
        is_known = not isinstance(credential, User) or credential in self.users.values()
        return is_known and credential not in self.withdrawn
