"""What a proved identity may consist of: a name, a role, and claims that every protocol and log can write."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from halley.access.tokens import can_be_given
from halley.broker.policy import Proof

_AUTHID_CHARS = 255
_CLAIMS_BYTES = 1_024
"""The most that the claims of a session may take, as JSON: they stay in memory as long as the session."""

_UNWRITABLE = ("Cc", "Cs")
"""The Unicode categories of characters that no identity may have: control characters, and halves of surrogate pairs."""


class BadIdentity(ValueError):
    """A name, a role or claims that no identity may have; the text has nothing of them."""


def proof_of(authid: object, role: object, expires_s: float | None, claims: Mapping[str, Any]) -> Proof:
    """What is proved by somebody whose word counts: the issuer of a token, or the program that embeds the server.

    `expires_s` is when the proof expires, in wall-clock seconds; None: never. Raises `BadIdentity`.
    """
    if not isinstance(authid, str) or not 0 < len(authid) <= _AUTHID_CHARS or not _is_writable(authid):
        raise BadIdentity("the name is not valid")
    if not can_be_given(role):
        raise BadIdentity("the role is missing or cannot be granted by a token")
    if not claims:
        return Proof(authid, str(role), expires_s)
    try:
        written = json.dumps(dict(claims), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError):  # half a surrogate pair, NaN; a program's: not JSON
        raise BadIdentity("a claim cannot be written") from None
    except RecursionError:  # as each level takes two bytes
        raise BadIdentity("the claims that are kept are too long") from None
    if len(written) > _CLAIMS_BYTES:
        raise BadIdentity("the claims that are kept are too long")
    if not _is_writable(dict(claims)):
        raise BadIdentity("a claim has control characters")
    return Proof(authid, str(role), expires_s, claims=MappingProxyType(dict(claims)))


def _is_writable(value: object) -> bool:
    """Whether all texts in a JSON value can be written in every protocol and log."""
    rest = [value]  # not recursive: a value may be nested as deep as it is long
    while rest:
        each = rest.pop()
        if isinstance(each, dict):
            rest += [*each, *each.values()]
        elif isinstance(each, list):
            rest += each
        elif isinstance(each, str) and any(unicodedata.category(char) in _UNWRITABLE for char in each):
            return False
    return True
