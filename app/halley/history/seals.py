"""Seals: a sealed segment is not written any more, and a file next to it has the digests of its bytes.

A seal is a file (`checksummed_json.py`) named like its segment, with the offsets in the segment and a digest of
each block. At start only the size is compared; the digests are compared before the segment is read for the first
time (`segment_reader.py`), and when an operator verifies the log. A thread seals segments, so that the writer does not
wait.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import zip_longest
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Self

from halley.history import checksummed_json, segment
from halley.history.folder import Folder, Segment
from halley.history.segment import SegmentBusy, SegmentWriter

BLOCK_BYTES = 65_536
_DIGEST_BYTES = 16
_READ_ONLY = 0o400
_RETRY_S = 1.0
_MOST_ABANDONED = 64


@dataclass(frozen=True, slots=True)
class Seal:
    """The content of a segment when it was sealed.

    log_id         the id of the log that wrote it
    first, last    offsets; `last` is the last that counts
    nbytes         the size of the file in bytes
    digests        one for each block of `BLOCK_BYTES`: BLAKE2b, 16 bytes, as hex

    The seals of earlier versions also have numbers of rows and times, which nobody reads.
    """

    log_id: str
    first: int
    last: int
    nbytes: int
    digests: tuple[str, ...]

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the seal of the segment at `path`. Raises `DocumentDamaged`, `OSError`."""
        content = checksummed_json.load(seal_path(path))
        try:
            return cls(
                content["log_id"], content["first"], content["last"], content["nbytes"], tuple(content["digests"])
            )
        except (KeyError, TypeError):
            raise checksummed_json.DocumentDamaged(f"{seal_path(path).name} is damaged") from None

    def save(self, path: Path) -> None:
        """Write the seal next to the segment at `path`. Raises `OSError`."""
        checksummed_json.save(seal_path(path), asdict(self))

    def matches(self, path: Path) -> bool:
        """Whether every byte of a segment is as it was sealed (0.1 s for 64 MiB). Raises `OSError`."""
        return not any(True for _ in self.damaged_blocks(path))

    def damaged_blocks(self, path: Path) -> Iterator[int]:
        """The numbers of the blocks that differ from the seal, or are missing or too many. Raises `OSError`."""
        for block, (sealed, found) in enumerate(zip_longest(self.digests, digests_of(path))):
            if sealed != found:
                yield block


def seal_path(path: Path) -> Path:
    """The path of the seal of the segment at `path`."""
    return path.with_suffix(".seal")


def digests_of(path: Path) -> Iterator[str]:
    """The digest of each block of a file. Raises `OSError`."""
    with path.open("rb", buffering=0) as file:
        while block := file.read(BLOCK_BYTES):
            yield blake2b(block, digest_size=_DIGEST_BYTES).hexdigest()


def seal(path: Path, log_id: str, first: int, last: int, writer: segment.SegmentWriter | None = None) -> Seal:
    """Seal a full segment; `writer`, if given, has it open and stays open.

    Raises `sqlite3.Error`, `OSError`, and `SegmentBusy` while the segment is being read. It may be interrupted at any
    point, and repeated.
    """
    if writer is not None:
        writer.finish()
    elif not segment.is_finished(path):
        with closing(segment.reopen(path)) as opened:
            opened.finish()
    made = Seal(log_id, first, last, path.stat().st_size, tuple(digests_of(path)))
    made.save(path)
    if writer is None:
        clear(path)
    return made


def clear(path: Path) -> None:
    """Delete SQLite's companion files of a sealed segment, and make it read-only. Raises `OSError`."""
    segment.delete_companions(path)  # a process that has them open keeps them
    path.chmod(_READ_ONLY)


class Sealer:
    """Seals segments on a separate thread; one that is being read is tried again every second."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._inbox: SimpleQueue[tuple[Segment, SegmentWriter | None] | None] = SimpleQueue()
        self._waiting: list[tuple[Segment, SegmentWriter | None]] = []
        self._abandoned: deque[sqlite3.Connection] = deque()
        self.failures = 0
        self._thread = Thread(target=self._run, name="history-sealer", daemon=True)
        self._thread.start()

    def put(self, segment: Segment, writer: SegmentWriter | None = None) -> None:
        """Queue a listed segment to be sealed; `writer`, if given, has it open and is closed then. Does not wait."""
        self._inbox.put((segment, writer))

    def abandon(self, writer: SegmentWriter) -> None:
        """Leave a segment's files as they are after a failure (`SegmentWriter.abandon`). For any thread."""
        self._abandoned.append(writer.abandon())
        if len(self._abandoned) > _MOST_ABANDONED:
            self._abandoned.popleft().close()

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
                self.abandon(writer)
        for connection in self._abandoned:
            connection.close()

    def _seal(self, segment: Segment, writer: SegmentWriter | None) -> bool:
        """Seal a segment; False if it is busy and must be tried again."""
        assert segment.last is not None
        try:
            is_listed = segment in self._folder.segments  # otherwise it was removed, or found damaged
            if is_listed:
                made = seal(segment.path, self._folder.log_id, segment.first, segment.last, writer)
                self._folder.replace(segment, is_sealed=True, nbytes=made.nbytes)
            if writer is not None:
                writer.close()
            if is_listed:
                clear(segment.path)
        except SegmentBusy:
            return False
        except (sqlite3.Error, OSError):
            self.failures += 1  # the file is still good; it is sealed when the folder is opened again
            if writer is not None:
                self.abandon(writer)
        return True
