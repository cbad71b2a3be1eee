"""The verbs of the command line and their options."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, get_args

import click

from app import __version__
from app.access.tokens import new_token
from app.cli.check_config import listing
from app.cli.console import DONE, FAILED, INTERRUPTED, WRONG_USE, run, say
from app.cli.options import config_option, load_settings, read_settings, server_options, settings_reader
from app.cli.pipes import STDIN
from app.cli.publish import NotJson, publish_lines, publish_value, read_json
from app.cli.subscribe import Start, report_link, subscribe
from app.cli.token import NoToken, entry, read_token
from app.cli.user import NoUser, checked, read_secret
from app.cli.user import entry as user_entry
from app.client import Client
from app.configuration import ENTRIES, KNOBS, limits_table
from app.settings import Verb

if TYPE_CHECKING:
    from app.settings import Settings


_ELSEWHERE = {
    "bench": ("app.cli.bench_verbs", "bench_group"),
    "demo": ("app.cli.demo", "demo"),
    "history": ("app.cli.history_verbs", "history_group"),
    "lake": ("app.cli.lake_verbs", "lake_group"),
    "pipeline": ("app.cli.pipeline_verbs", "pipeline_group"),
}
"""Verbs of other files, which are imported when a verb is named or listed: together they take half a second."""


class Verbs(click.Group):
    """The program. Ctrl-C ends it with exit code 130 even where nothing else handles it, as during imports."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all verbs, in alphabetical order."""
        return sorted([*super().list_commands(ctx), *_ELSEWHERE])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the verb with that name, or None."""
        if cmd_name not in _ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        module, name = _ELSEWHERE[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb that was named."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="%(prog)s %(version)s")
def main() -> None:
    """Real-time messaging in one process: a server for Bayeux, WAMP and NetworkTables, and a client to try it."""


@main.command()
@config_option
@click.option("--host", help=f"Address to listen on. [default: {KNOBS['host'].default}]")
@click.option(
    "--port",
    type=int,
    help=f"Port for clients; 0 picks a free one and prints it. [default: {KNOBS['port'].default}]",
)
@click.option(
    "--operations-port",
    type=int,
    help=f"Port for health checks and metrics; 0 as above. [default: {KNOBS['operations.port'].default}]",
)
@click.option("--nt4", "is_nt4", is_flag=True, help="Also serve NetworkTables (NT4), for robots and dashboards.")
@click.option("--nt4-host", help=f"Address of the NetworkTables listener. [default: {KNOBS['nt4.host'].default}]")
@click.option("--nt4-port", type=int, help=f"Port of that listener; 0 as above. [default: {KNOBS['nt4.port'].default}]")
@click.option("--data-dir", metavar="DIR", help=f"Folder for durable data. [default: {KNOBS['data_dir'].default}]")
@click.option("--history", type=click.Choice(["on", "off"]), help="off: no events are stored or can be replayed.")
@click.option("--tls-cert", metavar="FILE", help="Serve https with this certificate (PEM). SIGHUP reads it again.")
@click.option("--tls-key", metavar="FILE", help="The certificate's private key. [default: in the same file]")
@click.option("--open", "is_open", is_flag=True, help="Let other machines connect although there are no access rules.")
@click.option(
    "--load",
    "hooks",
    multiple=True,
    metavar="MODULE:FUNCTION",
    help="Call this function with the embedding API before serving. Can be given several times.",
)
def serve(  # noqa: PLR0913 - one for each flag
    *,
    file: Path | None,
    host: str | None,
    port: int | None,
    operations_port: int | None,
    is_nt4: bool,
    nt4_host: str | None,
    nt4_port: int | None,
    data_dir: str | None,
    history: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    is_open: bool,
    hooks: tuple[str, ...],
) -> None:
    """Run the server until Ctrl-C or SIGTERM.

    There are more settings, for the settings file or as HALLEY_... in the environment: see `halley check-config`.
    """
    flags = {
        "host": host,
        "port": port,
        "operations.port": operations_port,
        "nt4.enabled": is_nt4 or None,
        "nt4.host": nt4_host,
        "nt4.port": nt4_port,
        "data_dir": data_dir,
        "history.enabled": None if history is None else history == "on",
        "tls.cert": tls_cert,
        "tls.key": tls_key,
        "open": is_open or None,
        "load": hooks or None,
    }
    read = settings_reader(file, {key: value for key, value in flags.items() if value is not None})
    configuration = read_settings(read)
    from app.host.server import run as run_server

    sys.exit(run_server(configuration, read))


@main.command(context_settings={"ignore_unknown_options": True})  # else a negative number would be an option
@click.argument("channel")
@click.argument("value", metavar="[JSON|-]", default="-")
@server_options
def publish(*, channel: str, value: str, server: str, token: str | None) -> None:
    """Publish to a CHANNEL: one JSON value, or with - (the default) each line of standard input.

    A line is one JSON value. Lines are sent as soon as they are read. Publishing stops at the first line that is not
    JSON, and its number is printed. The exit code is 1 if anything was not published.
    """
    client = _client(server, token)
    if value == "-":
        if os.isatty(STDIN):
            say("reading one JSON value a line; end with Ctrl-D")
        sys.exit(run(publish_lines(client, channel)))
    try:
        data = read_json(value)
    except NotJson as error:
        raise click.UsageError(f"{value[:60]} is {error}; a string needs double quotes inside single ones") from None
    sys.exit(run(publish_value(client, channel, data)))


@main.command("subscribe")
@click.argument("patterns", nargs=-1, required=True, metavar="PATTERN...")
@click.option(
    "--replay",
    "after",
    type=Start(),
    help="Begin after this position in the server's history, with all of the history, or with new events only.",
)
@server_options
def subscribe_verb(*, patterns: tuple[str, ...], after: int | None, server: str, token: str | None) -> None:
    """Print what is published, one JSON object a line: {"channel": ..., "data": ...}.

    A PATTERN is a channel (/a/b), all channels one level below (/a/*), or all below (/a/**). With --replay a line also
    has the event's "position" in the server's history. After an outage the client connects again, reports that, and
    resumes from where it was if the server has a history. Ctrl-C ends it.
    """
    client = _client(server, token, on_link=report_link)
    sys.exit(run(subscribe(client, patterns, after)))


def _check_files(settings: Settings) -> None:
    """Read the keys and the certificate that the settings name; exit with code 2 if they cannot be used."""
    from app.access.authenticator import Authenticator
    from app.access.keys import BadKeys
    from app.host.tls import BadCertificate, Certificate

    try:
        Authenticator.of(settings)
        if settings.tls.cert:
            Certificate(settings.tls)
    except (BadKeys, BadCertificate) as error:
        say(str(error))
        sys.exit(WRONG_USE)


@main.command()
@config_option
@click.option("--role", help="Instead, check whether this role has the right --verb on --channel.")
@click.option("--verb", type=click.Choice(get_args(Verb)), help="The right to check.")
@click.option("--channel", help="The channel or pattern to check.")
@click.option("--realm", help="The WAMP realm of the channel. [default: the first]")
@click.option("--markdown", is_flag=True, help="Instead, print the table of limits in app/settings/README.md.")
def check_config(
    *,
    file: Path | None,
    role: str | None,
    verb: Verb | None,
    channel: str | None,
    realm: str | None,
    markdown: bool,
) -> None:
    """Print every setting, or what is wrong with them.

    For each: the value, its unit, the meaning of a special value, its origin, and the reason for the default. The exit
    code is 2 if the server would not start with these settings.

    With --role, --verb and --channel: print whether the role has that right, and why. The exit code is 0 for yes and 1
    for no.
    """
    if markdown:
        for line in limits_table():
            click.echo(line)
        return
    configuration = load_settings(file, {})
    _check_files(configuration.settings)
    if role is verb is channel is realm is None:
        for line in listing(configuration):
            click.echo(line)
        return
    if role is None or verb is None or channel is None:
        raise click.UsageError("--role, --verb and --channel go together")
    from app.cli.check_access import BadQuestion, may

    try:
        is_allowed, text = may(configuration, role, verb, channel, realm or "")
    except BadQuestion as error:
        raise click.UsageError(str(error)) from None
    click.echo(text)
    sys.exit(DONE if is_allowed else FAILED)


@main.command()
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
        lines = [*entry(secret, name, role, days)]
    except NoToken as error:
        raise click.UsageError(str(error)) from None
    for line in lines if source is not None else [secret, "", *lines]:
        click.echo(line)


@main.command()
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
            secret = checked(click.prompt("secret", hide_input=True, confirmation_prompt=True, err=True))
        else:
            secret = read_secret(sys.stdin.buffer)
        lines = [*user_entry(secret, name, role, iterations)]
    except NoUser as error:
        raise click.UsageError(str(error)) from None
    for line in lines:
        click.echo(line)


def _client(server: str, token: str | None, **options: Any) -> Client:
    try:
        return Client(server, token=token, **options)
    except ValueError as error:
        raise click.UsageError(f"--server or --token: {error}") from None
