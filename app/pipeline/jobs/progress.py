"""How far a job is, after each of its turns, and by which name the log knows it."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Progress(NamedTuple):
    """After a turn: `next` is the first offset not done yet, `head` where the log ended when the turn began.

    rows, took_s   what the turn has done, and how long that was
    """

    next: int
    head: int
    rows: int
    took_s: float

    @property
    def lag(self) -> int:
        """Events in the log that are not done yet, or were not when it was looked at."""
        return max(0, self.head - self.next)


def turns_until(wanted: int, turns: Iterator[Progress]) -> Iterator[Progress]:
    """A job's turns until all below that offset is done."""
    for progress in turns:
        yield progress
        if progress.next >= wanted:
            return


def consumer(job: str, lake: Path) -> str:
    """What the log calls a job on a lake: two lakes may be made from one log, and neither speaks for the other."""
    return f"{job}-{blake2b(str(lake.absolute()).encode(), digest_size=4).hexdigest()}"
