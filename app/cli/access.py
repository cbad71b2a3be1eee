"""`halley token`, `halley user`, and `halley check-config --role R --verb V --channel C`: who may do what.

The first two print lines for the settings file; `may` explains a right by the settings' rules.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import BinaryIO

import click

from app.access.tokens import LEAST_CHARS, can_be_given, hash_of, is_token, new_token, user_key
from app.broker.errors import InvalidName
from app.broker.names import Match, Pattern
from app.broker.policy import SERVER, DefaultRules
from app.cli.terminal import STDIN
from app.configuration import ENTRIES, Configuration, entry_key
from app.configuration.protection import rights_of
from app.protocols.bayeux.names import Bounds, to_pattern
from app.protocols.wamp.names import spaces_of, within
from app.settings import Verb

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
    try:
        secret = new_token() if source is None else read_token(source)
        lines = [*token_entry(secret, name, role, days)]
    except NoToken as error:
        raise click.UsageError(str(error)) from None
    for line in lines if source is not None else [secret, "", *lines]:
        click.echo(line)


class NoToken(Exception):
    """The input cannot be a token, or its role not a token's; the text is the reason and does not repeat the token."""


def read_token(source: BinaryIO) -> str:
    """Read a token from a stream, without the end of its line. Raises `NoToken`."""
    data = source.read(_MOST_TOKEN_BYTES + 1)
    token = data.rstrip(b"\r\n").decode("ascii", errors="replace")
    if len(data) > _MOST_TOKEN_BYTES or not is_token(token):
        raise NoToken(f"a token has at least {LEAST_CHARS} letters, digits and -._~+/ with = at its end, on one line")
    return token


def token_entry(token: str, name: str, role: str, days: int | None) -> Iterator[str]:
    """Yield the lines for the settings file. Raises `NoToken` for a role that a token cannot give."""
    if not can_be_given(role):
        raise NoToken(f"no token can give the role {role}")
    yield "[[tokens]]"
    yield f"id = {json.dumps(name, ensure_ascii=False)}"
    yield f"role = {json.dumps(role)}"
    yield f'hash = "{hash_of(token)}"'
    if days is not None:
        end = datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)
        yield f"expires = {end:%Y-%m-%dT%H:%M:%SZ}"


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
    try:
        if os.isatty(STDIN):
            secret = checked_secret(click.prompt("secret", hide_input=True, confirmation_prompt=True, err=True))
        else:
            secret = read_secret(sys.stdin.buffer)
        lines = [*user_entry(secret, name, role, iterations)]
    except NoUser as error:
        raise click.UsageError(str(error)) from None
    for line in lines:
        click.echo(line)


class NoUser(Exception):
    """The secret or the role cannot be a user's; the text is the reason and does not repeat the secret."""


def read_secret(source: BinaryIO) -> str:
    """Read a secret from a stream, without the end of its line. Raises `NoUser`."""
    data = source.read(_MOST_SECRET_BYTES + 3)
    try:
        return checked_secret(data.rstrip(b"\r\n").decode())
    except UnicodeDecodeError:
        raise NoUser("a secret must be UTF-8") from None


def checked_secret(secret: str) -> str:
    """Return the secret if it is long enough and printable. Raises `NoUser`."""
    if len(secret) < LEAST_SECRET_CHARS or len(secret.encode()) > _MOST_SECRET_BYTES or not secret.isprintable():
        raise NoUser(f"a secret has at least {LEAST_SECRET_CHARS} characters, on one line")
    return secret


def user_entry(secret: str, name: str, role: str, iterations: int) -> Iterator[str]:
    """Yield the lines for the settings file. Raises `NoUser` for a role that a user cannot have."""
    if not can_be_given(role):
        raise NoUser(f"no user can have the role {role}")
    salt = secrets.token_urlsafe(_SALT_BYTES)
    yield "[[user]]"
    yield f"id = {json.dumps(name, ensure_ascii=False)}"
    yield f"role = {json.dumps(role)}"
    yield f'key = "{user_key(secret, salt, iterations)}"'
    yield f'salt = "{salt}"'
    yield f"iterations = {iterations}"


# Whether a role has a right


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
    if isinstance(rights, DefaultRules):
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
    """Describe what `DefaultRules` grant for a verb on a listener that other machines can reach."""
    return (
        "clients may call the router's procedures, except those that end sessions"
        if verb == "call"
        else "clients may publish and subscribe, except on the server's own channels"
    )
