"""Options and arguments that several verbs share, and how the settings are loaded from them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from halley.broker.errors import InvalidName
from halley.broker.names import Pattern
from halley.broker.ports import Erasure
from halley.cli.terminal import STDERR, STDIN, WRONG_USE, say
from halley.configuration import KNOBS, BadSettings, Configuration, load
from halley.protocols.bayeux.names import Bounds, to_pattern
from halley.settings import Settings

Client = TypeVar("Client")
Command = Callable[..., Any]

SettingFlags = dict[str, tuple[str, str, dict[str, Any]]]
"""For each setting that has a flag: the flag, its help, and how click reads it."""

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


def setting_options(settings: SettingFlags) -> Callable[[Command], Command]:
    """Add an option for each of these settings, whose help has the setting's default where that is a number or a text.

    The verb gets a dictionary `flags` with the settings that were given, as `load_settings` takes them.
    """

    def decorate(verb: Command) -> Command:
        @wraps(verb)
        def with_flags(**given: Any) -> None:
            values = {key: given.pop(_parameter(key)) for key in settings}
            # A port can be 0, which is equal to False but not the same.
            chosen = {key: value for key, value in values.items() if value not in (None, ()) and value is not False}
            verb(flags=chosen, **given)

        command: Command = with_flags
        for key, (flag, text, reading) in reversed(settings.items()):
            default = KNOBS[key].default
            has_default = isinstance(default, int | str) and not isinstance(default, bool) and default != ""
            help_text = f"{text} [default: {default}]" if has_default else text
            command = click.option(flag, _parameter(key), help=help_text, **reading)(command)
        return command

    return decorate


def _parameter(key: str) -> str:
    return key.replace(".", "_")


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


def settings_reader(file: Path | None, flags: dict[str, Any]) -> Callable[[], Configuration]:
    """Return a function that loads the settings from a file, the environment and flags each time that it is called.

    Where `file` is None it looks for `DEFAULT_FILE`. A file that it has found once must be there from then on. The
    function raises `BadSettings`.
    """

    def read() -> Configuration:
        nonlocal file
        if file is None and DEFAULT_FILE.exists():
            file = DEFAULT_FILE
        return load(file, os.environ, flags)

    return read


def read_settings(read: Callable[[], Configuration]) -> Configuration:
    """Load the settings by `read`; print what is wrong and exit if they are invalid."""
    try:
        return read()
    except BadSettings as error:
        for problem in error.problems:
            say(str(problem))
        sys.exit(WRONG_USE)


def load_settings(file: Path | None, flags: dict[str, Any]) -> Configuration:
    """Load the settings from a file, the environment and flags; print what is wrong and exit if they are invalid."""
    return read_settings(settings_reader(file, flags))


def pattern_of(channel: str, bounds: Bounds) -> Pattern:
    """Parse a channel or a pattern of channels. Raises `click.UsageError`."""
    try:
        return to_pattern(channel, bounds)
    except InvalidName:
        raise click.UsageError(f"{channel} is not a channel or pattern") from None


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
            say("erased events cannot be restored; confirm with --yes")
            sys.exit(WRONG_USE)
        click.confirm(f"Erase {' '.join(what.values())} permanently?", abort=True, err=True)
    return what


def erasure_of(what: Mapping[str, str], settings: Settings) -> Erasure:
    """Return the `Erasure` for what `named` returned, to erase on this machine. Raises `click.UsageError`."""
    channel = what.get("channel")
    bounds = Bounds(settings.limits.topic_chars, settings.limits.topic_segments)
    return Erasure(None if channel is None else pattern_of(channel, bounds), what.get("publisher"))


def erased(count: int) -> str:
    """The message at the end of a purge."""
    return "erased 1 event" if count == 1 else f"erased {count:,} events"
