"""Compaction during a live ingest: on a separate thread, so that no batch waits for it, and aborted when ingest ends.

Nothing depends on it: a compaction that fails or is aborted is left to the next one, or to `halley pipeline compact`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.pipeline.errors import PipelineError
from app.pipeline.lake import locks, upkeep
from app.settings import Pipeline

_TABLES = ("events", "rollups")
"""The tables that grow with every commit; the others are small."""

_END_S = 60.0
"""How long to wait at the end for the batch of rows, or the file, that is being written."""


class _Ended(Exception):
    """The compaction is to be aborted."""


class Tidying:
    """The repeated compaction of one lake.

    compacted  by how many files the tables have become fewer
    failed     the number of compactions that failed
    """

    def __init__(self, lake: Path, options: Pipeline) -> None:
        self.compacted = self.failed = 0
        self._lake = lake
        self._options = options
        self._end = threading.Event()

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Compact every `compact_s` seconds during the block; never if that setting is 0."""
        self._end.clear()
        thread = threading.Thread(target=self._run, name="tidying", daemon=True)
        if self._options.compact_s:
            thread.start()
        try:
            yield
        finally:
            self._end.set()
            if thread.is_alive():
                thread.join(_END_S)

    def _run(self) -> None:
        while not self._end.wait(self._options.compact_s):
            for name in _TABLES:
                try:
                    done = upkeep.compact(self._lake, name, self._go_on, least=self._options.compact_files)
                    self.compacted += done.before - done.after
                except _Ended:
                    return
                except locks.Busy:
                    continue  # another process compacts or erases
                except (PipelineError, OSError):
                    self.failed += 1  # if the disk is full, ingest fails too, with a better message

    def _go_on(self, _done: int, _of: int) -> None:
        if self._end.is_set():
            raise _Ended
