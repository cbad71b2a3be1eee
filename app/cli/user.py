"""`halley user`: makes a user's key from a secret, and prints the lines that let the server know them."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING

from app.access.roles import can_be_given
from app.access.users import user_key

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

LEAST_CHARS = 8
_MOST_BYTES = 1_024
_SALT_BYTES = 12


class NoUser(Exception):
    """What was given makes no user; the text says why and holds nothing of the secret."""


def read_secret(source: BinaryIO) -> str:
    """The secret in a stream, but for the end of its line. Raises `NoUser`."""
    data = source.read(_MOST_BYTES + 3)
    try:
        return checked(data.rstrip(b"\r\n").decode())
    except UnicodeDecodeError:
        raise NoUser("a secret is a text in UTF-8") from None


def checked(secret: str) -> str:
    """The same, if it can serve. Raises `NoUser`."""
    if len(secret) < LEAST_CHARS or len(secret.encode()) > _MOST_BYTES or not secret.isprintable():
        raise NoUser(f"a secret has at least {LEAST_CHARS} characters, on one line")
    return secret


def entry(secret: str, name: str, role: str, iterations: int) -> Iterator[str]:
    """The lines for the settings file. Raises `NoUser` for a role that nobody can be given."""
    if not can_be_given(role):
        raise NoUser(f"no user can have the role {role}")
    salt = secrets.token_urlsafe(_SALT_BYTES)
    yield "[[user]]"
    yield f"id = {json.dumps(name, ensure_ascii=False)}"
    yield f"role = {json.dumps(role)}"
    yield f'key = "{user_key(secret, salt, iterations)}"'
    yield f'salt = "{salt}"'
    yield f"iterations = {iterations}"
