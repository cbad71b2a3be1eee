"""Realms and the spaces of their topics: the first realm has the space of all protocols, every other its own."""

from __future__ import annotations

from collections.abc import Mapping

from app.broker.topics import Pattern
from app.protocols.wamp.uris import space_of
from app.settings import Realm, Settings

USUAL = Realm("realm1")
"""The only realm if the settings name none."""


def realms_of(settings: Settings) -> tuple[Realm, ...]:
    """Return all realms of the settings, or the default one; the first realm has the shared space."""
    return settings.realm or (USUAL,)


def spaces_of(settings: Settings) -> Mapping[str, str]:
    """Return the space of each realm by its name; the name "" also stands for the first realm."""
    first, *others = realms_of(settings)
    return {"": "", first.name: ""} | {realm.name: space_of(realm.name) for realm in others}


def within(pattern: Pattern, space: str) -> Pattern:
    """Return an exact or Bayeux pattern prefixed with a space; `/**` becomes everything in that space."""
    if not space:
        return pattern
    return Pattern(pattern.match, f"{space}/{pattern.topic}" if pattern.topic else space)
