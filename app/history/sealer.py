"""The thread that seals full segments, so that the writer need not wait; one that is being read has its turn later."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

from app.history import seals
from app.history.segment import SegmentBusy, SegmentWriter

if TYPE_CHECKING:
    from app.history.folder import Folder, Segment

_RETRY_S = 1.0


class Sealer:
    """Seals what it is given, in the order in which that is possible."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._inbox: SimpleQueue[tuple[Segment, SegmentWriter | None] | None] = SimpleQueue()
        self._waiting: list[Segment] = []
        self.sealed = 0
        self.failures = 0
        self._thread = Thread(target=self._run, name="history-sealer", daemon=True)
        self._thread.start()

    def put(self, segment: Segment, writer: SegmentWriter | None = None) -> None:
        """Have a listed segment sealed; `writer` is what had it open. Returns at once."""
        self._inbox.put((segment, writer))

    def close(self, timeout_s: float) -> None:
        """Seal what can be sealed now; the rest has its turn when the folder is opened again."""
        self._inbox.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            try:
                item = self._inbox.get(timeout=_RETRY_S if self._waiting else None)
            except Empty:
                pass
            else:
                if item is None:
                    break
                segment, writer = item
                if self._let_go(writer):
                    self._waiting.append(segment)
            self._waiting = [segment for segment in self._waiting if not self._seal(segment)]

    def _let_go(self, writer: SegmentWriter | None) -> bool:
        try:
            if writer is not None:
                writer.close()
        except sqlite3.Error:
            self.failures += 1
            return False  # what is on disk is still good, and must not be written again
        return True

    def _seal(self, segment: Segment) -> bool:
        """Whether it is done with."""
        if segment not in self._folder.segments:
            return True  # removed meanwhile
        assert segment.last is not None
        try:
            seal = seals.seal(segment.path, self._folder.log_id, segment.first, segment.last)
        except SegmentBusy:
            return False
        except (sqlite3.Error, OSError):
            self.failures += 1
            return True
        self._folder.replace(segment, replace(segment, is_sealed=True, nbytes=seal.nbytes))
        self.sealed += 1
        return True
