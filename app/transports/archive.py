"""The history as the HTTP paths beside Bayeux see it: what they ask of the house, which has the log and the threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from app.broker.log import Page, Query
    from app.history.purge import Erasure
    from app.history.stored import Stored

Result = TypeVar("Result")


class Archive(Protocol):
    """A log that can be read. What takes time is awaited, and done by threads."""

    @property
    def log_id(self) -> str:
        """Names this log among all."""

    @property
    def start(self) -> int:
        """The first offset that is still on disk, whether or not it is too old to be shown to clients."""

    @property
    def head(self) -> int:
        """The last committed offset."""

    @property
    def holes(self) -> list[tuple[int, int]]:
        """Offsets, first and last, that were lost in an earlier accident and never come back."""

    @property
    def damage(self) -> list[tuple[int, int]]:
        """Likewise those at which rows are known to be missing for another reason, or may be."""

    @property
    def consumers(self) -> Mapping[str, int]:
        """Who reads the log from outside, and the offset that it reads next."""

    async def report(self, consumer: str, offset: int) -> None:
        """A consumer reads that offset next. Raises `TooManyConsumers`, `TimeoutError`, `OSError`."""

    async def forget(self, consumer: str) -> bool:
        """Wait for a consumer no more; False if there is none of that name. Raises `TimeoutError`, `OSError`."""

    async def settle(self) -> None:
        """Returns when all that was published before is committed or refused, or has had its time."""

    async def read(self, query: Query) -> Page:
        """One page. Raises `UnknownPublication`, and `TimeoutError` past its deadline."""

    async def aside(self, work: Callable[[], Result]) -> Result:
        """Have a thread of the readers do something that blocks. Raises `TimeoutError` likewise."""

    def rows(self, first: int, last: int) -> Iterator[list[Stored]]:
        """Blocks: the stored rows between two offsets, in batches of bounded size."""

    async def purge(self, erasure: Erasure, tell: Callable[[int, int], None]) -> int:
        """Erase events; returns how many that were.

        `tell` is called by a thread with how many offsets are done, and of how many. It is carried to its end even if
        nobody awaits it any more. Raises `PurgeUnderWay`, `OSError`.
        """
