"""Placeholders in the patterns of rules: `{authid}` and `{claim.NAME}`, as in `/user/{authid}/**`.

A placeholder is a whole segment. It stands for a value that the client has proved (`Proof`), in the canonical form of a
segment: the value is always one segment and no wildcard.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from halley.broker.names import PLACEHOLDER, REALM_MARK, Pattern, escaped
from halley.broker.policy import META_NAMES, SERVERS_OWN, Proof
from halley.settings import Settings

AUTHID = "{authid}"
"""Stands for the authid that a client has proved."""

EXPECTED = "{authid} or {claim.NAME} as a whole segment, with up to 64 letters, digits and _.:- in NAME"

_CLAIM = re.compile(r"\{claim\.([A-Za-z0-9_.:-]{1,64})\}")
_VALUE_CHARS = 255
_NEVER_FIRST = SERVERS_OWN | {"meta", "service"} | {name.partition("/")[0] for name in META_NAMES}
"""Rules must name these first segments themselves, so a client whose name is one of them gets nothing below it."""


def is_placeholder(segment: str) -> bool:
    """Whether a segment of a rule's pattern is a placeholder."""
    return segment == AUTHID or _CLAIM.fullmatch(segment) is not None


def claims_named(settings: Settings) -> frozenset[str]:
    """The names of the claims that rules or `jwt.claims` name; no others are kept of a token."""
    found = (_CLAIM.fullmatch(segment) for rule in settings.access for segment in rule.pattern.split("/"))
    return frozenset((*settings.jwt.claims, *(each[1] for each in found if each)))


def placeholders_of(pattern: Pattern) -> Iterator[str]:
    """The placeholders in a rule's pattern, in order."""
    return (segment for segment in pattern.topic.split("/") if segment.startswith(PLACEHOLDER))


def value_of(placeholder: str, proof: Proof) -> str | None:
    """The canonical segment that a placeholder stands for; None where the client has proved no usable value.

    A usable value is a text of 1 to 255 characters.
    """
    claim = _CLAIM.fullmatch(placeholder)
    value = proof.authid if claim is None else proof.claims.get(claim[1])
    return escaped(value) if isinstance(value, str) and 0 < len(value) <= _VALUE_CHARS else None


def filled(pattern: Pattern, proof: Proof) -> Pattern | None:
    """A rule's pattern with the values of one client; None where it has no usable value for a placeholder."""
    if PLACEHOLDER not in pattern.topic:
        return pattern
    segments = pattern.topic.split("/")
    first = 1 if segments[0].startswith(REALM_MARK) else 0
    for at, segment in enumerate(segments):
        if segment.startswith(PLACEHOLDER):
            value = value_of(segment, proof)
            if value is None or (at == first and value in _NEVER_FIRST):
                return None
            segments[at] = value
    return Pattern(pattern.match, "/".join(segments))
