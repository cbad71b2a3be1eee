"""Options and arguments that several verbs share.

Every verb imports this for its help, so that it imports nothing of a client or a server.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from halley.cli.terminal import STDERR, STDIN, USAGE_ERROR, print_status

Client = TypeVar("Client")
Command = Callable[..., Any]

DEFAULT_FILE = Path("halley.toml")
DEFAULT_SERVER = "http://127.0.0.1:8080"

config_option = click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    envvar="HALLEY_CONFIG",
    show_envvar=True,
    help=f"Settings file (TOML). [default: {DEFAULT_FILE} in the working directory, if there is one]",
)


token_option = click.option(
    "--token",
    envvar="HALLEY_TOKEN",
    show_envvar=True,
    help="Sent as 'Authorization: Bearer'. Other users may see command lines: the variable is safer.",
)


def server_options(verb: Command) -> Command:
    """Add the options of every verb that connects to a server: --server and --token."""
    server = click.option(
        "--server",
        default=DEFAULT_SERVER,
        envvar="HALLEY_SERVER",
        show_default=True,
        show_envvar=True,
        metavar="URL",
        help="The server. Its Bayeux path is /bayeux unless the URL has a path.",
    )
    return server(token_option(verb))


def client_of(kind: Callable[..., Client], server: str, token: str | None, **options: Any) -> Client:
    """Make a client of this kind for --server and --token; `options` are its other arguments.

    Raises `click.UsageError`.
    """
    try:
        return kind(server, token=token, **options)
    except ValueError as error:
        raise click.UsageError(f"--server or --token: {error}") from None


def named(channel: str | None, publisher: str | None, *, is_sure: bool) -> dict[str, str]:
    """Return what to erase, in the form of a `POST /log/purge`: a channel or pattern, or a publisher.

    Unless `is_sure`, a person at a terminal is asked to confirm; without a terminal the program ends. Raises
    `click.UsageError` unless exactly one of the two is given.
    """
    match channel, publisher:
        case str(), None:
            what = {"channel": channel}
        case None, str():
            what = {"publisher": publisher}
        case _:
            raise click.UsageError("expected either a CHANNEL or --publisher")
    if not is_sure:
        if not (os.isatty(STDIN) and os.isatty(STDERR)):
            print_status("erased events cannot be restored; confirm with --yes")
            sys.exit(USAGE_ERROR)
        click.confirm(f"Erase {' '.join(what.values())} permanently?", abort=True, err=True)
    return what


def erased(count: int) -> str:
    """The message at the end of a purge."""
    return "erased 1 event" if count == 1 else f"erased {count:,} events"
