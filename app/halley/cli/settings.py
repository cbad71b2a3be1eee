"""The settings of a verb: flags that set some of them, and how all are loaded."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from halley.cli.options import DEFAULT_FILE
from halley.cli.terminal import USAGE_ERROR, print_status
from halley.configuration import KNOBS, BadSettings, Configuration, load

Command = Callable[..., Any]

SettingFlags = dict[str, tuple[str, str, dict[str, Any]]]
"""For each setting that has a flag: the flag, its help, and how click reads it."""


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
            print_status(str(problem))
        sys.exit(USAGE_ERROR)


def load_settings(file: Path | None, flags: dict[str, Any]) -> Configuration:
    """Load the settings from a file, the environment and flags; print what is wrong and exit if they are invalid."""
    return read_settings(settings_reader(file, flags))
