"""`halley user`: derives a user's key from a secret, and prints the lines for the settings file."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import BinaryIO

from app.access.roles import can_be_given
from app.access.users import user_key

LEAST_CHARS = 8
_MOST_BYTES = 1_024
_SALT_BYTES = 12


class NoUser(Exception):
    """The secret or the role cannot be a user's; the text is the reason and does not repeat the secret."""


def read_secret(source: BinaryIO) -> str:
    """Read a secret from a stream, without the end of its line. Raises `NoUser`."""
    data = source.read(_MOST_BYTES + 3)
    try:
        return checked(data.rstrip(b"\r\n").decode())
    except UnicodeDecodeError:
        raise NoUser("a secret must be UTF-8") from None


def checked(secret: str) -> str:
    """Return the secret if it is long enough and printable. Raises `NoUser`."""
    if len(secret) < LEAST_CHARS or len(secret.encode()) > _MOST_BYTES or not secret.isprintable():
        raise NoUser(f"a secret has at least {LEAST_CHARS} characters, on one line")
    return secret


def entry(secret: str, name: str, role: str, iterations: int) -> Iterator[str]:
    """Yield the lines for the settings file. Raises `NoUser` for a role that a user cannot have."""
    if not can_be_given(role):
        raise NoUser(f"no user can have the role {role}")
    salt = secrets.token_urlsafe(_SALT_BYTES)
    yield "[[user]]"
    yield f"id = {json.dumps(name, ensure_ascii=False)}"
    yield f"role = {json.dumps(role)}"
    yield f'key = "{user_key(secret, salt, iterations)}"'
    yield f'salt = "{salt}"'
    yield f"iterations = {iterations}"
