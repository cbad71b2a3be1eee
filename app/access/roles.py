"""What roles can be called."""

from __future__ import annotations

import re

from app.broker.policy import NOBODY, SERVER

RESERVED_ROLES = (SERVER, NOBODY)
"""What no token can make of its bearer."""

_ROLE = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


def is_role(name: str) -> bool:
    """Whether a role can have this name."""
    return bool(_ROLE.fullmatch(name))


def can_be_given(name: object) -> bool:
    """Whether a token can give its bearer this role."""
    return isinstance(name, str) and is_role(name) and name not in RESERVED_ROLES
