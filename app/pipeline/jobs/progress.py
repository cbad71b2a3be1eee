"""The progress of a job after each of its turns, and the name of the job as a consumer of the log."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple


class Progress(NamedTuple):
    """The progress after a turn.

    next    the first offset that is not done yet
    head    the first offset beyond the log's end, when the turn began
    rows    the number of rows that the turn has done
    took_s  how long the turn took, in seconds
    """

    next: int
    head: int
    rows: int
    took_s: float

    @property
    def lag(self) -> int:
        """The number of events in the log that were not done when the turn began and still are not."""
        return max(0, self.head - self.next)


def turns_until(wanted: int, turns: Iterator[Progress]) -> Iterator[Progress]:
    """Yield a job's turns until all offsets below `wanted` are done."""
    for progress in turns:
        yield progress
        if progress.next >= wanted:
            return


def consumer(job: str, lake: Path) -> str:
    """Return the consumer name of a job on a lake, unique by lake: several lakes may be made from one log."""
    return f"{job}-{blake2b(str(lake.absolute()).encode(), digest_size=4).hexdigest()}"
