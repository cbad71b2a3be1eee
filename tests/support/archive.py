"""Two implementations of `Archive` (`app/halley/transports/api/archive.py`) for tests: in memory, and a log on disk."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from halley.broker.events import Audience, Event
from halley.broker.names import matches
from halley.broker.ports import Page, UnknownPublication
from halley.history.rewriting import is_concerned
from halley.history.stored import event_of, row_of, tombstone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from halley.broker.ports import Erasure, Query, Reader
    from halley.history.history import History
    from halley.history.row_filter import RowFilter
    from halley.history.stored import Stored
    from support.server import Served

Result = TypeVar("Result")

BEGAN_US = 1_782_907_200_000_000
"""2026-07-01T12:00:00Z."""


class MemoryArchive:
    """An `Archive` with its rows in memory.

    It finds events as the docstrings of `Query` and `Page` say, by simple loops. A read looks at `at_once` offsets at
    most, and returns a short page then. If `fault` is set, the methods that would use the disk raise it.
    """

    def __init__(self, at_once: int = 1_000) -> None:
        self.log_id = "log-of-a-test"
        self.start = 1
        self.rows_of: list[Stored] = []
        self.gaps: list[tuple[int, int]] = []
        self.holes: list[tuple[int, int]] = []
        self.damage: list[tuple[int, int]] = []
        self.consumers: dict[str, int] = {}
        self.at_once = at_once
        self.settled = 0
        self.fault: Exception | None = None

    def record(self, topic: str, payload: str = "1", **fields: object) -> Stored:
        """Append one event, a second after the previous one; its publication is its offset times 1,000."""
        offset = self.head + 1
        audience = fields.pop("audience", None)
        assert audience is None or isinstance(audience, Audience)
        event = Event(topic, payload.encode(), audience=audience)
        event.time_us, event.publication = BEGAN_US + offset * 1_000_000, offset * 1_000
        for name, value in fields.items():
            setattr(event, name, value)
        self.rows_of.append(row_of(event, offset))
        return self.rows_of[-1]

    @property
    def head(self) -> int:
        """The last offset, or 0."""
        return len(self.rows_of)

    @property
    def local(self) -> MemoryArchive:
        """The archive itself."""
        return self

    async def report(self, consumer: str, offset: int) -> None:
        """Note that `consumer` reads `offset` next."""
        if self.fault is not None:
            raise self.fault
        self.consumers[consumer] = offset

    async def forget(self, consumer: str) -> bool:
        """Delete a consumer; False if there is none of that name."""
        if self.fault is not None:
            raise self.fault
        return self.consumers.pop(consumer, None) is not None

    async def flush(self) -> None:
        """Count the call; no event waits for its commit here."""
        self.settled += 1

    async def read(self, query: Query, _reader: Reader) -> Page:
        """Return one page."""
        if self.fault is not None:
            raise self.fault
        first, last = max(query.first, self.start), query.last
        for bound, is_low, step in (("from", True, 0), ("after", True, 1), ("before", False, -1), ("until", False, 0)):
            publication = getattr(query, f"{bound}_publication")
            if publication is not None:
                at = next((row.offset for row in self.rows_of if row.publication == publication), None)
                if at is None:
                    raise UnknownPublication
                first, last = (max(first, at + step), last) if is_low else (first, min(last, at + step))
        if query.is_reverse:
            seen = range(last, max(first, last - self.at_once + 1) - 1, -1)
        else:
            seen = range(first, min(last, first + self.at_once - 1) + 1)
        events: list[Event] = []
        reached = seen.start
        for offset in seen:
            if len(events) == query.limit:
                return Page(events, reached, is_end=False, gaps=self.gaps)
            reached = offset
            row = self.rows_of[offset - 1]
            if not row.is_purged and _is_wanted(query, event_of(row)):
                events.append(event_of(row))
        is_end = not seen or reached == (first if query.is_reverse else last)
        return Page(events, reached, is_end=is_end, gaps=self.gaps)

    async def in_thread(self, _reader: Reader, work: Callable[[], Result]) -> Result:
        """Do the work immediately, on the event loop."""
        return work()

    def rows(self, first: int, last: int) -> Iterator[list[Stored]]:
        """Yield the rows in batches of a hundred."""
        for offset in range(first, last + 1, 100):
            yield self.rows_of[offset - 1 : min(offset + 99, last)]

    def next_rows(self, first: int, last: int, wanted: RowFilter) -> tuple[list[Stored], int]:
        """Return the wanted ones of the next hundred rows."""
        reached = min(first + 99, last)
        rows = [row for rows in self.rows(first, reached) for row in rows]
        return [row for row in rows if wanted.matches(row)], reached

    async def absent(self) -> Sequence[str]:
        """Return the other servers with this log: none."""
        return ()

    async def purge(self, erasure: Erasure, tell: Callable[[int, int], None]) -> int:
        """Replace the erased rows by tombstones, and return their number."""
        if self.fault is not None:
            raise self.fault
        erased = 0
        for at, row in enumerate(self.rows_of):
            if is_concerned(row, erasure):
                self.rows_of[at] = tombstone(row)
                erased += 1
            tell(at + 1, self.head)
        return erased


class DiskArchive:
    """An `Archive` that is a log on disk, whose blocking work is done by threads."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.log_id = history.log_id
        self.settled = 0

    @property
    def start(self) -> int:
        """The first offset on disk."""
        return self.history.start

    @property
    def head(self) -> int:
        """The last committed offset."""
        return self.history.head

    @property
    def local(self) -> DiskArchive:
        """The archive itself."""
        return self

    @property
    def holes(self) -> list[tuple[int, int]]:
        """The ranges of offsets that the log has lost."""
        return self.history.holes

    @property
    def damage(self) -> list[tuple[int, int]]:
        """The ranges of offsets that are damaged, besides `holes`."""
        return self.history.damaged

    @property
    def consumers(self) -> Mapping[str, int]:
        """The consumers of the log, each with the offset that it reads next."""
        return self.history.consumers.positions

    async def report(self, consumer: str, offset: int) -> None:
        """Note that `consumer` reads `offset` next."""
        await asyncio.to_thread(lambda: self.history.consumers.report(consumer, offset))

    async def forget(self, consumer: str) -> bool:
        """Delete a consumer; False if there is none of that name."""
        return await asyncio.to_thread(lambda: self.history.consumers.forget(consumer))

    async def flush(self) -> None:
        """Count the call; the test has waited for its commits."""
        self.settled += 1

    async def read(self, query: Query, _reader: Reader) -> Page:
        """Return one page."""
        return await asyncio.to_thread(lambda: self.history.read(query))

    async def in_thread(self, _reader: Reader, work: Callable[[], Result]) -> Result:
        """Do the work on a thread."""
        return await asyncio.to_thread(work)

    def rows(self, first: int, last: int) -> Iterator[list[Stored]]:
        """Yield the stored rows in batches."""
        return self.history.rows(first, last)

    def next_rows(self, first: int, last: int, wanted: RowFilter) -> tuple[list[Stored], int]:
        """Return the next of the wanted rows, and how far was read for them."""
        return self.history.next_rows(first, last, wanted)

    async def absent(self) -> Sequence[str]:
        """Return the other servers with this log: none."""
        return ()

    async def purge(self, erasure: Erasure, tell: Callable[[int, int], None]) -> int:
        """Erase events, and return their number."""
        return await asyncio.to_thread(lambda: self.history.purge(erasure, tell))


def given(served: Served) -> MemoryArchive:
    """Make a server's HTTP paths read from an empty archive in memory, and return it."""
    archive = MemoryArchive()
    served.house.apis.archive = lambda: archive
    return archive


def _is_wanted(query: Query, event: Event) -> bool:
    return (
        any(matches(pattern, event.topic) and event.position > after for pattern, after in query.wanted)
        and (event.audience is None or event.audience.admits(query.authid, query.role))
        and (query.from_time_us is None or event.time_us >= query.from_time_us)
        and (query.until_time_us is None or event.time_us <= query.until_time_us)
    )
