"""What proves identities without JSON Web Tokens: static tokens, users' keys for WAMP-CRA; and the roles they give.

A static token is a random text that an operator issues, and of which the server keeps only a hash. It has 256 random
bits, so a plain SHA-256 cannot be inverted and, unlike a password's, needs no salt or key stretching.

A user's key is derived from a secret so that the secret itself need not be stored. A stolen key suffices to
authenticate here. Key stretching makes it costly to recover the secret, which may be used elsewhere too.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from base64 import b64decode, b64encode
from collections.abc import Iterable

from halley.broker.errors import TokenExpired
from halley.broker.policy import ANONYMOUS_ROLE, SERVER, Proof
from halley.settings import Token
from halley.settings.protocols import KEY_BYTES

PREFIX = "halley_"
"""The beginning of tokens made here, so that scanners for leaked secrets can find them."""

LEAST_CHARS = 32
"""The least length of a token made elsewhere: 192 bits if it is random base64, 128 if it is hexadecimal."""

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # RFC 6750, 2.1
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_RANDOM_BYTES = 32


def new_token() -> str:
    """Return a new token: `halley_` and 32 random bytes in URL-safe base64, together 50 characters."""
    return PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)


def can_be_sent(text: str) -> bool:
    """Whether a text can stand in a header as a bearer token (RFC 6750)."""
    return bool(_TOKEN.fullmatch(text))


def is_token(text: str) -> bool:
    """Whether a text can be sent as a bearer token and is long enough to be a secret."""
    return len(text) >= LEAST_CHARS and can_be_sent(text)


def hash_of(token: str) -> str:
    """The hash of a token, as it is written in the settings."""
    return "sha256:" + hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()


def is_hash(text: str) -> bool:
    """Whether a text has the form of a hash made by `hash_of`."""
    return bool(_HASH.fullmatch(text))


class StaticTokens:
    """The tokens that the settings list.

    They are found by their hash. How long that takes reveals nothing of use, as nobody can make a token of a hash.
    """

    def __init__(self, tokens: Iterable[Token]) -> None:
        self._proofs = {
            token.hash: Proof(token.id, token.role, token.expires.timestamp() if token.expires else None, token)
            for token in tokens
        }

    def __len__(self) -> int:
        return len(self._proofs)

    def proof(self, token: str, now_s: float) -> Proof | None:
        """What a token proves; None if the token is not listed. Raises `TokenExpired`.

        `now_s` is the wall clock in seconds.
        """
        proof = self._proofs.get(hash_of(token))
        if proof is not None and proof.expires_s is not None and proof.expires_s <= now_s:
            raise TokenExpired("the static token has expired")
        return proof


def user_key(secret: str, salt: str, iterations: int) -> str:
    """The key of a user, as clients derive it: base64 of PBKDF2-SHA256 (RFC 8018, 5.2)."""
    return b64encode(hashlib.pbkdf2_hmac("sha256", secret.encode(), salt.encode(), iterations, KEY_BYTES)).decode()


def is_user_key(text: str) -> bool:
    """Whether a text has the form of a key made by `user_key`."""
    try:
        data = b64decode(text, validate=True)
    except ValueError:
        return False
    return len(data) == KEY_BYTES and b64encode(data).decode() == text


RESERVED_ROLES = (SERVER, ANONYMOUS_ROLE)
"""Roles that a token cannot grant."""

_ROLE = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


def is_role(name: str) -> bool:
    """Whether a text is a valid name of a role."""
    return bool(_ROLE.fullmatch(name))


def can_be_given(name: object) -> bool:
    """Whether a token can grant this role."""
    return isinstance(name, str) and is_role(name) and name not in RESERVED_ROLES
