"""The roles that WELCOME announces for the router, each with its supported features (Advanced Profile, 2).

The router has no callees, but it is announced as a dealer, since some clients send no CALL otherwise. It is never
announced as a callee, which some clients reject. Every feature is a bool, and `features` is always present, because
clients read it without checking.
"""

from __future__ import annotations

from typing import Any

_CLIENT_ROLES = frozenset({"publisher", "subscriber", "caller", "callee"})


def roles(*, has_history: bool) -> dict[str, Any]:
    """Return `WELCOME.Details.roles`: the router's roles with their features.

    `has_history` adds the broker's feature `event_history`.
    """
    broker = {
        "publisher_identification": True,
        "publisher_exclusion": True,
        "subscriber_blackwhite_listing": True,
        "pattern_based_subscription": True,
        "subscription_meta_api": True,
        "session_meta_api": True,
        "event_retention": True,
        "subscription_revocation": True,
        "payload_passthru_mode": True,
    }
    if has_history:
        broker["event_history"] = True
    dealer = {"session_meta_api": True, "testament_meta_api": True}
    return {"broker": {"features": broker}, "dealer": {"features": dealer}}


def has_roles(details: dict[str, Any]) -> bool:
    """Return whether a HELLO's details name at least one client role."""
    named = details.get("roles")
    return isinstance(named, dict) and not _CLIENT_ROLES.isdisjoint(named)


def announces(details: dict[str, Any], role: str, feature: str) -> bool:
    """Return whether a HELLO's details announce `feature` for the client's `role`."""
    found: object = details.get("roles")
    for name in (role, "features", feature):
        found = found.get(name) if isinstance(found, dict) else None
    return found is True
