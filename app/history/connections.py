"""The readers' connections to segments: a bounded pool of idle connections that are used again.

It also remembers which segments are verified. A flipped bit in an index makes rows vanish without an error, so all
digests of a sealed segment are checked before its index is used, once per process (0.1 s for 64 MiB).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

from app.history import segment as segments
from app.history.documents import DocumentDamaged
from app.history.folder import Damage
from app.history.opened import Opened, Unsound, is_passing
from app.history.ranges import joined
from app.history.seals import Seal

if TYPE_CHECKING:
    from app.history.folder import Folder, Segment

MOST_IDLE = 64
"""Idle connections at most. A log of 1 GiB has 16 segments; a connection may hold 512 KiB of pages."""


class Gone(Exception):
    """A segment was deleted, or replaced by another with its name; the folder lists the segments of now."""


class Connections:
    """A pool of connections to the segments of one folder, for any thread; each has one user at a time."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._changing = Lock()
        self._checking = Lock()
        self._listed = folder.segments
        self._idle: list[Opened] = []  # the most recently used one last
        self._believed: dict[Segment, bool] = {}

    def trusts(self, segment: Segment) -> bool:
        """Whether a segment's indexes may be used. Checks a sealed segment's digests at the first call, and blocks.

        The newest segment was checked when the log was opened. Raises `Gone`.
        """
        believed = self._believed.get(segment)
        if believed is None:
            with self._checking:
                believed = self._believed.get(segment)
                if believed is None:
                    believed = self._check(segment)
                    self._believed[segment] = believed
        return believed

    def _check(self, segment: Segment) -> bool:
        if not segment.is_sound or not segment.is_sealed:
            return segment.is_sound
        if joined(self._folder.identity.holes, segment.first, segment.last or 0):
            return False  # an index does not show missing rows, and a binary search must not run into them
        try:
            is_intact = not any(block is not None for block in Seal.load(segment.path).damaged_blocks(segment.path))
        except (OSError, DocumentDamaged):
            is_intact = False
        if segment not in self._folder.segments:
            raise Gone(segment.path)
        if not is_intact:
            self._note(segment, "does not match its digests; its rows are read one by one")
        return is_intact

    def distrust(self, segment: Segment) -> None:
        """Mark a segment as damaged: from now on it is read row by row."""
        if self._believed.get(segment) is not False:
            self._believed[segment] = False
            self._note(segment, "is malformed; its rows are read one by one")

    def _note(self, segment: Segment, what: str) -> None:
        if segment in self._folder.segments:
            self._folder.note(Damage(0, 0, segment.path.name, what))

    @contextmanager
    def open(self, segment: Segment) -> Iterator[Opened]:
        """A context manager with a connection to a segment that this thread alone uses inside the block.

        Raises `Gone`, `Unsound`, and `sqlite3.Error` where the system is short of a resource. If the block raises
        `Unsound`, the segment is read row by row from now on.
        """
        opened = self._take(segment) or self._connect(segment)
        is_kept = False
        try:
            yield opened
            is_kept = segment.is_sealed  # the writer can seal the newest segment only when no reader has it open
        except GeneratorExit:
            is_kept = segment.is_sealed
            raise
        except Unsound:
            self.distrust(segment)
            raise
        finally:
            if is_kept:
                self._give_back(opened)
            else:
                opened.close()

    def _connect(self, segment: Segment) -> Opened:
        try:
            return Opened(segments.read(segment.path, is_sealed=segment.is_sealed), segment)
        except sqlite3.Error as error:
            if segment not in self._folder.segments:
                raise Gone(segment.path) from error
            if is_passing(error) and segment.path.exists():
                raise
            self.distrust(segment)
            raise Unsound(segment.path) from error

    def _take(self, segment: Segment) -> Opened | None:
        with self._changing:
            for at in range(len(self._idle) - 1, -1, -1):
                if self._idle[at].segment is segment:
                    return self._idle.pop(at)
        return None

    def _give_back(self, opened: Opened) -> None:
        with self._changing:
            self._idle.append(opened)
            superfluous = self._idle.pop(0) if len(self._idle) > MOST_IDLE else None
        if superfluous is not None:
            superfluous.close()

    def prune(self) -> None:
        """Close idle connections to segments that are no longer listed: a deleted file uses disk while it is open."""
        listed = self._folder.segments
        if listed is self._listed:
            return
        alive = set(listed)
        with self._changing:
            gone = [opened for opened in self._idle if opened.segment not in alive]
            self._idle = [opened for opened in self._idle if opened.segment in alive]
            self._listed = listed
        for opened in gone:
            opened.close()
        with self._checking:
            self._believed = {segment: is_so for segment, is_so in self._believed.items() if segment in alive}

    def close(self) -> None:
        """Close all idle connections."""
        with self._changing:
            idle, self._idle = self._idle, []
        for opened in idle:
            opened.close()
