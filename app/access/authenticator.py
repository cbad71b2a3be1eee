"""The check of tokens, the same for every protocol and every kind of token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.access.json_web_tokens import JsonWebTokens
from app.access.tokens import StaticTokens
from app.broker.errors import TokenRefused, TokenTooLong

if TYPE_CHECKING:
    from collections.abc import Callable

    from app.broker.policy import Identity
    from app.settings import Settings


def _report_nothing(line: str) -> None:
    """Ignore a report about a key file; the default of `Authenticator`."""


class Authenticator:
    """Checks tokens against the settings' static tokens and JWTs. Raises `BadKeys` if a key file cannot be used.

    `report` is called with one line of text for each change of a key file.
    """

    def __init__(self, settings: Settings, report: Callable[[str], None] = _report_nothing) -> None:
        self._most_chars = settings.limits.token_chars
        self._static = StaticTokens(settings.tokens)
        has_jwt = bool(settings.jwt.jwks or settings.jwt.secret)
        self._jwt = JsonWebTokens(settings.jwt, report) if has_jwt else None

    @property
    def knows_any(self) -> bool:
        """Whether the settings accept any tokens; if not, tokens are neither required nor looked at."""
        return bool(len(self._static)) or self._jwt is not None

    def look(self, now_s: float) -> None:
        """Read key files that have changed; to be called often. `now_s` is in seconds."""
        if self._jwt is not None:
            self._jwt.look(now_s)

    def __call__(self, token: str, now_s: float) -> Identity:
        """Check a token and return the identity that it proves; `now_s` is the wall clock in seconds.

        Raises `TokenRefused`: `TokenExpired` for a token that has expired, `TokenTooLong` for one over the limit.
        """
        if len(token) > self._most_chars:
            raise TokenTooLong("too long")
        identity = self._static.identity(token, now_s)
        if identity is not None:
            return identity
        if self._jwt is None:
            raise TokenRefused("not listed")
        return self._jwt.identity(token, now_s)
