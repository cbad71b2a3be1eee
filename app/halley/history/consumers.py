"""Consumers: programs outside of the server that read the log, such as the pipeline's jobs; retention waits for them.

A consumer is a file `consumers/NAME.json` in the data folder with {"offset": next}, the offset that it reads next
(`checksummed_json.py`). Jobs on this host write their files themselves, the server writes those of jobs that report
over HTTP; so the folder is read periodically. A damaged file is ignored and reported. The offsets delay `retention.py`,
within bounds, and do nothing else: readers and the writer do not use them.
"""

from __future__ import annotations

import os
import re
import stat
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from halley.history import checksummed_json
from halley.history.rules import GRACE_S, NEVER

FOLDER = "consumers"

_ENDING = ".json"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MOST_FILES = 1_000
_MOST_BYTES = 4_096
_MOST_NEWS = 1_000


class TooManyConsumers(Exception):
    """The setting `consumers` bounds how many a log has, and there are as many."""


class Overtaken(NamedTuple):
    """Everything before `first` was deleted, but a consumer reads `offset` next: it misses what lay between."""

    consumer: str
    offset: int
    first: int


class Ignored(NamedTuple):
    """A file in the consumers' folder that is ignored, and the reason."""

    file: str
    why: str


def is_name(name: str) -> bool:
    """Whether `name` is valid for a consumer: 1 to 64 of A-Z, a-z, 0-9, _ and -, and not the prefix of a draft file."""
    return _NAME.fullmatch(name) is not None and not name.startswith(checksummed_json.DRAFT)


