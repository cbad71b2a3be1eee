"""The check of tokens, the same for every protocol and every kind of token."""

from __future__ import annotations

from collections.abc import Iterable

from app.access.json_web_tokens import JsonWebTokens
from app.access.keys import Report
from app.access.tokens import StaticTokens
from app.broker.errors import TokenRefused, TokenTooLong
from app.broker.policy import Identity
from app.settings import Settings, Token


def _report_nothing(line: str, *, is_error: bool = False) -> None:
    """Ignore a report about a key file; the default of `Authenticator.of`."""


class Authenticator:
    """Checks static tokens, of at most `most_chars` characters, and JWTs, if they are accepted."""

    def __init__(self, tokens: Iterable[Token], jwt: JsonWebTokens | None, most_chars: int) -> None:
        self._static = StaticTokens(tokens)
        self._jwt = jwt
        self._most_chars = most_chars

    @classmethod
    def of(cls, settings: Settings, report: Report = _report_nothing) -> Authenticator:
        """The authenticator that the settings describe. Raises `BadKeys` if a key file cannot be used.

        `report` is called for each change of a key file.
        """
        has_jwt = bool(settings.jwt.jwks or settings.jwt.secret)
        jwt = JsonWebTokens(settings.jwt, report) if has_jwt else None
        return cls(settings.tokens, jwt, settings.limits.token_chars)

    def with_tokens(self, tokens: Iterable[Token]) -> Authenticator:
        """An authenticator with the same key files and other static tokens."""
        return Authenticator(tokens, self._jwt, self._most_chars)

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
