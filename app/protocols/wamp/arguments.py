"""Checks of the arguments of the router's own procedures, and the error texts for wrong ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.protocols.wamp import errors
from app.protocols.wamp.errors import Refused
from app.protocols.wamp.messages import identifier
from app.protocols.wamp.serializers import is_absent


def check_count(args: list[Any], least: int, most: int) -> None:
    """Check that there are `least` to `most` positional arguments. Raises `Refused`."""
    if not least <= len(args) <= most:
        raise Refused(errors.INVALID_ARGUMENT, f"expected {least} to {most} positional arguments")


def id_of(value: object, name: str) -> int:
    """Return an argument as an id from 1 to 2^53; `name` is for the error text. Raises `Refused`."""
    found = identifier(value)
    if found is None:
        raise Refused(errors.INVALID_ARGUMENT, f"{name}: expected an id, a whole number from 1 to 2^53")
    return found


def text_of(value: object, name: str) -> str:
    """Return an argument that must be a string; `name` is for the error text. Raises `Refused`."""
    if not isinstance(value, str):
        raise Refused(errors.INVALID_ARGUMENT, f"{name}: expected a string")
    return value


def optional_text(kwargs: Mapping[str, Any], name: str) -> str | None:
    """Return a keyword argument that must be a string, or None where it is absent. Raises `Refused`."""
    value = kwargs.get(name)
    return None if is_absent(value) else text_of(value, name)
