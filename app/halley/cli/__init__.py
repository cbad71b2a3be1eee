"""The command line: `halley serve`, `halley publish`, `halley history export` and so on.

A verb, or a group of verbs, is one file or folder here: a click command with its options on top, and the work below.
`COMMANDS` has the place of each as `module:name`, and it is imported only when it is named or listed, so that
`halley --version` and a verb without Spark or a server start at once. A new verb is a new file and a line there.
What talks to a server has its work in a file of its own, which the verb imports when it runs: `publish.py` has the
options, `publishing.py` the work, and `--help` does not import a client.

Results go to standard output, everything else to standard error. The exit codes are 0 (done), 1 (failed), 2 (wrong use
or settings) and 130 (interrupted); they and everything about the terminal are in `terminal.py`.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
from pathlib import Path
from typing import Any

import click

from halley import __version__, is_compiled

COMMANDS = {
    "bench": "halley.cli.bench:bench_group",
    "check-config": "halley.cli.check_config:check_config",
    "cluster": "halley.cli.cluster:cluster_group",
    "demo": "halley.cli.demo:demo",
    "history": "halley.cli.history:history_group",
    "lake": "halley.cli.lake:lake_group",
    "pipeline": "halley.cli.pipeline:pipeline_group",
    "publish": "halley.cli.publish:publish",
    "serve": "halley.cli.serve:serve",
    "subscribe": "halley.cli.subscribe:subscribe",
    "token": "halley.cli.access:token",
    "user": "halley.cli.access:user",
}
"""The click command or group of each verb, as the module and the name in it."""

_INTERRUPTED = 130
"""The exit code, as in `terminal.py`, which is not imported here: with asyncio it would double the time to start."""


class LazyGroup(click.Group):
    """A group that imports a verb when it is named or listed; `places` has the module and the name of each.

    Ctrl-C ends the program with exit code 130 even where nothing else handles it, as during imports.
    """

    def __init__(self, *arguments: Any, places: dict[str, str], **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._places = places

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of all verbs, in alphabetical order."""
        return sorted(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Import and return the verb with that name; None if there is none."""
        if cmd_name not in self._places:
            return None
        module, _, name = self._places[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb that was named."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            sys.exit(_INTERRUPTED)


@click.group(
    cls=LazyGroup,
    places=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(f"{__version__} (compiled)" if is_compiled() else __version__, message="%(prog)s %(version)s")
def main() -> None:
    """Real-time messaging in one process: a server for Bayeux, WAMP and NetworkTables, and a client to try it."""
    if sys.stderr is None:  # it was closed before the program began
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - as long as the program
    atexit.register(_let_go_of_standard_error)


def _let_go_of_standard_error() -> None:
    """Forget what nobody can read: for that Python would exit with 120, since 3.14 and late releases of 3.13."""
    try:
        sys.stderr.flush()
    except (OSError, ValueError):
        sys.stderr = None
