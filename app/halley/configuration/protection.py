"""What protects a server that other machines can reach: access rules, or the operator's `--open`."""

from __future__ import annotations

from halley.access.control import Authenticator, Grants
from halley.access.rules import AccessRules, Rule
from halley.broker.policy import DefaultRules
from halley.configuration.patterns import pattern_of_rule
from halley.protocols.bayeux.names import Bounds
from halley.protocols.wamp.names import spaces_of, within
from halley.settings import Settings, is_loopback


class NotProtected(Exception):
    """A listener would be open to other machines, or a running server to everyone, without rules and `--open`."""


def check_protected(settings: Settings) -> None:
    """Check that each client listener is protected or private to this machine. Raises `NotProtected`."""
    for key, host in unprotected_hosts(settings).items():
        listener = host if key == "host" else f"{host} ({key})"
        raise NotProtected(
            f"{listener} can be reached from other machines, and without access rules anyone there may read and "
            f"publish everything; write access rules, or use --open to allow that"
        )


def check_still_protected(before: Settings, after: Settings) -> None:
    """Check that new settings of a running server do not take its last access rule away. Raises `NotProtected`.

    A file that is cut off, or emptied by mistake, is valid, and must not open a server, not even to this machine alone.
    """
    if before.access and not after.access and not after.open:
        raise NotProtected(
            "the last access rule is gone, and without rules clients may read and publish everything; only a restart "
            "opens a server (or write rules, or start it with --open)"
        )


def unprotected_hosts(settings: Settings) -> dict[str, str]:
    """The hosts of the client listeners that other machines can reach without access rules or `--open`, by setting.

    Through a listed proxy they can reach listeners of this machine alone.
    """
    if settings.access or settings.open:
        return {}
    return {key: host for key, host in _hosts(settings).items() if settings.proxies or not is_loopback(host)}


def rights_of(settings: Settings) -> DefaultRules | AccessRules:
    """The rights that the settings give: the rules of [[access]], or those of a server without any."""
    wanted = settings.bayeux.anonymous_publish
    if not settings.access:
        is_local = is_loopback(settings.host) and not settings.proxies  # through which other machines connect
        is_private = is_local and all(map(is_loopback, _hosts(settings).values()))
        return DefaultRules(is_private, wanted == "on" or (wanted == "auto" and is_local))
    bounds = Bounds(settings.limits.topic_chars, settings.limits.topic_segments)
    spaces = spaces_of(settings)
    rules = [
        Rule(rule.role, rule.verb, within(pattern_of_rule(rule.pattern, bounds), spaces[rule.realm]), rule.allow)
        for rule in settings.access
    ]
    return AccessRules(rules, sessionless=wanted != "off")


def grants_of(settings: Settings, authenticator: Authenticator) -> Grants:
    """What the settings grant; `authenticator` has their key files."""
    return Grants.of(settings, rights_of(settings), authenticator.changed(settings))


def _hosts(settings: Settings) -> dict[str, str]:
    """The hosts of the client listeners, by setting."""
    return {"host": settings.host} | ({"nt4.host": settings.nt4.host} if settings.nt4.enabled else {})
