"""Access to options and details: dictionaries in which every key may be absent and unknown keys are ignored.

A null, and a value that stands for JavaScript's `undefined`, count as absent (wampy writes them).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.broker.events import Audience
from app.protocols.wamp.messages import identifier
from app.protocols.wamp.serializers import is_absent

_MARKS_CHARS = 4
"""The characters around a name in a stored audience: quotes, a comma, a space."""


class BadOption(Exception):
    """An option whose value is of the wrong type or too long; `name` is the option's name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class TooLong(BadOption):
    """An option with more names than the limit allows."""


def flag(options: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    """Return a boolean option, or `default` where it is absent. Raises `BadOption`."""
    value = options.get(name)
    if isinstance(value, bool):
        return value
    if not is_absent(value):
        raise BadOption(name)
    return default


def text(options: Mapping[str, Any], name: str) -> str | None:
    """Return a string option, or None where it is absent. Raises `BadOption`."""
    value = options.get(name)
    if isinstance(value, str):
        return value
    if not is_absent(value):
        raise BadOption(name)
    return None


def ids(options: Mapping[str, Any], name: str) -> tuple[int, ...] | None:
    """Return the session ids of an option that is a list or one id, or None where it is absent. Raises `BadOption`.

    Their number is bounded by the limit on the values in a message.
    """
    value = options.get(name)
    if is_absent(value):
        return None
    found = tuple(map(identifier, value if isinstance(value, list) else [value]))
    if None in found:
        raise BadOption(name)
    return found  # type: ignore[return-value]  # mypy does not see that none is None


def texts(options: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    """Return the strings of an option that is a list or one string, in the order sent; None where it is absent.

    Raises `BadOption`.
    """
    value = options.get(name)
    if is_absent(value):
        return None
    found = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str) for each in found):
        raise BadOption(name)
    return tuple(found)


def names(options: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    """Return an option's authids or roles, sorted and without duplicates; None where it is absent.

    So equal audiences are equal texts in the log. Raises `BadOption`.
    """
    found = texts(options, name)
    return None if found is None else tuple(sorted(set(found)))


def audience_of(options: Mapping[str, Any], most_chars: int) -> Audience | None:
    """Return the audience that the options of a PUBLISH name by authids and roles; None where it is unrestricted.

    Raises `BadOption`, also (as `TooLong`) where all names together are longer than `most_chars`.
    """
    if not options:
        return None
    eligible_authids, eligible_roles = names(options, "eligible_authid"), names(options, "eligible_authrole")
    excluded_authids, excluded_roles = names(options, "exclude_authid") or (), names(options, "exclude_authrole") or ()
    audience = Audience(eligible_authids, eligible_roles, excluded_authids, excluded_roles)
    if sum(len(each) + _MARKS_CHARS for named in audience if named for each in named) > most_chars:
        raise TooLong("eligible_authid")
    return None if audience == Audience() else audience
