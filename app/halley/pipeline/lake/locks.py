"""Locks between processes that work on one lake: the operating system's (flock), so a killed process holds none.

In an object store there are none, and these do nothing: `commit.py` says what takes their place.

    ingest   one ingest per source of a lake, for as long as it runs
    batch    shared by ingests, from the first row of a batch read to its commit; an erasure waits for the end of all,
             and lets none begin
    rewrite  replacing files by others: delta-rs does not notice when two processes replace the same files
    files    shared by all that add files to a table, until these are committed; vacuum holds it exclusively, so that it
             never takes a commit's files for left-overs (T5)

Locks are taken in this order, each once. A process that waits is served before those that come later.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from halley.pipeline.errors import JobRejected
from halley.pipeline.lake.place import LakePath
from halley.pipeline.lake.tables import refusal

PATIENCE_S = 600.0
"""How long to wait for another process at most; the longest tasks are a batch and the deletion of many files."""

_POLL_S = 0.01


class Busy(JobRejected):
    """Another process holds the lock."""


def ingest(lake: LakePath, source: str = "") -> AbstractContextManager[None]:
    """Hold the lock of the only ingest of a source. Raises `Busy` without waiting if another one runs."""
    name, what = (f"ingest-{source}", f"an ingest of source {source}") if source else ("ingest", "an ingest")
    return _lock(lake, name, fcntl.LOCK_EX, 0, what + " into {lake} is already running{by}")


def batch(lake: LakePath, *, alone: bool = False) -> AbstractContextManager[None]:
    """Hold the lock for a batch; with `alone`, to prevent all batches. Raises `Busy`."""
    mode = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
    return _lock(lake, "batch", mode, PATIENCE_S, "a batch or an erasure in {lake} has not ended{by}")


def rewrite(lake: LakePath) -> AbstractContextManager[None]:
    """Hold the lock for replacing files by others. Raises `Busy` without waiting if another process holds it."""
    return _lock(lake, "rewrite", fcntl.LOCK_EX, 0, "another process already compacts {lake}, or erases from it{by}")


def files(lake: LakePath, *, alone: bool = False) -> AbstractContextManager[None]:
    """Hold the lock for adding files to a table; with `alone`, to prevent all others from that. Raises `Busy`."""
    mode = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
    return _lock(lake, "files", mode, PATIENCE_S, "a commit or a vacuum in {lake} has not ended{by}")


def _lock(lake: LakePath, name: str, mode: int, patience_s: float, sentence: str) -> AbstractContextManager[None]:
    return _held(lake, name, mode, patience_s, sentence) if isinstance(lake, Path) else nullcontext()


@contextmanager
def _held(lake: Path, name: str, mode: int, patience_s: float, sentence: str) -> Iterator[None]:
    folder = lake / ".locks"
    deadline = time.monotonic() + patience_s
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
    """Open and lock a file; return its descriptor. Raises `BlockingIOError` at the deadline, `OSError`."""
    number = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        while True:
            try:
                fcntl.flock(number, mode | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_POLL_S)
        os.ftruncate(number, 0)  # of a shared lock nobody is named
        if mode == fcntl.LOCK_EX:
            os.pwrite(number, str(os.getpid()).encode(), 0)
    except BaseException:
        os.close(number)
        raise
    return number


def _holder(path: Path) -> str:
    with suppress(OSError):
        if (text := path.read_text()).isdigit():
            return f" (process {text})"
    return ""
