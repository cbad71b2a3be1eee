"""`halley cluster recover`: makes the stream of a cluster from the data folder of a node that is stopped."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import click

from halley.cli.cluster.access import url_list
from halley.cli.options import config_option
from halley.cli.settings import load_settings
from halley.cli.terminal import DONE, FAILED, STDERR, STDIN, USAGE_ERROR, print_status, run
from halley.cluster.membership import connected
from halley.cluster.recover import CannotRecover, compare, make_stream
from halley.cluster.stream import CannotJoin
from halley.history.folder import BACKUP_MARKER, FolderLocked, FolderUnusable
from halley.history.history import History
from halley.history.rules import Rules
from halley.nats.client import AwayErrors
from halley.nats.jetstream import ApiError
from halley.settings import Settings


@click.command()
@click.argument("urls", metavar="URLS", callback=url_list)
@click.option(
    "--data-dir",
    required=True,
    type=click.Path(path_type=Path),
    help="The data folder of the node with the highest position.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option(
    "--discard",
    is_flag=True,
    help="Also if the stream has, or may have had, events that the folder has not: they are lost.",
)
@config_option
def recover(*, urls: list[str], data_dir: Path, yes: bool, discard: bool, file: Path | None) -> None:
    """Make the stream of a cluster from a data folder, on the NATS servers at URLS (separated by commas).

    It is for a stream that was lost or restored from an old copy, and for a folder of a server without a cluster that
    becomes the first node of one. All nodes must be stopped. The stream that is there is deleted; positions go on after
    the last event of the folder. The settings must be those of the nodes.
    """
    flags = {"cluster.urls": urls, "cluster.node": "recover", "data_dir": str(data_dir)}
    settings = load_settings(file, flags).settings
    sys.exit(_recover(settings, data_dir.resolve(), is_sure=yes, discards=discard))


def _recover(settings: Settings, folder: Path, *, is_sure: bool, discards: bool) -> int:
    if not (folder / "log.json").exists():
        print_status(f"there is no log in {folder}")
        return USAGE_ERROR
    try:
        options = replace(settings.history, free_bytes=0)
        history = History(folder, options, Rules(), lambda _: None, is_replica=True)
    except FolderLocked as locked:
        print_status(f"{locked}; stop it first")
        return FAILED
    except FolderUnusable as error:
        print_status(str(error))
        return FAILED
    try:
        return run(_made(settings, history, is_sure=is_sure, discards=discards))
    finally:
        history.close()


async def _made(settings: Settings, history: History, *, is_sure: bool, discards: bool) -> int:

    space, folder = settings.cluster.space, history.folder.path
    try:
        async with connected(settings) as nats:
            found = await compare(nats, settings, history)
            last = f", the last one of {datetime.fromtimestamp(found.last_us / 1e6, UTC):%F %T} UTC" * (
                found.last_us > 0
            )
            print_status(f"{folder} has the positions {history.start} to {history.head}{last}")
            if found.frames is None:
                print_status(f"there is no stream {space}")
            else:
                only = f"{found.only_there:,} with events that the folder has not"
                print_status(f"the stream {space} has {found.frames:,} frames, {only}")
            if found.gone:
                sequences = f"{found.gone.start} to {found.gone.stop - 1}"
                print_status(f"its frames {sequences} were deleted, and may have had events that the folder has not")
            if (found.only_there or found.gone) and not discards:
                print_status("recover with the folder of a node that has those too, or give them up with --discard")
                return FAILED
            if (folder / BACKUP_MARKER).exists():
                print_status(
                    "the folder is a backup: its log gets another id, and all other nodes need an empty folder"
                )
            print_status(f"the stream {space} is made again; the next event gets the position {found.used + 1}")
            if not is_sure:
                if not (os.isatty(STDIN) and os.isatty(STDERR)):
                    print_status("confirm with --yes")
                    return USAGE_ERROR
                await asyncio.to_thread(click.confirm, "Make it again?", abort=True, err=True)
            await make_stream(nats, settings, history, found)
    except (CannotJoin, CannotRecover, FolderLocked, FolderUnusable) as error:
        print_status(str(error))
        return FAILED
    except (ApiError, *AwayErrors) as error:
        print_status(f"NATS does not do it: {str(error) or 'no answer'}; it may be repeated")
        return FAILED
    print_status(f"done; start the node with {folder} first, then the others")
    return DONE
