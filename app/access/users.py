"""Users' keys for WAMP-CRA: what is kept of a secret, so that the secret itself need not be.

Whoever has stolen a key can come in with it; what is stretched is the way back to the secret, which may open other
doors.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode

from app.settings.wamp import KEY_BYTES


def user_key(secret: str, salt: str, iterations: int) -> str:
    """The key of a user, as its clients derive it: base64 of PBKDF2-SHA256 (RFC 8018, 5.2)."""
    return b64encode(hashlib.pbkdf2_hmac("sha256", secret.encode(), salt.encode(), iterations, KEY_BYTES)).decode()


def is_user_key(text: str) -> bool:
    """Whether a text can be what `user_key` returns."""
    try:
        data = b64decode(text, validate=True)
    except ValueError:
        return False
    return len(data) == KEY_BYTES and b64encode(data).decode() == text
