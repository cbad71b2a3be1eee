"""`halley token`: makes a token, or hashes one, and prints the lines for the settings file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import BinaryIO

from app.access.roles import can_be_given
from app.access.tokens import LEAST_CHARS, hash_of, is_token

_MOST_BYTES = 8_192


class NoToken(Exception):
    """The input cannot be a token, or its role not a token's; the text is the reason and does not repeat the token."""


def read_token(source: BinaryIO) -> str:
    """Read a token from a stream, without the end of its line. Raises `NoToken`."""
    data = source.read(_MOST_BYTES + 1)
    token = data.rstrip(b"\r\n").decode("ascii", errors="replace")
    if len(data) > _MOST_BYTES or not is_token(token):
        raise NoToken(f"a token has at least {LEAST_CHARS} letters, digits and -._~+/ with = at its end, on one line")
    return token


def entry(token: str, name: str, role: str, days: int | None) -> Iterator[str]:
    """Yield the lines for the settings file. Raises `NoToken` for a role that a token cannot give."""
    if not can_be_given(role):
        raise NoToken(f"no token can give the role {role}")
    yield "[[tokens]]"
    yield f"id = {json.dumps(name, ensure_ascii=False)}"
    yield f"role = {json.dumps(role)}"
    yield f'hash = "{hash_of(token)}"'
    if days is not None:
        end = datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)
        yield f"expires = {end:%Y-%m-%dT%H:%M:%SZ}"
