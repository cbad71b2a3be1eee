"""The audience of an event, as its publisher gives it in `ext.audience`.

    {"eligible_authids": ["ann"], "eligible_roles": ["staff"], "excluded_authids": [...], "excluded_roles": [...]}

These are the four fields of `broker.events.Audience`; one that is missing or null does not restrict. An audience only
narrows the set of subscribers, so every publisher may give one. An unknown field is refused: a misspelt name must not
publish the event to all subscribers.
"""

from __future__ import annotations

from typing import Any

from app.broker.events import Audience
from app.protocols.bayeux import errors
from app.protocols.bayeux.messages import Fault

_FIELDS = frozenset(Audience._fields)
_MARKS_CHARS = 4
"""What a name takes in addition to its own characters in a stored audience: quotes, a comma, a space."""


class TooLong(Fault):
    """The audience is longer than `limits.audience_chars`."""


def audience_of(value: object, most_chars: int) -> Audience | None:
    """Read the value of `ext.audience`; None if it does not restrict. Raises `Fault`, or `TooLong`.

    Each name is kept once and in order, so that equal audiences are the same text in the log.
    """
    if value is None:
        return None
    if not isinstance(value, dict) or not value.keys() <= _FIELDS:
        raise Fault(errors.AUDIENCE_INVALID)
    named = {field: _names(names) for field, names in value.items() if names is not None}
    if sum(len(name) + _MARKS_CHARS for names in named.values() for name in names) > most_chars:
        raise TooLong(errors.AUDIENCE_INVALID)
    audience = Audience(**named)
    return None if audience == Audience() else audience


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise Fault(errors.AUDIENCE_INVALID)
    return tuple(sorted(set(value)))
