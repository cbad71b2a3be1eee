"""Who must not be at work at the same time. Locks are the operating system's (flock), so a killed process holds none.

    ingest   one ingest a lake, for as long as it runs
    batch    a batch from the first row read to its commit; whoever erases waits for its end, and lets none begin
    rewrite  putting files in the place of others: delta-rs does not notice two who replace the same ones
    files    shared by all that bring files into a table until they are committed; vacuum has it alone, so that it never
             takes a commit's files for left-overs (T5)

Taken in this order, each once. Who waits is served before those that come later.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from app.pipeline.errors import Refused
from app.pipeline.lake.tables import refusal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE_S = 600.0
"""To wait for others at most; the longest thing that is waited for is a batch, or the deletion of many files."""

_LOOK_S = 0.01


class Busy(Refused):
    """Somebody else is at it."""


@contextmanager
def ingest(lake: Path) -> Iterator[None]:
    """Be the one ingest. Raises `Busy` at once if there is one."""
    with _held(lake, "ingest", fcntl.LOCK_EX, 0, "an ingest into {lake} is running already{by}"):
        yield


@contextmanager
def batch(lake: Path, patience_s: float | None = None) -> Iterator[None]:
    """No ingest is in the middle of a batch, but who holds this. Raises `Busy`."""
    with _held(lake, "batch", fcntl.LOCK_EX, patience_s, "a batch or an erasure in {lake} has not ended{by}"):
        yield


@contextmanager
def rewrite(lake: Path) -> Iterator[None]:
    """Nobody else puts files in the place of others. Raises `Busy` at once if somebody does."""
    with _held(lake, "rewrite", fcntl.LOCK_EX, 0, "somebody compacts {lake}, or erases from it, already{by}"):
        yield


@contextmanager
def files(lake: Path, *, alone: bool = False, patience_s: float | None = None) -> Iterator[None]:
    """Bring files into a table; or be sure that nobody does. Raises `Busy`."""
    mode = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
    with _held(lake, "files", mode, patience_s, "a commit or a vacuum in {lake} has not ended{by}"):
        yield


@contextmanager
def _held(lake: Path, name: str, mode: int, patience_s: float | None, sentence: str) -> Iterator[None]:
    folder = lake / ".locks"
    deadline = time.monotonic() + (PATIENCE_S if patience_s is None else patience_s)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        gate = _take(folder / f"{name}.gate", fcntl.LOCK_EX, deadline)
        try:
            number = _take(folder / name, mode, deadline)
        finally:
            os.close(gate)
    except BlockingIOError:
        raise Busy(sentence.format(lake=lake, by=_holder(folder / name))) from None
    except OSError as error:
        raise refusal(lake, error) from error
    try:
        yield
    finally:
        os.close(number)


def _take(path: Path, mode: int, deadline: float) -> int:
    """An open file that is locked. Raises `BlockingIOError` at the deadline, `OSError`."""
    number = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        while True:
            try:
                fcntl.flock(number, mode | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_LOOK_S)
        if mode == fcntl.LOCK_EX:
            os.ftruncate(number, 0)
            os.pwrite(number, str(os.getpid()).encode(), 0)
    except BaseException:
        os.close(number)
        raise
    return number


def _holder(path: Path) -> str:
    try:
        text = path.read_text()
    except OSError:
        return ""
    return f" (process {text})" if text.isdigit() else ""
