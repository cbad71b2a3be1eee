"""What protects a server that other machines can reach: access rules, or the operator's `--open`."""

from __future__ import annotations

from halley.access.placeholders import is_placeholder
from halley.access.rules import AccessRules, Rule
from halley.broker.names import Pattern
from halley.broker.policy import DefaultRules
from halley.protocols.bayeux.names import NameLimits, to_pattern
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
    bounds = NameLimits(settings.limits.topic_chars, settings.limits.topic_segments)
    spaces = spaces_of(settings)
    rules = [
        Rule(rule.role, rule.verb, within(pattern_of_rule(rule.pattern, bounds), spaces[rule.realm]), rule.allow)
        for rule in settings.access
    ]
    return AccessRules(rules, sessionless=wanted != "off")


def _hosts(settings: Settings) -> dict[str, str]:
    return {"host": settings.host} | ({"nt4.host": settings.nt4.host} if settings.nt4.enabled else {})


def pattern_of_rule(text: str, bounds: NameLimits) -> Pattern:
    """The pattern that a rule names; its placeholders are kept as they are written. Raises `InvalidName`."""
    root, *segments = text.split("/")
    if not any(map(is_placeholder, segments)):
        return to_pattern(text, bounds)
    plain = "/".join((root, *("x" if is_placeholder(each) else each for each in segments)))
    match, topic = to_pattern(plain, bounds)
    named = zip(segments, topic.split("/"), strict=False)  # without a wildcard at the end
    return Pattern(match, "/".join(written if is_placeholder(written) else name for written, name in named))
