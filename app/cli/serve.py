"""`halley serve`: runs the server. Its flags are settings, each with the name and the default of the setting."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from app.cli.options import config_option, read_settings, settings_reader
from app.configuration import KNOBS

_FLAGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "host": ("--host", "Address to listen on.", {}),
    "port": ("--port", "Port for clients; 0 picks a free one and prints it.", {"type": int}),
    "operations.port": ("--operations-port", "Port for health checks and metrics; 0 as above.", {"type": int}),
    "nt4.enabled": ("--nt4", "Also serve NetworkTables (NT4), for robots and dashboards.", {"is_flag": True}),
    "nt4.host": ("--nt4-host", "Address of the NetworkTables listener.", {}),
    "nt4.port": ("--nt4-port", "Port of that listener; 0 as above.", {"type": int}),
    "data_dir": ("--data-dir", "Folder for durable data.", {"metavar": "DIR"}),
    "history.enabled": (
        "--history",
        "off: no events are stored or can be replayed.",
        {"type": click.Choice(["on", "off"])},
    ),
    "tls.cert": (
        "--tls-cert",
        "Serve https with this certificate (PEM). SIGHUP reads it again.",
        {"metavar": "FILE"},
    ),
    "tls.key": (
        "--tls-key",
        "The certificate's private key. [default: in the same file]",
        {"metavar": "FILE"},
    ),
    "open": ("--open", "Let other machines connect although there are no access rules.", {"is_flag": True}),
    "load": (
        "--load",
        "Call this function with the embedding API before serving. Can be given several times.",
        {"metavar": "MODULE:FUNCTION", "multiple": True},
    ),
}
"""For each setting that has a flag: the flag, its help, and how click reads it."""


def _setting_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of `_FLAGS`, with the default of each setting that has one worth telling."""
    for key, (flag, text, reading) in reversed(_FLAGS.items()):
        default = KNOBS[key].default
        is_told = isinstance(default, int | str) and not isinstance(default, bool) and default != ""
        told = f" [default: {default}]" if is_told else ""
        command = click.option(flag, _parameter(key), help=text + told, **reading)(command)
    return command


def _parameter(key: str) -> str:
    return key.replace(".", "_")


@click.command()
@config_option
@_setting_options
def serve(*, file: Path | None, **given: Any) -> None:
    """Run the server until Ctrl-C or SIGTERM.

    There are more settings, for the settings file or as HALLEY_... in the environment: see `halley check-config`.
    """
    values = {key: given[_parameter(key)] for key in _FLAGS}
    flags = {key: value for key, value in values.items() if value is not None and value is not False and value != ()}
    if "history.enabled" in flags:
        flags["history.enabled"] = flags["history.enabled"] == "on"
    read = settings_reader(file, flags)
    configuration = read_settings(read)
    from app.host.process import run as run_server

    sys.exit(run_server(configuration, read))