def forget_all(data_folder: Path) -> None:
    """Delete all consumers of the log in a folder. Raises `OSError`.

    For a log that continues as another one (a restored backup): its consumers read the original.
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        for file in list((data_folder / FOLDER).iterdir()):
            if file.name.endswith(_ENDING) and is_name(file.name.removesuffix(_ENDING)):
                file.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class _Known:
    """What was last read from a consumer's file.

    signature  inode, time of the change in ns by the file system's clock, and size; differs after every change
    seen       when the change was noticed, by the monotonic clock; None: before the log was opened
    offset     the offset that the consumer reads next; 0 where the file is ignored
    why        the reason why the file is ignored; empty where it is not
    """

    signature: tuple[int, int, int]
    seen: float | None
    offset: int = 0
    why: str = ""


class Consumers:
    """The consumers of an open log: at most `most`; retention waits for one until it is silent for `grace_s` seconds.

    One thread calls `unread_from`; any thread may call `report` and `forget`. `positions`, the offsets by
    name, is replaced and never changed in place. `news` is what the operator must learn; who logs an entry removes it.
    """

    def __init__(self, data_folder: Path, most: int, grace_s: float) -> None:
        self.positions: Mapping[str, int] = {}
        self.news: deque[Overtaken | Ignored] = deque(maxlen=_MOST_NEWS)
        self._path = data_folder / FOLDER
        self._most = most
        self._grace_s = grace_s
        self._began: float | None = None
        self._changing = Lock()
        self._known: dict[str, _Known] = {}
        self._ignored: dict[str, str] = {}
        self._read(None)

    def unread_from(self, now: float, time_s: float) -> int:
        """The first offset that a consumer which is waited for has yet to read; `NEVER` if there is no such consumer.

        Reads the files that have changed. `now` is monotonic, `time_s` the time of day as `Retention` counts it, both
        in seconds.
        """
        with self._changing:
            if self._began is None:
                self._began = now
            self._read(now)
            known = self._known.values()
        return min((each.offset for each in known if each.offset and self._is_alive(each, now, time_s)), default=NEVER)

    def overtaken(self, before: int, first: int) -> None:
        """Add `Overtaken` to the news for each consumer that misses the deleted offsets `before` to `first - 1`."""
        for name, offset in self.positions.items():
            if before <= offset < first:
                self.news.append(Overtaken(name, offset, first))

    def report(self, name: str, offset: int) -> None:
        """Store that the consumer `name` reads `offset` next. Blocks. Raises `TooManyConsumers`, `OSError`.

        The offset may be lower than before: a consumer may have to start over.
        """
        with self._changing:
            names = {*self._known, *self.positions}
            if name not in names and len(names) >= self._most:
                raise TooManyConsumers
            self._path.mkdir(mode=0o700, exist_ok=True)
            checksummed_json.save(self._file(name), {"offset": offset}, is_private=False)  # jobs read and replace it
            self.positions = dict(sorted({**self.positions, name: offset}.items()))

    def forget(self, name: str) -> bool:
        """Delete a consumer; False if there is none with that name. Blocks. Raises `OSError`."""
        with self._changing:
            try:
                self._file(name).unlink()
            except (FileNotFoundError, NotADirectoryError):
                return False
            checksummed_json.sync_folder(self._path)
            self._known.pop(name, None)
            self.positions = {other: offset for other, offset in self.positions.items() if other != name}
            return True

    def _file(self, name: str) -> Path:
        return self._path / f"{name}{_ENDING}"

    def _is_alive(self, known: _Known, now: float, time_s: float) -> bool:
        """Whether a consumer has reported within the grace.

        A change seen by this process is timed by the monotonic clock, an older one by the time of day. The time of day
        may have been wrong when the file was changed, or be wrong now. So by it alone a consumer is not given up before
        the clock could be corrected (`GRACE_S`), nor waited for once the log has been open for the whole grace.
        """
        if not self._grace_s:
            return False
        if known.seen is not None:
            return now - known.seen <= self._grace_s
        assert self._began is not None
        open_s, silent_s = now - self._began, time_s - known.signature[1] / 1e9
        return open_s <= self._grace_s and (open_s <= GRACE_S or silent_s <= self._grace_s)

    def _read(self, now: float | None) -> None:
        try:
            files = self._files()
        except OSError as error:  # retention still waits for the consumers that are known already
            self._note_ignored(self._ignored | {FOLDER: f"cannot be read: {error.strerror}"})
            return
        known: dict[str, _Known] = {}
        ignored = {}
        for file, found in sorted(files.items(), key=lambda each: -each[1].st_mtime_ns):
            name = file.removesuffix(_ENDING)
            if not stat.S_ISREG(found.st_mode) or name == file or not is_name(name):  # to open a pipe would block
                ignored[file] = "is not a consumer's file"
            elif len(known) >= self._most:
                ignored[FOLDER] = f"has more than {self._most} consumers; only those that changed last are used"
            elif (one := self._read_file(file, self._known.get(name), found, now)) is not None:
                known[name] = one
                if one.why:
                    ignored[file] = one.why
        self._note_ignored(ignored)
        self._known = known
        self.positions = {name: known[name].offset for name in sorted(known) if known[name].offset}

    def _files(self) -> dict[str, os.stat_result]:
        """The files in the folder by name, except drafts. Raises `OSError`."""
        try:
            with os.scandir(self._path) as entries:
                names = {entry.name for entry in islice(entries, _MOST_FILES)}  # more files can only be abuse
        except FileNotFoundError:
            return {}
        names.update(f"{name}{_ENDING}" for name in self._known)  # scandir may omit a file that is replaced meanwhile
        files = {}
        for name in names:
            if not name.startswith(checksummed_json.DRAFT):
                with suppress(FileNotFoundError):
                    files[name] = (self._path / name).lstat()
        return files

    def _read_file(self, file: str, before: _Known | None, found: os.stat_result, now: float | None) -> _Known | None:
        """What a consumer's file says now; None where it has been deleted."""
        signature = (found.st_ino, found.st_mtime_ns, found.st_size)
        if before is not None and before.signature == signature:
            return before
        try:
            content = checksummed_json.load(self._path / file) if found.st_size <= _MOST_BYTES else None
        except checksummed_json.DocumentDamaged:
            content = None
        except FileNotFoundError:
            return None
        except OSError as error:  # the next look tries again
            return replace(before or _Known((0, 0, 0), now), why=f"cannot be read: {error.strerror}")
        if content is None:
            return _Known(signature, now, why="is damaged")
        offset = content.get("offset")
        if type(offset) is not int or not 1 <= offset <= NEVER:
            return _Known(signature, now, why="has no valid offset")
        return _Known(signature, now, offset)

    def _note_ignored(self, ignored: dict[str, str]) -> None:
        self.news += [Ignored(file, why) for file, why in ignored.items() if self._ignored.get(file) != why]
        self._ignored = ignored
