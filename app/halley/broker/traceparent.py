"""`traceparent` of W3C Trace Context: the trace, and the step of it, in which an event was published.

Halley takes no part in traces: it begins none, and reports to nobody. It keeps what a publisher gives with the event,
and gives it to all who receive the event, now or later: so they can go on with the publisher's trace.

It is one of the event's details, by the name that it has in the publisher's protocol.
"""

from __future__ import annotations

import json
import re
from typing import Final

IN_BAYEUX: Final = "traceparent"
IN_WAMP: Final = "_traceparent"
"""Its names: what is not WAMP's own begins with an underscore there (Basic Profile, 3.1)."""

_MOST_CHARS = 512
"""Of what a later version may have added; version 0 has 55."""

_FORM = re.compile(r"([0-9a-f]{2})(-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-)[0-9a-f]([0-9a-f])(-[^,]*)?", re.ASCII)
_FIRST_VERSION, _NO_VERSION = "00", "ff"
_SAMPLED = 1


def parsed(text: str) -> str | None:
    """Return a `traceparent` in the form of version 0; None if it is malformed (Trace Context, 3.2).

    A later version may have more fields and flags, which are left out: version 0 is what is given on then (3.2.4).
    """
    if len(text) > _MOST_CHARS:
        return None
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    version, ids, flags, more = match.groups()
    if version == _FIRST_VERSION:
        return text if more is None else None
    return None if version == _NO_VERSION else f"{_FIRST_VERSION}{ids}0{int(flags, 16) & _SAMPLED}"


def read(given: object) -> str | None:
    """Return the `traceparent` in a header (bytes) or in a message (any JSON value); None if it is malformed."""
    text = given.decode("latin-1").strip(" \t") if isinstance(given, bytes) else given
    return parsed(text) if isinstance(text, str) else None


def with_traceparent(details: str | None, name: str, traceparent: str) -> str:
    """Return details, the text of a JSON object or None, with a `traceparent` in addition, which has that name."""
    before = "{" if details is None else f"{details[:-1]},"
    return f'{before}"{name}":"{traceparent}"}}'


def traceparent_in(details: str) -> str | None:
    """Return the `traceparent` in the details of an event, whichever protocol it came by; None if there is none."""
    if IN_BAYEUX not in details:  # as nearly always; the other name has it in it
        return None
    fields = json.loads(details)
    given = fields.get(IN_BAYEUX, fields.get(IN_WAMP))
    return parsed(given) if isinstance(given, str) else None
