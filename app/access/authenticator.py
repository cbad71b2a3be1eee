"""Whose token is it: the one answer for every protocol and every kind of token."""

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
    """Where nobody wants to know of changed key files."""


class Authenticator:
    """Knows the settings' static tokens and JWTs. Raises `BadKeys` if a file of keys cannot be used.

    `report` is told in a line of each change of a file of keys.
    """

    def __init__(self, settings: Settings, report: Callable[[str], None] = _report_nothing) -> None:
        self._most_chars = settings.limits.token_chars
        self._static = StaticTokens(settings.tokens)
        has_jwt = bool(settings.jwt.jwks or settings.jwt.secret)
        self._jwt = JsonWebTokens(settings.jwt, report) if has_jwt else None

    @property
    def knows_any(self) -> bool:
        """Whether any token could be good. While none could, nobody is asked for one and what is shown is no token."""
        return bool(len(self._static)) or self._jwt is not None

    def look(self, now_s: float) -> None:
        """Notice changes of the files of keys; to be called often."""
        if self._jwt is not None:
            self._jwt.look(now_s)

    def __call__(self, token: str, now_s: float) -> Identity:
        """Whom a token names. Raises `TokenRefused`, and `TokenExpired` for one that was good once.

        `now_s` is the wall clock.
        """
        if len(token) > self._most_chars:
            raise TokenTooLong("too long")
        identity = self._static.identity(token, now_s)
        if identity is not None:
            return identity
        if self._jwt is None:
            raise TokenRefused("not listed")
        return self._jwt.identity(token, now_s)
