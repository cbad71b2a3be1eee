"""The thread that seals full segments, so that the writer need not wait; it retries a segment that is being read."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from queue import Empty, SimpleQueue
from threading import Thread

from app.history import seals
from app.history.folder import Folder, Segment
from app.history.segment import SegmentBusy, SegmentWriter

_RETRY_S = 1.0
_MOST_ABANDONED = 64


class Sealer:
    """Seals segments on a separate thread; one that is being read is tried again every second."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._inbox: SimpleQueue[tuple[Segment, SegmentWriter | None] | None] = SimpleQueue()
        self._waiting: list[tuple[Segment, SegmentWriter | None]] = []
        self._abandoned: list[sqlite3.Connection] = []
        self.failures = 0
        self._thread = Thread(target=self._run, name="history-sealer", daemon=True)
        self._thread.start()

    def put(self, segment: Segment, writer: SegmentWriter | None = None) -> None:
        """Queue a listed segment to be sealed; `writer`, if given, has it open and is closed then. Does not wait."""
        self._inbox.put((segment, writer))

    def close(self, timeout_s: float) -> None:
        """Seal what can be sealed now, and wait for that at most `timeout_s` seconds.

        The rest is sealed when the folder is opened again.
        """
        self._inbox.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        is_open = True
        while is_open:
            try:
                item = self._inbox.get(timeout=_RETRY_S if self._waiting else None)
            except Empty:
                pass
            else:
                is_open = item is not None
                if item is not None:
                    self._waiting.append(item)
            self._waiting = [each for each in self._waiting if not self._seal(*each)]
        for _, writer in self._waiting:
            if writer is not None:
                self._abandon(writer)
        for connection in self._abandoned:
            connection.close()

    def _seal(self, segment: Segment, writer: SegmentWriter | None) -> bool:
        """Seal a segment; False if it is busy and must be tried again."""
        assert segment.last is not None
        try:
            is_listed = segment in self._folder.segments  # otherwise it was removed meanwhile
            if is_listed:
                seal = seals.seal(segment.path, self._folder.log_id, segment.first, segment.last, writer)
                self._folder.replace(segment, replace(segment, is_sealed=True, nbytes=seal.nbytes))
            if writer is not None:
                writer.close()
            if is_listed:
                seals.clear(segment.path)
        except SegmentBusy:
            return False
        except (sqlite3.Error, OSError):
            self.failures += 1  # the file is still good; it is sealed when the folder is opened again
            if writer is not None:
                self._abandon(writer)
        return True

    def _abandon(self, writer: SegmentWriter) -> None:
        self._abandoned.append(writer.abandon())
        if len(self._abandoned) > _MOST_ABANDONED:
            self._abandoned.pop(0).close()
