"""Runs Halley so that each turn of its event loop is timed: `python -m bench.turns FILE serve ...`.

The time is that of the loop's thread on a core, so it does not depend on what else the machine does. A turn is all that
the loop does between two waits for sockets: so long does it keep any other client waiting, at least. The loop is that
of asyncio, not uvloop's, whose turns cannot be timed from Python.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from pathlib import Path

from halley.cli import main
from halley.host import process

_WRITTEN_EVERY_S = 0.2


class TimedLoop(asyncio.SelectorEventLoop):
    """An event loop that writes the times of its turns to `file`, at intervals."""

    file: Path

    def __init__(self) -> None:
        super().__init__()
        self._turns_us: Counter[int] = Counter()
        self._written_s = time.monotonic()

    def _run_once(self) -> None:
        before_ns = time.thread_time_ns()
        super()._run_once()  # type: ignore[misc]  # asyncio's own, which has no types
        self._turns_us[(time.thread_time_ns() - before_ns) // 1_000] += 1
        now_s = time.monotonic()
        if now_s - self._written_s > _WRITTEN_EVERY_S:
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps([now_s, self._turns_us]) + "\n")
            self._turns_us.clear()
            self._written_s = now_s


def turns_us(file: Path, since_s: float) -> Counter[int]:
    """Return the times of the turns since then, by the monotonic clock, as counts by microsecond."""
    found: Counter[int] = Counter()
    for line in file.read_text(encoding="utf-8").splitlines():
        at_s, counts = json.loads(line)
        if at_s - _WRITTEN_EVERY_S > since_s:
            found.update({int(turn_us): count for turn_us, count in counts.items()})
    return found


if __name__ == "__main__":
    TimedLoop.file = Path(sys.argv.pop(1))
    process._loop_factory = lambda: TimedLoop
    main()
