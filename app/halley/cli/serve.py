"""`halley serve`: runs the server. Its flags are settings, each with the name and the default of the setting."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from halley.cli.options import config_option
from halley.cli.settings import SettingFlags, read_settings, setting_options, settings_reader

_FLAGS: SettingFlags = {
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
    "cluster.urls": (
        "--cluster",
        "Be a node of a cluster on these NATS servers, separated by commas (deploy/README.md).",
        {"metavar": "URLS", "callback": lambda _context, _option, urls: urls and urls.split(",")},
    ),
    "cluster.node": ("--node", "This node's name; every node of a cluster has another.", {"metavar": "NAME"}),
    "cluster.front": ("--front", "Store no history here; read it from keepers.", {"is_flag": True}),
    "tls.cert": ("--tls-cert", "Serve https with this certificate (PEM). SIGHUP reads it again.", {"metavar": "FILE"}),
    "tls.key": ("--tls-key", "The certificate's private key. [default: in the same file]", {"metavar": "FILE"}),
    "open": ("--open", "Let other machines connect although there are no access rules.", {"is_flag": True}),
    "load": (
        "--load",
        "Call this function with the embedding API before serving. Can be given several times.",
        {"metavar": "MODULE:FUNCTION", "multiple": True},
    ),
}


@click.command()
@config_option
@setting_options(_FLAGS)
def serve(*, file: Path | None, flags: dict[str, Any]) -> None:
    """Run the server until Ctrl-C or SIGTERM.

    There are more settings, for the settings file or as HALLEY_... in the environment: see `halley check-config`.
    """
    if "history.enabled" in flags:
        flags["history.enabled"] = flags["history.enabled"] == "on"
    read = settings_reader(file, flags)
    configuration = read_settings(read)
    from halley.host.process import run as run_server

    sys.exit(run_server(configuration, read))
