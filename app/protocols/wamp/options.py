"""What options and details say: dictionaries of which every key may be missing, and unknown ones mean nothing.

A value that stands for JavaScript's `undefined`, and null, are as good as none (wampy writes them).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.broker.events import Audience
from app.protocols.wamp.messages import identifier
from app.protocols.wamp.serializers import is_absent

if TYPE_CHECKING:
    from collections.abc import Mapping

_MARKS_CHARS = 4
"""What a name takes beside itself where an audience is stored: quotes, a comma, a space."""


class BadOption(Exception):
    """An option whose value is of the wrong type, or too long; `name` is the option's."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class TooLong(BadOption):
    """More names than anyone needs."""


def flag(options: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    """A switch. Raises `BadOption`."""
    value = options.get(name)
    if isinstance(value, bool):
        return value
    if not is_absent(value):
        raise BadOption(name)
    return default


def text(options: Mapping[str, Any], name: str) -> str | None:
    """A text; None where there is none. Raises `BadOption`."""
    value = options.get(name)
    if isinstance(value, str):
        return value
    if not is_absent(value):
        raise BadOption(name)
    return None


def ids(options: Mapping[str, Any], name: str) -> tuple[int, ...] | None:
    """Session ids, of a list or alone; None where the option is not there. A message's nodes bound them.

    Raises `BadOption`.
    """
    value = options.get(name)
    if is_absent(value):
        return None
    found = tuple(map(identifier, value if isinstance(value, list) else [value]))
    if None in found:
        raise BadOption(name)
    return found  # type: ignore[return-value]  # mypy does not see that none is None


def texts(options: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    """Texts as they were sent, of a list or alone; None where the option is not there. Raises `BadOption`."""
    value = options.get(name)
    if is_absent(value):
        return None
    found = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str) for each in found):
        raise BadOption(name)
    return tuple(found)


def names(options: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    """Authids or roles: likewise, each once and in order, so that the same audience is the same text in the log."""
    found = texts(options, name)
    return None if found is None else tuple(sorted(set(found)))


def audience_of(options: Mapping[str, Any], most_chars: int) -> Audience | None:
    """Who alone may get what is published, by authid and role; None where that is everybody.

    Raises `BadOption`, also where all the names are together longer than `most_chars`.
    """
    if not options:
        return None
    eligible_authids, eligible_roles = names(options, "eligible_authid"), names(options, "eligible_authrole")
    excluded_authids, excluded_roles = names(options, "exclude_authid") or (), names(options, "exclude_authrole") or ()
    audience = Audience(eligible_authids, eligible_roles, excluded_authids, excluded_roles)
    if sum(len(each) + _MARKS_CHARS for named in audience if named for each in named) > most_chars:
        raise TooLong("eligible_authid")
    return None if audience == Audience() else audience
