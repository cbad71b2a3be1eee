"""Who alone may hear an event, as its publisher says in `ext.audience`.

    {"eligible_authids": ["ann"], "eligible_roles": ["staff"], "excluded_authids": [...], "excluded_roles": [...]}

The four fields of `broker.events.Audience`; what is missing or null leaves nobody out. It only ever narrows the circle
of those who may subscribe, so every publisher may say it. A field that is not known is refused: whoever has misspelt
one must not be heard by everybody.
"""

from __future__ import annotations

from typing import Any

from app.broker.events import Audience
from app.protocols.bayeux import errors
from app.protocols.bayeux.messages import Fault

_FIELDS = frozenset(Audience._fields)
_MARKS_CHARS = 4
"""What a name takes beside itself where an audience is stored: quotes, a comma, a space."""


class TooLong(Fault):
    """More names than anyone needs."""


def audience_of(value: object, most_chars: int) -> Audience | None:
    """The audience that a publisher asks for; None where that is everybody. Raises `Fault`, or `TooLong`.

    Each name stands once and in order: the same audience is one text in the log, whoever asks for it.
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
