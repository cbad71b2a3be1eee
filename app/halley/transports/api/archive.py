"""The log as the HTTP APIs read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from halley.broker.ports import Erasure, Page, Query, Reader
from halley.history.row_filter import RowFilter
from halley.history.stored import Stored
from halley.transports.guard import Rejection
from halley.transports.head import RETRY_AFTER

Result = TypeVar("Result")

OFF = "history is off on this server"
ELSEWHERE = "this server keeps no rows of the log; ask one of its cluster that is not a front"
BUSY = "reading the history took too long; try again later"
UNREADABLE = "the history cannot be read at the moment; try again later"


class NoHistory(Exception):
    """The history is off on this server, or not open."""


class Archive(Protocol):
    """A log of which pages can be read. Its coroutines do their blocking work on threads, or ask other servers."""

    @property
    def start(self) -> int:
        """The first offset that is still there, even if it is too old to be shown to clients."""

    @property
    def head(self) -> int:
        """The last committed offset."""

    @property
    def local(self) -> LocalArchive | None:
        """The log with all its rows; None if they are on other servers only."""

    async def flush(self) -> None:
        """Return when every event published before is committed or refused, or its wait for the commit timed out."""

    async def read(self, query: Query, reader: Reader) -> Page:
        """One page of the history, when it is the reader's turn.

        Raises `UnknownPublication`, `NobodyReads`, and `OSError`: `TimeoutError` after `history.read_s`, another one
        where a resource is short.
        """


class LocalArchive(Archive, Protocol):
    """A log of which every row can be read."""

    @property
    def log_id(self) -> str:
        """The unique id of this log."""

    @property
    def holes(self) -> list[tuple[int, int]]:
        """Ranges of offsets, first and last, that were lost in an earlier accident and cannot be restored."""

    @property
    def damage(self) -> list[tuple[int, int]]:
        """Ranges of offsets, first and last, in which rows are missing, or may be, for another reason than `holes`."""

    @property
    def consumers(self) -> Mapping[str, int]:
        """The consumers of the log, by name, each with the offset that it reads next."""

    async def report(self, consumer: str, offset: int) -> None:
        """Note that `consumer` reads `offset` next. Raises `TooManyConsumers`, `TimeoutError`, `OSError`."""

    async def forget(self, consumer: str) -> bool:
        """Delete a consumer, for which retention waits; False if there is none. Raises `TimeoutError`, `OSError`."""

    async def in_thread(self, reader: Reader, work: Callable[[], Result]) -> Result:
        """Have a thread do `work`, which reads the log and blocks, when it is the reader's turn. Raises as `read`."""

    def rows(self, first: int, last: int) -> Iterator[list[Stored]]:
        """The stored rows from offset `first` to `last`, in batches of bounded size. Blocks."""

    def next_rows(self, first: int, last: int, wanted: RowFilter) -> tuple[list[Stored], int]:
        """The next of the wanted rows from offset `first` to `last`, and the last offset that was read for them.

        There may be more behind that offset, up to `last`. Blocks, for a bounded time. Raises `OSError`.
        """

    async def absent(self) -> Sequence[str]:
        """The names of servers with the same log that have not erased what was erased until now, and will later."""

    async def purge(self, erasure: Erasure, progress: Callable[[int, int], None], /) -> int:
        """Erase events and return their number.

        A thread calls `progress` with the number of offsets that are done and the number of all. A purge runs to its
        end even if its caller is cancelled. Raises `CannotPurge`, `OSError`.
        """


def unread(error: OSError) -> Rejection:
    """The rejection (503) of a request for which the history could not be read in time, or for want of a resource."""
    if isinstance(error, TimeoutError):
        return Rejection(503, BUSY, headers=(RETRY_AFTER,), limit="read_s")
    return Rejection(503, UNREADABLE, headers=(RETRY_AFTER,))
