"""The history as the HTTP paths beside Bayeux see it: what they ask of the house, which has the log and the threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
        """The first offset that is still there."""

    @property
    def head(self) -> int:
        """The last committed offset."""

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
