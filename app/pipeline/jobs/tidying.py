"""Compaction beside a live ingest: on a thread of its own, so that no batch waits for it, and ended where it stands.

Nothing depends on it: what fails, or was not finished, is left for the next look, or for `halley pipeline compact`.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from app.pipeline.errors import PipelineError
from app.pipeline.lake import lock, upkeep

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from app.settings import Pipeline

_TABLES = ("events", "rollups")
"""Those that grow with every commit; the others are small."""

_END_S = 60.0
"""For the batch of rows, or the file, that is under way at the end."""


class _Ended(Exception):
    """Nobody wants it any more."""


class Tidying:
    """What keeps one lake's files few.

    compacted  files that are no more since fewer have their rows
    failed     compactions that could not be finished
    """

    def __init__(self, lake: Path, options: Pipeline) -> None:
        self.compacted = self.failed = 0
        self._lake = lake
        self._options = options
        self._end = threading.Event()

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Within the block it is done, every `compact_s`; where that is 0, it is not."""
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
                except lock.Busy:
                    continue  # somebody does it, or erases
                except (PipelineError, OSError):
                    self.failed += 1  # a disk that is full ends ingest, which says so better

    def _go_on(self, _done: int, _of: int) -> None:
        if self._end.is_set():
            raise _Ended
