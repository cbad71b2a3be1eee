"""The history as the HTTP APIs see it: an interface to the log and the threads that read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, TypeVar

from app.broker.erasure import Erasure
from app.broker.log import Page, Query
from app.history.stored import Stored

Result = TypeVar("Result")


class NoHistory(Exception):
    """The history is off on this server, or not open."""


class Archive(Protocol):
    """A log that can be read. Its coroutines do their blocking work on threads."""

    @property
    def log_id(self) -> str:
        """The unique id of this log."""

    @property
    def start(self) -> int:
        """The first offset that is still on disk, even if it is too old to be shown to clients."""

    @property
    def head(self) -> int:
        """The last committed offset."""

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
        """Delete a consumer, so that retention no longer waits for it; False if there is none of that name.

        Raises `TimeoutError`, `OSError`.
        """

    async def settle(self) -> None:
        """Return when every event published before is committed or refused, or its wait for the commit timed out."""

    async def read(self, query: Query) -> Page:
        """One page of the history. Raises `UnknownPublication`, and `TimeoutError` after `history.read_s`."""

    async def aside(self, work: Callable[[], Result]) -> Result:
        """Run blocking `work` on a reader thread and return the result. Raises `TimeoutError` after `read_s`."""

    def rows(self, first: int, last: int) -> Iterator[list[Stored]]:
        """The stored rows from offset `first` to `last`, in batches of bounded size. Blocks."""

    async def purge(self, erasure: Erasure, tell: Callable[[int, int], None]) -> int:
        """Erase events and return their number.

        A thread calls `tell` with the number of offsets that are done and the number of all. A purge runs to its end
        even if its caller is cancelled. Raises `PurgeUnderWay`, `OSError`.
        """
