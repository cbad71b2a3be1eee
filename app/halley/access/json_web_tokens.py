"""JSON Web Tokens (RFC 7519): verification, and the identity that a token proves.

A token selects only its key, and each key serves one algorithm (`keys.py`); there is no key for `none`. The signature
is checked before any other contents are used (RFC 8725). Times are compared with the clock that the caller gives.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import jwt
from jwt.utils import base64url_decode

from halley.access.keys import Key, KeyFile, read_jwks, read_secret
from halley.access.proofs import BadIdentity, proof_of
from halley.broker.errors import TokenExpired, TokenRefused
from halley.broker.nesting import has_more_levels
from halley.broker.policy import Proof
from halley.settings import Jwt

_COMPACT = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+){2}")
"""The form of a token (RFC 7515, 2 and 7.1): base64url without padding. PyJWT would skip other characters."""

_LAST_S = 2**53
_OPTIONS: Any = {
    "require": ["exp", "sub", "iss", "aud"],
    # checked below, by the caller's clock
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
}


class JsonWebTokens:
    """The tokens that the settings' `[jwt]` accepts. Raises `BadKeys` for files that cannot be used."""

    def __init__(self, options: Jwt) -> None:
        self._options = options
        wanted = ((options.jwks, read_jwks), (options.secret, read_secret))
        self._files = [KeyFile(path, read, options.keys_check_s) for path, read in wanted if path]

    def refresh_keys(self, now_s: float) -> None:
        """Read key files that have changed; to be called often. `now_s` is in seconds."""
        for file in self._files:
            file.refresh_keys(now_s)

    def proof(self, token: str, now_s: float, names: Collection[str] = ()) -> Proof:
        """Verify a token and return what it proves; `now_s` is the wall clock in seconds.

        The proof has the claims with these `names`, where the token has them. Raises `TokenRefused` or
        `TokenExpired`.
        """
        claims = self._claims(token, now_s)
        leeway_s = self._options.leeway_s
        if "nbf" in claims and _seconds(claims, "nbf") > now_s + leeway_s:
            raise TokenRefused("not valid yet")
        expires_s = _seconds(claims, "exp") + leeway_s
        if expires_s <= now_s:
            raise TokenExpired("the JWT has expired")
        role = claims.get(self._options.role_claim, self._options.role)
        own = {name: claims[name] for name in names if name in claims}
        try:
            return proof_of(claims["sub"], role, expires_s, own)
        except BadIdentity as bad:
            raise TokenRefused(str(bad)) from None

    def _claims(self, token: str, now_s: float) -> dict[str, Any]:
        if not _COMPACT.fullmatch(token):
            raise TokenRefused("not a JWT")
        try:
            if any(has_more_levels(base64url_decode(part)) for part in token.split(".")[:2]):
                raise TokenRefused("not a JWT")
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            raise TokenRefused("not a JWT") from None
        if "crit" in header:  # RFC 7515, 4.1.11: critical headers that are not understood must be refused
            raise TokenRefused("the JWT has critical headers")
        trouble = "no key of that algorithm and name"
        for key in self._keys_for(header, now_s):
            try:
                return jwt.decode(
                    token,
                    key.key,
                    algorithms=[key.algorithm],
                    options=_OPTIONS,
                    issuer=self._options.issuer,
                    audience=self._options.audience,
                )
            except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
                trouble = type(error).__name__  # the error's text could contain parts of the token
        raise TokenRefused(trouble)

    def _keys_for(self, header: dict[str, Any], now_s: float) -> list[Key]:
        """The keys that may have signed a token; if there are none, the files are read again, at a bounded rate."""
        if header.get("alg") not in self._options.algorithms:
            return []
        found = self._matching(header)
        if not found and sum(file.ask(now_s) for file in self._files):
            found = self._matching(header)
        return found

    def _matching(self, header: dict[str, Any]) -> list[Key]:
        algorithm, kid = header.get("alg"), header.get("kid")
        return [
            key
            for file in self._files
            for key in file.keys
            if key.algorithm == algorithm and (kid is None or key.kid is None or key.kid == kid)
        ]


def _seconds(claims: dict[str, Any], name: str) -> float:
    """A claim that is a time in seconds (RFC 7519), not necessarily a whole number. Raises `TokenRefused`."""
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LAST_S:
        raise TokenRefused(f"{name} is not a time in seconds")
    return float(value)
