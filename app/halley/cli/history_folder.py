"""`halley history verify | salvage | backup | purge` for a data folder on this machine."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from halley.cli.channels import erasure_of
from halley.cli.options import erased
from halley.cli.settings import load_settings
from halley.cli.terminal import DONE, FAILED, USAGE_ERROR, ProgressBar, print_status
from halley.history.backup import backup as copy
from halley.history.damage import Damage
from halley.history.examination import verify as look
from halley.history.folder import FolderLocked, FolderUnusable, NoLog, is_of_keeper
from halley.history.history import History
from halley.history.rules import Rules
from halley.server.persistence import FILES, PersistentTopics
from halley.settings import Settings

_Result = TypeVar("_Result")


def configured(file: Path | None, data_dir: Path | None) -> tuple[Path, Settings]:
    """Return the data folder, `data_dir` if that is given, and all settings; print what is wrong with them and exit."""
    settings = load_settings(file, {} if data_dir is None else {"data_dir": str(data_dir)}).settings
    return Path(settings.data_dir), settings


def verify(folder: Path, bar: ProgressBar) -> int:
    """Check every byte of a log, and print all damage with its place; returns the exit code."""
    try:
        verdict = look(folder, bar.show)
    except (FolderUnusable, OSError) as error:
        bar.finish()
        print_status(str(error))
        return USAGE_ERROR if isinstance(error, NoLog) else FAILED
    bar.finish()
    for first, last in verdict.holes:
        print_status(f"{_offsets(first, last)}: lost in an earlier accident")
    for damage in verdict.damage:
        print(_line(damage))  # noqa: T201 - a result
    segments = "1 segment" if verdict.segments == 1 else f"{verdict.segments} segments"
    print_status(f"{verdict.rows:,} events in {segments}: {'something is wrong' if verdict.damage else 'sound'}")
    return FAILED if verdict.damage else DONE


def _line(damage: Damage) -> str:
    where = f"{damage.file}: {_offsets(damage.first, damage.last)}" if damage.first else damage.file
    return f"{where}: {damage.what}"


def _offsets(first: int, last: int) -> str:
    return f"offset {first}" if first == last else f"offsets {first} to {last}"


def backup(folder: Path, target: Path, bar: ProgressBar) -> int:
    """Copy a log, even while a server writes it; returns the exit code."""
    try:
        copied = copy(folder, target, bar.show, also=FILES)
    except FolderUnusable as error:
        bar.finish()
        print_status(str(error))
        return USAGE_ERROR if isinstance(error, NoLog) else FAILED
    except (OSError, sqlite3.Error) as error:
        bar.finish()
        print_status(f"not everything was copied: {error}; the same command begins again")
        return FAILED
    bar.finish()
    for name in copied.damaged:
        print_status(f"{name} is damaged and was copied unchanged; see halley history verify")
    print_status(f"copied {copied.nbytes:,} bytes to {target}")
    return FAILED if copied.damaged else DONE


def salvage(folder: Path, settings: Settings, bar: ProgressBar) -> int:
    """Rewrite the damaged segments of a log, and print what is lost; returns the exit code."""
    if _has_no_log(folder):
        return USAGE_ERROR
    salvaged = _work(folder, settings, bar, "salvaged", lambda log: log.salvage(bar.show))
    if salvaged is None:
        return FAILED
    for first, last in salvaged.lost:
        print(f"{_offsets(first, last)}: lost")  # noqa: T201 - a result
    count = sum(last - first + 1 for first, last in salvaged.lost)
    events = "1 event" if count == 1 else f"{count:,} events"
    segments = "1 damaged segment" if salvaged.segments == 1 else f"{salvaged.segments} damaged segments"
    print_status(f"{segments} rewritten, {events} lost" if salvaged.segments else "no segment is damaged")
    return DONE


def purge(folder: Path, settings: Settings, what: Mapping[str, str], bar: ProgressBar) -> int:
    """Erase events (`options.named`) from a log that no server has open; returns the exit code.

    Raises `click.UsageError` for what is not a channel or pattern.
    """
    erasure = erasure_of(what, settings)
    if _has_no_log(folder):
        return USAGE_ERROR
    if is_of_keeper(folder):
        print_status(
            f"{folder} is the folder of a keeper, and other nodes have its events too: purge without --data-dir, with "
            "a running keeper as --server, erases them at all nodes"
        )
        return USAGE_ERROR

    def erase(log: History) -> int:
        count = log.purge(erasure, bar.show)
        PersistentTopics.of(replace(settings, data_dir=str(folder))).clean(erasure)
        return count

    count = _work(folder, settings, bar, "erased", erase)
    if count is None:
        return FAILED
    print_status(erased(count))
    return DONE


def _has_no_log(folder: Path) -> bool:
    """Whether there is no log in the folder; if so, this is printed."""
    if (folder / "log.json").exists():
        return False
    print_status(f"there is no log in {folder}")
    return True


def _work(
    folder: Path, settings: Settings, bar: ProgressBar, done: str, work: Callable[[History], _Result]
) -> _Result | None:
    """Open a log and do `work` on it; returns the result, or None after an error, which is printed."""
    log = None
    try:
        options = replace(settings.history, free_bytes=0)  # nothing is published, and rewriting makes room
        log = History(folder, options, Rules(), lambda _: None)
        return work(log)
    except FolderLocked as locked:
        hint = "; purge without --data-dir uses that server" if done == "erased" else "; stop it first"
        print_status(f"{locked}{hint}")
    except (FolderUnusable, OSError, sqlite3.Error) as error:
        bar.finish()
        print_status(f"not everything was {done}: {error}")
    finally:
        if log is not None:
            log.close()
        bar.finish()
    return None
