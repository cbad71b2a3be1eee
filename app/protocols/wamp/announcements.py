"""What WELCOME says of the router: its roles, each with the features that work (Advanced Profile, 2).

A router without callees is still announced as a dealer, since some clients send no CALL otherwise; never as a callee,
which some refuse to hear. Every feature is a bool and `features` always there: clients look into it unasked.
"""

from __future__ import annotations

from typing import Any

_CLIENT_ROLES = frozenset({"publisher", "subscriber", "caller", "callee"})


def roles(*, has_history: bool) -> dict[str, Any]:
    """The router's roles."""
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
    """Whether a HELLO's details name at least one role of a client."""
    named = details.get("roles")
    return isinstance(named, dict) and not _CLIENT_ROLES.isdisjoint(named)


def announces(details: dict[str, Any], role: str, feature: str) -> bool:
    """Whether a HELLO's details say that the client has a feature."""
    found: object = details.get("roles")
    for name in (role, "features", feature):
        found = found.get(name) if isinstance(found, dict) else None
    return found is True
