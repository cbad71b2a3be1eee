"""Realms and the spaces their topics lie in: the first has the one that all protocols share, every other its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.broker.topics import Pattern
from app.protocols.wamp.uris import space_of
from app.settings import Realm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from app.settings import Settings

USUAL = Realm("realm1")
"""The only realm where the settings name none."""


def realms_of(settings: Settings) -> tuple[Realm, ...]:
    """All realms; the first one's space is the shared one."""
    return settings.realm or (USUAL,)


def spaces_of(settings: Settings) -> Mapping[str, str]:
    """The space of each realm by its name; the name "" stands for the first realm."""
    first, *others = realms_of(settings)
    return {"": "", first.name: ""} | {realm.name: space_of(realm.name) for realm in others}


def within(pattern: Pattern, space: str) -> Pattern:
    """A name or a Bayeux pattern of a space, as that space's own: `/**` is all that is in it."""
    if not space:
        return pattern
    return Pattern(pattern.match, f"{space}/{pattern.topic}" if pattern.topic else space)
