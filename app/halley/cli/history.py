"""`halley history`: its verbs and their options.

What a running server is asked for is in `history_server.py`, and what works on a data folder of this machine in
`history_folder.py`; each is imported only for its verbs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from halley.cli.options import client_of, config_option, named, server_options
from halley.cli.terminal import ProgressBar, run

Verb = Callable[..., None]

_SHOW = "show"
_TIME = "An RFC 3339 time, such as 2026-07-01T12:00:00Z."
_FILTERS = {
    "from-time": f"Only events at or after this time. {_TIME}",
    "after-time": "Only events after this time.",
    "before-time": "Only events before this time.",
    "until-time": "Only events at or before this time.",
    "topic": "Of a pattern, only this channel.",
    "from-publication": "Only this publication and what follows it.",
    "after-publication": "Only what follows this publication.",
    "before-publication": "Only what precedes this publication.",
    "until-publication": "Only this publication and what precedes it.",
    "after-position": "Only what follows this position.",
    "before-position": "Only what precedes this position.",
}


class HistoryGroup(click.Group):
    """A group of verbs that also takes a channel: `halley history /chat/lobby` is `halley history show /chat/lobby`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the verb `show` before a channel, or before an option of that verb."""
        if args and (args[0].startswith("/") or (args[0].startswith("--") and args[0] != "--help")):
            args = [_SHOW, *args]
        return super().parse_args(ctx, args)


@click.group("history", cls=HistoryGroup, subcommand_metavar="CHANNEL | VERB ...")
def history_group() -> None:
    """Read, export, verify, salvage, back up or erase recorded events.

    `halley history CHANNEL` prints the events of a channel or pattern, one JSON object a line, oldest first; `halley
    history show --help` lists its options.
    """


def _filters(verb: Verb) -> Verb:
    for name, text in reversed(_FILTERS.items()):
        verb = click.option(f"--{name}", help=text)(verb)
    return verb


data_dir_option = click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    help="The data folder. [default: the setting data_dir, halley-data unless set]",
)


@history_group.command(_SHOW)
@click.argument("channel")
@_filters
@click.option("--reverse", is_flag=True, help="Newest first.")
@click.option("--limit", type=click.IntRange(1), help="The maximum number of events. [default: all]")
@server_options
def show(*, channel: str, reverse: bool, limit: int | None, server: str, token: str | None, **filters: Any) -> None:
    """Print the events of a CHANNEL or pattern, one JSON object a line, oldest first."""
    from halley.cli import history_server
    from halley.client import HistoryClient

    given = {name: value for name, value in filters.items() if value is not None}
    if reverse:
        given["reverse"] = "true"
    given["limit"] = str(min(limit or 300, 300))
    if not channel.startswith("/"):
        raise click.UsageError(f"{channel} is not a channel or pattern; it must begin with /")
    sys.exit(run(history_server.show(client_of(HistoryClient, server, token), channel, given, limit)))


@history_group.command()
@click.argument("file", metavar="FILE|-")
@click.option(
    "--from-offset", type=click.IntRange(1), help="Begin at this offset, and append to FILE. [default: the first]"
)
@click.option("--until-offset", type=click.IntRange(1), help="The last offset. [default: the last one at present]")
@server_options
def export(*, file: str, from_offset: int | None, until_offset: int | None, server: str, token: str | None) -> None:
    """Write every stored row with all its columns to FILE, one JSON object a line; the right `export` is needed.

    If it is interrupted, it prints the --from-offset to continue with.
    """
    from halley.cli import history_server
    from halley.client import HistoryClient

    client, bar = client_of(HistoryClient, server, token), ProgressBar("exporting")
    sys.exit(run(history_server.export(client, file, from_offset, until_offset, bar)))


@history_group.command()
@config_option
@data_dir_option
def verify(*, file: Path | None, data_dir: Path | None) -> None:
    """Check every checksum, digest and index of the log on this machine, even while a server writes it.

    Damage is printed, one line for each; the exit code is 1 if there is any.
    """
    from halley.cli import history_folder

    sys.exit(history_folder.verify(history_folder.configured(file, data_dir)[0], ProgressBar("verifying")))


@history_group.command()
@config_option
@data_dir_option
def salvage(*, file: Path | None, data_dir: Path | None) -> None:
    """Rewrite each damaged segment of the log on this machine with the events that are intact; no server may run.

    Until then the events of a damaged segment are left out. Those that cannot be saved are printed, and lost.
    """
    from halley.cli import history_folder

    sys.exit(history_folder.salvage(*history_folder.configured(file, data_dir), ProgressBar("salvaging")))


@history_group.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@config_option
@data_dir_option
def backup(*, directory: Path, file: Path | None, data_dir: Path | None) -> None:
    """Copy the log on this machine into DIR, which must be new or empty, even while a server writes the log.

    A server can then use DIR as its data folder; the copy is a separate log. What protocols keep in the folder is
    copied too, and the copy is checked. A backup that has failed is made again by the same command.
    """
    from halley.cli import history_folder

    sys.exit(history_folder.backup(history_folder.configured(file, data_dir)[0], directory, ProgressBar("copying")))


@history_group.command()
@click.argument("channel", required=False)
@click.option("--publisher", metavar="ID", help="Instead of a channel: an authid's events, and those about it.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@config_option
@click.option("--data-dir", type=click.Path(path_type=Path), help="Erase in this data folder, which no server uses.")
@server_options
def purge(
    *,
    channel: str | None,
    publisher: str | None,
    yes: bool,
    file: Path | None,
    data_dir: Path | None,
    server: str,
    token: str | None,
) -> None:
    """Erase the events of a CHANNEL or pattern permanently; the right `erase` is needed.

    The positions of other events do not change. Copies, such as exports, backups and the lake, are not erased.
    """
    what = named(channel, publisher, is_sure=yes)
    bar = ProgressBar("erasing")
    if data_dir is None:
        from halley.cli import history_server
        from halley.client import HistoryClient

        sys.exit(run(history_server.purge(client_of(HistoryClient, server, token), what, bar)))
    from halley.cli import history_folder

    sys.exit(history_folder.purge(*history_folder.configured(file, data_dir), what, bar))
