"""`halley history verify | backup | purge` for a data folder on this machine."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.cli.console import DONE, FAILED, say
from app.cli.history import erased
from app.cli.progress import ShareBar
from app.history.backup import backup as copy
from app.history.folder import FolderLocked, FolderUnusable
from app.history.history import History
from app.history.rules import Rules
from app.history.verify import verify as look
from app.server.persistent_topics import PersistentTopics

if TYPE_CHECKING:
    from app.broker.erasure import Erasure
    from app.history.folder import Damage
    from app.settings import Settings


def verify(folder: Path, bar: ShareBar) -> int:
    """Check every byte of a log, and print all damage with its place; returns the exit code."""
    try:
        verdict = look(folder, lambda done, of: bar.show(done, of, ""))
    except (FolderUnusable, OSError) as error:
        bar.finish()
        say(str(error))
        return FAILED
    bar.finish()
    for first, last in verdict.holes:
        say(f"{_offsets(first, last)}: lost in an earlier accident")
    for damage in verdict.damage:
        print(_line(damage))  # noqa: T201 - a result
    segments = "1 segment" if verdict.segments == 1 else f"{verdict.segments} segments"
    say(f"{verdict.rows:,} events in {segments}: {'something is wrong' if verdict.damage else 'sound'}")
    return FAILED if verdict.damage else DONE


def _line(damage: Damage) -> str:
    where = f"{damage.file}: {_offsets(damage.first, damage.last)}" if damage.first else damage.file
    return f"{where}: {damage.what}"


def _offsets(first: int, last: int) -> str:
    return f"offset {first}" if first == last else f"offsets {first} to {last}"


def backup(folder: Path, target: Path, bar: ShareBar) -> int:
    """Copy a log, even while a server writes it; returns the exit code."""
    try:
        copied = copy(folder, target, lambda done, of: bar.show(done, of, ""))
    except (FolderUnusable, OSError, sqlite3.Error) as error:
        bar.finish()
        say(str(error))
        return FAILED
    bar.finish()
    for name in copied.damaged:
        say(f"{name} is damaged and was copied unchanged; see halley history verify")
    say(f"copied {copied.nbytes:,} bytes to {target}")
    return FAILED if copied.damaged else DONE


def purge(folder: Path, settings: Settings, erasure: Erasure, bar: ShareBar) -> int:
    """Erase events from a log that no server has open; returns the exit code."""
    if not (folder / "log.json").exists():
        say(f"there is no log in {folder}")
        return FAILED
    history = None
    try:
        options = replace(settings.history, free_bytes=0)  # nothing is published, and erasing makes room
        history = History.open(folder, options, Rules(), lambda _: None)
        count = history.purge(erasure, lambda done, of: bar.show(done, of, ""))
        PersistentTopics.of(replace(settings, data_dir=str(folder))).clean(erasure)
    except FolderLocked as locked:
        say(f"{locked}; purge without --data-dir uses that server")
        return FAILED
    except (FolderUnusable, OSError, sqlite3.Error) as error:
        bar.finish()
        say(f"not everything was erased: {error}")
        return FAILED
    finally:
        if history is not None:
            history.close()
    bar.finish()
    say(erased(count))
    return DONE
