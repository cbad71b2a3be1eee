"""Verifies a log: every row's checksum, the order of offsets, seals, indexes and the mark.

It only reads and takes no lock, so a server may have the log open. Segments that the server deletes or replaces
meanwhile are not reported as damage.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from app.history import mark, segment
from app.history.documents import DocumentDamaged
from app.history.folder import Damage, FolderUnusable, Identity, segment_files
from app.history.rows import walk
from app.history.seals import BLOCK_BYTES, Seal, seal_path

Tell = Callable[[int, int], None]

_MOST_DAMAGE = 1_000


@dataclass(slots=True)
class Verdict:
    """The result of `verify`.

    segments, rows  how many were checked
    last            the last offset found
    damage          what is damaged or missing, the first 1,000 faults
    holes           ranges of offsets known to be lost permanently, both ends included; every reader gets them as gaps
    """

    segments: int = 0
    rows: int = 0
    last: int = 0
    damage: list[Damage] = field(default_factory=list)
    holes: tuple[tuple[int, int], ...] = ()

    def add(self, first: int, last: int, file: str, what: str) -> None:
        """Add a fault to `damage`, unless it has very many already."""
        if len(self.damage) < _MOST_DAMAGE:
            self.damage.append(Damage(first, last, file, what))


def verify(path: Path, tell: Tell = lambda _done, _of: None) -> Verdict:
    """Check all of the log in the folder `path`. Blocks. `tell(done, total)` is called with bytes, as progress.

    Raises `FolderUnusable` where the folder has no log, or one of a later version of Halley, and `OSError`.
    """
    verdict = Verdict()
    marked = _marked(path / "mark")  # before the rows: later commits are above the mark
    files = segment_files(path) if path.is_dir() else []
    identity = _identity(path, verdict)  # after the files: what retention deletes meanwhile is not missing
    sizes = [_size(file) for _, file in files]
    firsts = [first for first, _ in files]
    done = 0
    is_begin_known = identity is not None and identity.first > 0
    if identity is not None and is_begin_known:
        verdict.last = identity.first - 1
    for (first, file), following, size in zip(files, [*firsts[1:], None], sizes, strict=True):
        if verdict.segments or is_begin_known:
            _continues(verdict, file.name, first)
        before, of = done, sum(sizes)
        look = _Look(file, first, following, identity, verdict, lambda share: tell(int(before + share * size), of))  # noqa: B023 - called in this turn
        look.all()
        done += size
        tell(done, of)
    if marked > verdict.last and (verdict.segments or marked) and not _is_hole(verdict, verdict.last + 1, marked):
        verdict.add(verdict.last + 1, marked, "mark", "was committed but is missing")
    return verdict


def _identity(path: Path, verdict: Verdict) -> Identity | None:
    try:
        identity = Identity.load(path / "log.json")
    except FileNotFoundError:
        raise FolderUnusable(f"there is no log in {path}") from None
    except NotADirectoryError:
        raise FolderUnusable(f"{path} is not a folder") from None
    except DocumentDamaged as damaged:
        verdict.add(0, 0, "log.json", str(damaged))
        return None
    verdict.holes = identity.holes
    return identity


def _continues(verdict: Verdict, name: str, first: int) -> None:
    missing = (verdict.last + 1, first - 1)
    if missing[0] <= missing[1] and not _is_hole(verdict, *missing):
        verdict.add(*missing, name, "missing before this segment")


def _is_hole(verdict: Verdict, first: int, last: int) -> bool:
    return any(hole_first <= first and last <= hole_last for hole_first, hole_last in verdict.holes)


class _Look:
    """The check of one segment. `tell(share)` is called with the share that is done, from 0 to 1."""

    def __init__(
        self,
        file: Path,
        first: int,
        following: int | None,
        identity: Identity | None,
        verdict: Verdict,
        tell: Callable[[float], None],
    ) -> None:
        self.file = file
        self.first = first
        self.following = following
        self.identity = identity
        self.verdict = verdict
        self.tell = tell
        self.last = first - 1

    def all(self) -> None:
        """Check everything in the segment, and add its faults to the verdict."""
        try:
            seal = self._seal()
            with closing(segment.read(self.file, is_sealed=seal is not None)) as connection:
                connection.execute("begin")  # a snapshot, since a server may go on writing
                self._whole(connection)
                self._rows(connection)
                if seal is not None:
                    self._fits(seal)
        except FileNotFoundError:
            self._gone()
            return
        except sqlite3.Error as error:
            if not self.file.exists():
                self._gone()
                return
            self._wrong(f"cannot be read: {error}")
            self.last = max(self.last, self.first if self.following is None else self.following - 1)
        self.verdict.segments += 1
        self.verdict.last = max(self.verdict.last, self.last)

    def _gone(self) -> None:
        """Skip a segment that retention has deleted meanwhile: the log begins behind it."""
        if self.following is not None:
            self.verdict.last = self.following - 1

    def _wrong(self, what: str, first: int = 0, last: int = 0) -> None:
        self.verdict.add(first, last, self.file.name, what)

    def _seal(self) -> Seal | None:
        """The segment's seal, after comparing its bytes; None if it has no readable seal."""
        try:
            seal = Seal.load(self.file)
        except FileNotFoundError:
            return None  # not sealed yet
        except DocumentDamaged as damaged:
            self.verdict.add(0, 0, seal_path(self.file).name, str(damaged))
            return None
        for block, damaged_block in enumerate(seal.damaged_blocks(self.file)):
            if damaged_block is not None:
                begin = damaged_block * BLOCK_BYTES
                self._wrong(f"bytes {begin} to {begin + BLOCK_BYTES - 1} are not what was sealed")
            self.tell(min(0.5, 0.5 * block / max(1, len(seal.digests))))
        return seal

    def _whole(self, connection: sqlite3.Connection) -> None:
        """Check the database as a whole: which log it belongs to, and whether its indexes match its rows."""
        meta = dict(connection.execute("select name, value from meta"))
        if isinstance(meta.get("format"), int) and meta["format"] > segment.FORMAT:
            raise FolderUnusable(f"{self.file} was written by a later version of Halley")
        if meta.get("first") != self.first:
            self._wrong(f"its first offset is {meta.get('first')}")
        if self.identity is not None and not self.identity.owns(meta.get("log_id")):
            self._wrong("belongs to another log")
        for (problem,) in connection.execute("pragma integrity_check(10)"):
            if problem != "ok":
                self._wrong(f"the database is damaged: {problem}")

    def _rows(self, connection: sqlite3.Connection) -> None:
        """Check each row's checksum and offset, and that `steps` lists every place where the clock was set back."""
        limit = connection.execute("select max(offset) from stored").fetchone()[0] or self.first - 1
        if self.following is not None:
            limit = min(limit, self.following - 1)
        steps = {offset for (offset,) in connection.execute("select offset from steps")}
        latest_us = None
        for rows, reached in walk(connection, self.first, limit):
            for row in rows:
                if row.offset != self.last + 1:
                    self._amiss(self.last + 1, row.offset - 1)
                elif latest_us is not None and row.time_us < latest_us and row.offset not in steps:
                    self._wrong(
                        "the clock was set back there, but the table steps does not list it", row.offset, row.offset
                    )
                latest_us = row.time_us
                self.last = row.offset
            self.verdict.rows += len(rows)
            self.tell(0.5 + 0.5 * (reached - self.first + 1) / max(1, limit - self.first + 1))
        if self.last < limit and self._amiss(self.last + 1, limit):
            self.last = limit

    def _amiss(self, first: int, last: int) -> bool:
        """Add missing rows to the verdict; False, and no fault, where they are in a known hole."""
        is_news = not _is_hole(self.verdict, first, last)
        if is_news:
            self._wrong("rows are missing or damaged", first, last)
        return is_news

    def _fits(self, seal: Seal) -> None:
        last = self.last if self.following is None else min(seal.last, self.following - 1)
        if seal.first != self.first or min(seal.last, last) != self.last:
            self._wrong(f"its seal is for offsets {seal.first} to {seal.last}", self.first, self.last)


def _marked(file: Path) -> int:
    """The offset in the mark (`mark.py`); 0 if the log has no readable mark. Does not create one."""
    try:
        return mark.read(file) or 0
    except FileNotFoundError:
        return 0


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
