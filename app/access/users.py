"""Users' keys for WAMP-CRA, derived from a secret so that the secret itself need not be stored.

A stolen key suffices to authenticate here. Key stretching makes it costly to recover the secret, which may be used
elsewhere too.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode

from app.settings.wamp import KEY_BYTES


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
