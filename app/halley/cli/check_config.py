"""`halley check-config`: prints every setting as the server would use it. The output is itself a settings file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, get_args

import click

from halley.access.control import Authenticator
from halley.access.keys import BadKeys
from halley.broker.errors import TokenRefused
from halley.broker.policy import Proof
from halley.cli.access import may, owner_of, read_token
from halley.cli.options import config_option
from halley.cli.settings import load_settings
from halley.cli.terminal import DONE, FAILED, USAGE_ERROR, print_status
from halley.configuration import (
    ENTRIES,
    KNOBS,
    Configuration,
    SettingField,
    entry_key,
    limits_table,
    plain_key,
    roles_unproved,
    unnamed_roles,
)
from halley.host.tls import BadCertificate, Certificate
from halley.settings import Settings, Verb


@click.command()
@config_option
@click.option("--role", help="Instead, check whether this role has the right --verb on --channel.")
@click.option(
    "--token-file",
    "token",
    type=click.File("rb"),
    help="Instead of --role: check for the owner of the token in this file; - for standard input.",
)
@click.option("--verb", type=click.Choice(get_args(Verb)), help="The right to check.")
@click.option("--channel", help="The channel or pattern to check.")
@click.option("--realm", help="The WAMP realm of the channel. [default: the first]")
@click.option("--markdown", is_flag=True, help="Instead, print the table of limits in halley/settings/README.md.")
def check_config(
    *,
    file: Path | None,
    role: str | None,
    token: BinaryIO | None,
    verb: Verb | None,
    channel: str | None,
    realm: str | None,
    markdown: bool,
) -> None:
    """Print every setting, or what is wrong with them.

    For each: the value, its unit, the meaning of a special value, its origin, and the reason for the default. The exit
    code is 2 if the server would not start with these settings. A role that no rule names, or that no client can have,
    is a warning.

    With --role (or --token-file), --verb and --channel: print whether the role (or the token's owner) has that right,
    and why. The exit code is 0 for yes and 1 for no.
    """
    if markdown:
        for line in limits_table():
            click.echo(line)
        return
    configuration = load_settings(file, {})
    authenticator = _check_files(configuration.settings)
    if all(each is None for each in (role, token, verb, channel, realm)):
        for line in listing(configuration):
            click.echo(line)
        for key, text in unnamed_roles(configuration.settings):
            print_status(f"warning: {configuration.places[key]}: {plain_key(key)}: {text}")
        if not configuration.settings.load:  # a program may say who its clients are
            for name in sorted(roles_unproved(configuration.settings)):
                print_status(
                    f"warning: access.role: no token, user or JSON Web Token gives the role {json.dumps(name)}"
                )
        return
    if (role is None) == (token is None) or verb is None or channel is None:
        raise click.UsageError("--role, --verb and --channel go together; or --token-file, --verb and --channel")
    try:
        client = Proof(None, role or "") if token is None else owner_of(read_token(token), authenticator)
        is_allowed, text = may(configuration, client, verb, channel, realm or "")
    except TokenRefused as refused:
        is_allowed, text = False, f"no: the token is refused: {refused}"
    click.echo(text)
    sys.exit(DONE if is_allowed else FAILED)


def _check_files(settings: Settings) -> Authenticator:
    """Read the keys and the certificate that the settings name; exit with code 2 if any of them cannot be used."""
    authenticator: Authenticator | None = None
    try:
        authenticator = Authenticator.of(settings)
    except BadKeys as error:
        print_status(str(error))
    try:
        if settings.tls.cert:
            Certificate(settings.tls)
    except BadCertificate as error:
        print_status(str(error))
        authenticator = None
    if authenticator is None:
        sys.exit(USAGE_ERROR)
    return authenticator


def listing(configuration: Configuration) -> Iterator[str]:
    """Yield a line for each setting, and then the entries of all lists of tables.

    The line has key and value, and as a comment the unit, the meaning of a special value, the origin and the reason.
    """
    settings = [(f"{key} = {_toml(configuration.values[key])}", knob) for key, knob in KNOBS.items()]
    width = max(len(setting) for setting, _ in settings)
    for setting, knob in settings:
        value, place = configuration.values[knob.key], configuration.places[knob.key]
        parts = (knob.unit, _meaning(knob, value), place, knob.why)
        yield f"{setting:<{width}}  # {' | '.join(part for part in parts if part)}"
    for key, knobs in ENTRIES.items():
        for number, entry in enumerate(configuration.values[key]):
            yield ""
            yield f"[[{key}]]  # {configuration.places[entry_key(key, number)]}"
            written = ((name, getattr(entry, name)) for name in knobs)
            yield from (f"{name} = {_toml(value)}" for name, value in written if value is not None)


def _meaning(knob: SettingField, value: Any) -> str:
    if isinstance(value, bool):
        return ""
    meaning = knob.zero if value == 0 else knob.minus_one if value == -1 else ""
    return f"{value:g}: {meaning}" if meaning else ""


def _toml(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    return json.dumps(value, ensure_ascii=False)
