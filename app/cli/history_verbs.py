"""The verbs of `halley history` and their options."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from app.cli import history
from app.cli.console import run
from app.cli.erasing import erasure_of, named
from app.cli.options import config_option, load_settings, server_options
from app.cli.progress import ShareBar
from app.client import HistoryClient

if TYPE_CHECKING:
    from app.settings import Settings

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
    """Read, export, verify, back up or erase recorded events.

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
    given = {name: value for name, value in filters.items() if value is not None}
    if reverse:
        given["reverse"] = "true"
    given["limit"] = str(min(limit or 300, 300))
    if not channel.startswith("/"):
        raise click.UsageError(f"{channel} is not a channel or pattern; it must begin with /")
    sys.exit(run(history.show(_client(server, token), channel, given, limit)))


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
    work = history.export(_client(server, token), file, from_offset, until_offset, ShareBar("exporting"))
    sys.exit(run(work))


@history_group.command()
@config_option
@data_dir_option
def verify(*, file: Path | None, data_dir: Path | None) -> None:
    """Check every checksum, digest and index of the log on this machine, even while a server writes it.

    Damage is printed, one line for each; the exit code is 1 if there is any.
    """
    from app.cli import history_upkeep

    sys.exit(history_upkeep.verify(_folder(file, data_dir)[0], ShareBar("verifying")))


@history_group.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@config_option
@data_dir_option
def backup(*, directory: Path, file: Path | None, data_dir: Path | None) -> None:
    """Copy the log on this machine into DIR, which must be new or empty, even while a server writes the log.

    A server can then use DIR as its data folder; the copy is a separate log.
    """
    from app.cli import history_upkeep

    sys.exit(history_upkeep.backup(_folder(file, data_dir)[0], directory, ShareBar("copying")))


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
    bar = ShareBar("erasing")
    if data_dir is None:
        sys.exit(run(history.purge(_client(server, token), what, bar)))
    from app.cli import history_upkeep

    folder, settings = _folder(file, data_dir)
    sys.exit(history_upkeep.purge(folder, settings, erasure_of(what, settings), bar))


def _folder(file: Path | None, data_dir: Path | None) -> tuple[Path, Settings]:
    settings = load_settings(file, {} if data_dir is None else {"data_dir": str(data_dir)}).settings
    return Path(settings.data_dir), settings


def _client(server: str, token: str | None) -> HistoryClient:
    try:
        return HistoryClient(server, token=token)
    except ValueError as error:
        raise click.UsageError(f"--server or --token: {error}") from None
