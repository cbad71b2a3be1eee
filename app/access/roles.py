"""The names of roles."""

from __future__ import annotations

import re

from app.broker.policy import NOBODY, SERVER

RESERVED_ROLES = (SERVER, NOBODY)
"""Roles that a token cannot grant."""

_ROLE = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


def is_role(name: str) -> bool:
    """Whether a text is a valid name of a role."""
    return bool(_ROLE.fullmatch(name))


def can_be_given(name: object) -> bool:
    """Whether a token can grant this role."""
    return isinstance(name, str) and is_role(name) and name not in RESERVED_ROLES
