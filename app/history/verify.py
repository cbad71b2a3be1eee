"""Whether a log is what was written: every row's checksum, the order of offsets, seals, indexes and the mark.

It only reads and takes no lock, so the log may be one that a server has open. What a server has removed or replaced
meanwhile is no fault.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from app.history import mark, segment
from app.history.documents import DocumentDamaged
from app.history.folder import Damage, FolderUnusable, Identity, segment_files
from app.history.rows import walk
from app.history.seals import BLOCK_BYTES, Seal, seal_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Tell = Callable[[int, int], None]

_MOST_DAMAGE = 1_000


@dataclass(slots=True)
class Verdict:
    """What was looked at, and what is wrong with it.

    holes   offsets, first and last, that were lost in an earlier accident; known, and told to every reader
    """

    segments: int = 0
    rows: int = 0
    last: int = 0
    damage: list[Damage] = field(default_factory=list)
    holes: tuple[tuple[int, int], ...] = ()

    def add(self, first: int, last: int, file: str, what: str) -> None:
        """Something is wrong; of very much not everything is told."""
        if len(self.damage) < _MOST_DAMAGE:
            self.damage.append(Damage(first, last, file, what))


def verify(path: Path, tell: Tell = lambda _done, _of: None) -> Verdict:
    """Look at all of the log in a folder; `tell` hears how many bytes are done, and of how many.

    Raises `FolderUnusable` where there is no log, or one of a later version, and `OSError`.
    """
    verdict = Verdict()
    marked = _marked(path / "mark")  # before the rows: what is committed later is above it
    identity = _identity(path, verdict)
    files = segment_files(path)
    sizes = [_size(file) for _, file in files]
    firsts = [first for first, _ in files]
    done = 0
    for (first, file), following, size in zip(files, [*firsts[1:], None], sizes, strict=True):
        if verdict.segments:
            _continues(verdict, file.name, first)
        before, of = done, sum(sizes)
        look = _Look(file, first, following, identity, verdict, lambda share: tell(int(before + share * size), of))  # noqa: B023 - called in this turn
        look.all()
        done += size
        tell(done, of)
    if marked > verdict.last and (verdict.segments or marked) and not _is_hole(verdict, verdict.last + 1, marked):
        verdict.add(verdict.last + 1, marked, "mark", "was committed, and is not there")
    return verdict


def _identity(path: Path, verdict: Verdict) -> Identity | None:
    try:
        identity = Identity.load(path / "log.json")
    except FileNotFoundError:
        raise FolderUnusable(f"there is no log in {path}") from None
    except NotADirectoryError:
        raise FolderUnusable(f"{path} is no folder") from None
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
    """One segment. `tell` hears the share of it that is done."""

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
        """Look at everything in it, and note what is wrong."""
        try:
            seal = self._seal()
            with closing(segment.read(self.file, is_sealed=seal is not None)) as connection:
                connection.execute("begin")  # one moment of it, though somebody may go on writing
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
        """Retention has removed it meanwhile; the log begins behind it."""
        if self.following is not None:
            self.verdict.last = self.following - 1

    def _wrong(self, what: str, first: int = 0, last: int = 0) -> None:
        self.verdict.add(first, last, self.file.name, what)

    def _seal(self) -> Seal | None:
        """Its seal, if it has one that can be read; its bytes are compared with it."""
        try:
            seal = Seal.load(self.file)
        except FileNotFoundError:
            return None  # not yet
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
        """The database as such: whose it is, and whether its indexes fit its rows."""
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
        """Each row's checksum and place, and that every step back of the clock is listed."""
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
                        "the clock went back there, and the table steps does not say so", row.offset, row.offset
                    )
                latest_us = row.time_us
                self.last = row.offset
            self.verdict.rows += len(rows)
            self.tell(0.5 + 0.5 * (reached - self.first + 1) / max(1, limit - self.first + 1))
        if self.last < limit and self._amiss(self.last + 1, limit):
            self.last = limit

    def _amiss(self, first: int, last: int) -> bool:
        """Rows are not there; False, and nothing is wrong, where that is known."""
        is_news = not _is_hole(self.verdict, first, last)
        if is_news:
            self._wrong("rows are missing or damaged", first, last)
        return is_news

    def _fits(self, seal: Seal) -> None:
        last = self.last if self.following is None else min(seal.last, self.following - 1)
        if seal.first != self.first or min(seal.last, last) != self.last:
            self._wrong(f"its seal speaks of {seal.first} to {seal.last}", self.first, self.last)


def _marked(file: Path) -> int:
    """The offset that the mark (`mark.py`) tells, without making one; 0 if there is none."""
    try:
        return mark.read(file) or 0
    except FileNotFoundError:
        return 0


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
