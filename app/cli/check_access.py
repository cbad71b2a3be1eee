"""`halley check-config --role R --verb V --channel C`: prints whether a role has a right, and by which rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.broker.errors import InvalidName
from app.broker.policy import SERVER, HouseRules
from app.broker.topics import Match
from app.configuration import entry_key
from app.configuration.protection import rights_of
from app.protocols.bayeux.names import Bounds, to_pattern
from app.protocols.wamp.spaces import spaces_of, within

if TYPE_CHECKING:
    from app.broker.topics import Pattern
    from app.configuration import Configuration
    from app.settings import Verb


class BadQuestion(Exception):
    """A question that cannot be answered with yes or no; the text is the reason."""


def may(configuration: Configuration, role: str, verb: Verb, channel: str, realm: str = "") -> tuple[bool, str]:
    """Return whether a role has a right to a channel or pattern of a realm, and a line that gives the reason.

    For the verb `call` the channel is a procedure: `/wamp/session/count` is `wamp.session.count`. Raises `BadQuestion`.
    """
    settings = configuration.settings
    space = spaces_of(settings).get(realm)
    if space is None:
        raise BadQuestion(f"there is no realm {realm}")
    try:
        pattern = to_pattern(channel, Bounds(settings.limits.topic_chars, settings.limits.topic_segments))
    except InvalidName:
        raise BadQuestion(f"{channel} is not a channel or pattern") from None
    if verb == "publish" and pattern.match is not Match.EXACT:
        raise BadQuestion(f"cannot publish to a pattern: {channel}")
    is_allowed, why = _decision(configuration, role, verb, within(pattern, space))
    where = f" in {realm}" if space else ""
    return is_allowed, f"{'yes' if is_allowed else 'no'}: {role} {verb} {channel}{where}: {why}"


def _decision(configuration: Configuration, role: str, verb: Verb, pattern: Pattern) -> tuple[bool, str]:
    settings = configuration.settings
    if role == SERVER:
        return True, "the server's own sessions may do everything"
    if pattern.topic.partition("/")[0] == "meta":
        return False, "meta channels are for the protocol alone"
    rights = rights_of(settings)
    if isinstance(rights, HouseRules):
        is_allowed = rights.grant(verb, pattern)
        beside = "only this machine can connect" if rights.loopback else _open(verb)
        return is_allowed, f"there are no access rules, and {beside}"
    is_allowed, number = rights.decide(role, verb, pattern)
    if number is None:
        return False, "no rule allows it, and what no rule allows is denied"
    rule = settings.access[number]
    says = "allows" if is_allowed else "denies"
    place = configuration.places[entry_key("access", number)]
    return is_allowed, f'{place} {says} it (role "{rule.role}", verb "{rule.verb}", pattern "{rule.pattern}")'


def _open(verb: Verb) -> str:
    """Describe what `HouseRules` grant for a verb on a listener that other machines can reach."""
    return (
        "clients may call the router's procedures, except those that end sessions"
        if verb == "call"
        else "clients may publish and subscribe, except on the server's own channels"
    )
