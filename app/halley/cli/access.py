"""`halley token`, `halley user`, and `halley check-config --verb V --channel C`: who may do what.

The first two print lines for the settings file; `may` explains a right by the settings' rules, for a role or a token.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import BinaryIO

import click

from halley.access.control import Authenticator
from halley.access.placeholders import filled
from halley.access.tokens import LEAST_CHARS, can_be_given, hash_of, is_token, new_token, user_key
from halley.broker.names import Match, Pattern
from halley.broker.policy import ANONYMOUS_ROLE, SERVER, DefaultRules, Proof
from halley.cli.channels import pattern_of
from halley.cli.terminal import STDIN
from halley.configuration import ENTRIES, Configuration, entry_key
from halley.configuration.protection import pattern_of_rule, rights_of
from halley.protocols.bayeux.names import NameLimits, to_subscription
from halley.protocols.wamp.names import spaces_of, within
from halley.settings import Access, Settings, Verb

LEAST_SECRET_CHARS = 8
_MOST_TOKEN_BYTES = 8_192
_MOST_SECRET_BYTES = 1_024
_SALT_BYTES = 12


# halley token


@click.command()
@click.option("--id", "name", default="someone", show_default=True, help="The authid of sessions with this token.")
@click.option("--role", default="user", show_default=True, help="The role of these sessions in access rules.")
@click.option("--days", type=click.IntRange(1, 36_500), help="Days until the token expires. [default: never]")
@click.option("--hash", "source", type=click.File("rb"), help="Hash the token in this file; - for standard input.")
def token(*, name: str, role: str, days: int | None, source: BinaryIO | None) -> None:
    """Make a token and its lines for the settings file.

    The first line is the token, for its owner; it is not stored anywhere. The lines from [[tokens]] on are for the
    settings file, and have only a hash of it. With --hash only those lines are printed, for an existing token.
    """
    secret = new_token() if source is None else read_token(source)
    lines = [*_entry("tokens", "token can give", name, role), f'hash = "{hash_of(secret)}"']
    if days is not None:
        end = datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)
        lines.append(f"expires = {end:%Y-%m-%dT%H:%M:%SZ}")
    for line in lines if source is not None else [secret, "", *lines]:
        click.echo(line)


def read_token(source: BinaryIO) -> str:
    """Read a token from a stream, without the end of its line. Raises `click.UsageError`, which does not repeat it."""
    data = source.read(_MOST_TOKEN_BYTES + 1)
    token = data.rstrip(b"\r\n").decode("ascii", errors="replace")
    if len(data) > _MOST_TOKEN_BYTES or not is_token(token):
        need = f"a token has at least {LEAST_CHARS} letters, digits and -._~+/ with = at its end, on one line"
        raise click.UsageError(need)
    return token


def _entry(kind: str, can_have: str, name: str, role: str) -> list[str]:
    """Return the first lines of an entry of the settings file. Raises `click.UsageError` for a reserved role."""
    if not can_be_given(role):
        raise click.UsageError(f"no {can_have} the role {role}")
    return [f"[[{kind}]]", f"id = {json.dumps(name, ensure_ascii=False)}", f"role = {json.dumps(role)}"]


# halley user


@click.command()
@click.argument("name", metavar="ID")
@click.argument("role")
@click.option(
    "--iterations",
    type=click.IntRange(min=1_000),
    default=ENTRIES["user"]["iterations"].default,
    show_default=True,
    help="PBKDF2 iterations, here and in each client.",
)
def user(*, name: str, role: str, iterations: int) -> None:
    """Make the lines for the settings file of a WAMP-CRA user.

    ID is the authid, ROLE the role in access rules. The secret is typed without being shown, or read from standard
    input if that is not a terminal. The lines contain a key derived from it, and must be kept as private as the secret.
    """
    if os.isatty(STDIN):
        secret = checked_secret(click.prompt("secret", hide_input=True, confirmation_prompt=True, err=True))
    else:
        secret = read_secret(sys.stdin.buffer)
    salt = secrets.token_urlsafe(_SALT_BYTES)
    lines = _entry("user", "user can have", name, role)
    lines += [f'key = "{user_key(secret, salt, iterations)}"', f'salt = "{salt}"', f"iterations = {iterations}"]
    for line in lines:
        click.echo(line)


def read_secret(source: BinaryIO) -> str:
    """Read a secret from a stream, without the end of its line. Raises `click.UsageError`, which does not repeat it."""
    data = source.read(_MOST_SECRET_BYTES + 3)
    try:
        return checked_secret(data.rstrip(b"\r\n").decode())
    except UnicodeDecodeError:
        raise click.UsageError("a secret must be UTF-8") from None


def checked_secret(secret: str) -> str:
    """Return the secret if it is long enough and printable. Raises `click.UsageError`."""
    if len(secret) < LEAST_SECRET_CHARS or len(secret.encode()) > _MOST_SECRET_BYTES or not secret.isprintable():
        raise click.UsageError(f"a secret has at least {LEAST_SECRET_CHARS} characters, on one line")
    return secret


# Whether a client has a right


def owner_of(token: str, authenticator: Authenticator) -> Proof:
    """Return what a token proves now. Raises `TokenRefused`, and `click.UsageError` if no tokens are accepted."""
    if not authenticator.knows_any:
        raise click.UsageError("these settings accept no tokens")
    return authenticator(token, time.time())


def may(configuration: Configuration, client: Proof, verb: Verb, channel: str, realm: str = "") -> tuple[bool, str]:
    """Return whether a client has a right to a channel or pattern of a realm, and a line that gives the reason.

    Without an authid, the question is about all clients of the role. For the verb `call` the channel is a procedure:
    `/wamp/session/count` is `wamp.session.count`.

    Raises `click.UsageError`.
    """
    settings = configuration.settings
    space = spaces_of(settings).get(realm)
    if space is None:
        raise click.UsageError(f"there is no realm {realm}")
    pattern = pattern_of(channel, NameLimits(settings.limits.topic_chars, settings.limits.topic_segments))
    if verb == "publish" and pattern.match is not Match.EXACT:
        raise click.UsageError(f"cannot publish to a pattern: {channel}")
    is_allowed, why = _decision(configuration, client, verb, within(pattern, space))
    where = f" in {realm}" if space else ""
    who = client.role if client.authid is None else f"{_printable(client.authid)} ({client.role})"
    return is_allowed, f"{'yes' if is_allowed else 'no'}: {who} {verb} {channel}{where}: {why}"


def _decision(configuration: Configuration, client: Proof, verb: Verb, pattern: Pattern) -> tuple[bool, str]:
    settings, role = configuration.settings, client.role
    if role == SERVER:
        return True, "the server's own sessions may do everything"
    if pattern.topic.partition("/")[0] == "meta":
        return False, "meta channels are for the protocol alone"
    rights = rights_of(settings)
    if isinstance(rights, DefaultRules):
        is_allowed = rights.grant(verb, pattern)
        consequence = "only this machine can connect" if rights.loopback else _open(verb)
        return is_allowed, f"there are no access rules, and {consequence}"
    is_allowed, number = rights.decide(role, verb, pattern, client)
    depends = client.authid is None and role != ANONYMOUS_ROLE and rights.depends(role, verb, pattern)
    hint = "; rules with {authid} or {claim.NAME} depend on the client's token (--token-file)" if depends else ""
    if number is None:
        return False, f"no rule allows it, and what no rule allows is denied{hint}"
    rule = settings.access[number]
    effect = "allows" if is_allowed else "denies"
    place = configuration.places[entry_key("access", number)]
    named = f'role "{rule.role}", verb "{rule.verb}", pattern "{rule.pattern}"{_own_form(settings, rule, client)}'
    return is_allowed, f"{place} {effect} it ({named}){hint}"


def _own_form(settings: Settings, rule: Access, client: Proof) -> str:
    """Describe what a rule's pattern is for one client; empty if it is the same for all."""
    pattern = pattern_of_rule(rule.pattern, NameLimits(settings.limits.topic_chars, settings.limits.topic_segments))
    own = filled(pattern, client)
    if own == pattern:
        return ""
    return ", for a value that the client has not proved" if own is None else f', here "{to_subscription(own)}"'


def _printable(text: str) -> str:
    return text if text.isprintable() else json.dumps(text)


def _open(verb: Verb) -> str:
    """Describe what `DefaultRules` grant for a verb on a listener that other machines can reach."""
    return (
        "clients may call the router's procedures, except those that end sessions"
        if verb == "call"
        else "clients may publish and subscribe, except on the server's own channels"
    )
