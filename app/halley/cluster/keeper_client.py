"""Asking keepers about the history, which a front has not, and a new keeper has not yet (`keeper.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from hashlib import blake2b
from time import monotonic
from typing import Any, NamedTuple

import orjson

from halley.broker.names import Pattern
from halley.broker.ports import Erasure, Page, Query, UnknownPublication
from halley.cluster import pages
from halley.cluster.frames import erasure_from_json
from halley.cluster.keeper import UNKNOWN_PUBLICATION, subject_of_keeper, subject_of_written
from halley.cluster.members import MOST_NODES, SILENT_S, Member, Members
from halley.cluster.requests import NobodyAnswers, RequestRefused, ask
from halley.history.rules import Rules
from halley.history.stored import Stored
from halley.nats.jetstream import Connection
from halley.nats.wire import Message

_ROWS_S = 10.0
_AGAIN_S, _CHECK_S = 0.1, 0.25
_BETTER_S = 1.0
"""For how long another keeper is waited for that may have what a page misses."""

_DIGITS = 19
"""Of an offset, at most."""


class KeeperState(NamedTuple):
    """What a keeper has, on its disk.

    node     the keeper
    log_id   of the log, and `publication_key` is that of its publications
    first    the first offset that the keeper still has
    applied  as `StreamState.restore` takes it
    erased   up to where in the stream the keeper has erased
    erasures the latest ones that it has applied, each with its sequence
    """

    node: str
    log_id: str
    publication_key: int
    first: int
    applied: dict[str, Any]
    erased: int
    erasures: tuple[tuple[int, Erasure], ...] = ()

    @classmethod
    def of(cls, data: bytes) -> KeeperState:
        """The state that a keeper has answered. Raises `RequestRefused`."""
        try:
            fields = orjson.loads(data)
            fields["publication_key"] = int(fields["publication_key"])  # a JSON number has 53 bits for many readers
            fields["erasures"] = tuple(
                (int(sequence), erasure_from_json(each)) for sequence, each in fields.get("erasures", ())
            )
            state = cls(*(fields[name] for name in cls._fields))
            numbers = (state.first, state.erased, *(state.applied[name] for name in ("sequence", "offset", "time_us")))
            if type(state.applied) is dict and all(map(pages.is_offset, numbers)):
                return state
        except (TypeError, KeyError, ValueError):
            pass
        raise RequestRefused("another version")


class KeeperRequests:
    """What can be asked of the keeper `node`, or of any (`keeper.py`).

    Its methods raise `NobodyAnswers`, `RequestRefused`, `TimeoutError`.
    """

    def __init__(self, nats: Connection, node: str = "") -> None:
        self._nats, self._subject = nats, subject_of_keeper(nats.space, node)

    async def _ask(self, limit_s: float, what: str, **arguments: Any) -> bytes:
        return await ask(self._nats, self._subject, {"what": what, **arguments}, limit_s)

    async def state(self, within_s: float) -> KeeperState:
        """How far the keeper has come, when all of that is on its disk."""
        return KeeperState.of(await self._ask(within_s, "state"))

    async def page(self, query: Query, within_s: float, sharer: str = "") -> tuple[Page, list[int]]:
        """A page of the history for a sharer of the readers, and the first offsets of the keeper (`Rules.starts`)."""
        asked = pages.query_to_json(query)
        data = await self._ask(within_s, "read", query=asked, within_s=within_s, sharer=sharer)
        try:
            return pages.unpack(data)
        except (ValueError, TypeError, AttributeError):
            raise RequestRefused("another version") from None

    async def rows(self, first: int, last: int) -> tuple[list[Stored], int]:
        """Some of the rows between two offsets, and the offset up to which those are all that the keeper has."""
        data = await self._ask(_ROWS_S, "rows", first=first, last=last)
        try:
            values, reached = orjson.loads(data)
            rows = [Stored(*each) for each in values]
            is_range = first - 1 <= reached <= last and all(first <= row.offset <= reached for row in rows)
            if not (is_range and all(row.is_intact for row in rows)):
                raise ValueError
        except (TypeError, ValueError):
            raise RequestRefused("damaged") from None
        return rows, reached

    async def erased(self, first: int, last: int) -> list[int]:
        """The offsets of erased events between two."""
        data = await self._ask(_ROWS_S, "erased", first=first, last=last)
        try:
            found = orjson.loads(data)
            if type(found) is list and all(map(pages.is_offset, found)):
                return found
        except ValueError:
            pass
        raise RequestRefused("damaged")


class LivingKeeper(NamedTuple):
    """A keeper that is alive, with what it says once a second.

    head       the last offset on its disk
    starts     the first one, and those of the rules
    takes      whether it can write to its disk
    nbytes     of its history
    consumers  of its log, each with the offset that it reads next
    received_at   when it said so, in seconds of the monotonic clock
    """

    name: str
    head: int
    starts: list[int]
    takes: bool
    nbytes: int
    consumers: dict[str, int]
    received_at: float

    @classmethod
    def of(cls, member: Member) -> LivingKeeper | None:
        """A node as keeper; None for a front, and for one that has diverged from the stream."""
        match member.heartbeat.get("kept"):
            case {
                "head": int(head),
                "starts": list(starts),
                "takes": bool(takes),
                "bytes": int(nbytes),
                "consumers": dict(consumers),
            } if starts and all(isinstance(each, int) for each in (*starts, *consumers.values())):
                return cls(member.name, head, starts, takes, nbytes, consumers, member.received_at)
        return None


class KeeperClient:
    """Reads pages from the keepers that are alive, and knows how far they have written.

    written   the highest offset that any of them has on disk; 0 without any
    start     the first offset that those still have which were asked; like the starts of `rules`, which are set here,
              it never goes back: no reader may be given less than it was promised
    """

    def __init__(self, members: Members, rules: Rules, state: KeeperState) -> None:
        """`state` is that with which the front began."""
        self.written: int = state.applied["offset"]
        self.start = state.first
        self._nats = members.nats
        self._members = members
        self._rules = rules
        self._heads = {state.node: (self.written, monotonic())}  # of each keeper, and when it said so

    def begin(self, on_written: Callable[[], None]) -> None:
        """Learn what keepers have written; `on_written` is called when it is more."""

        def written(message: Message) -> None:
            keeper = message.subject.rpartition(".")[2]
            is_number = len(message.data) <= _DIGITS and message.data.isdigit()
            if is_number and (keeper in self._heads or len(self._heads) < MOST_NODES):
                head = int(message.data)
                self._heads[keeper] = head, monotonic()
                if head > self.written:
                    self.written = head
                    on_written()

        self._nats.subscribe(subject_of_written(self._nats.space, "*"), written)

    def keepers(self) -> list[LivingKeeper]:
        """The keepers that are alive, in the order in which this node asks them: each node has another order."""

        def order(keeper: LivingKeeper) -> bytes:
            return blake2b(f"{self._members.node} {keeper.name}".encode()).digest()

        return sorted(filter(None, map(LivingKeeper.of, self._members.others())), key=order)

    def check(self) -> None:
        """Take over what the keepers say once a second."""
        keepers = self.keepers()
        for each in keepers:
            head, _ = self._heads.get(each.name, (0, 0.0))
            self._heads[each.name] = max(each.head, head), monotonic()
        since = monotonic() - SILENT_S
        self._heads = {name: head for name, head in self._heads.items() if head[1] > since}
        self.written = max((head for head, _ in self._heads.values()), default=0)
        if keepers:
            self._learn(keepers[0].starts)

    def _learn(self, starts: list[int]) -> None:
        self.start = max(self.start, starts[0])
        self._rules.raise_starts(starts[1:])

    async def read(self, query: Query, within_s: float, sharer: str) -> Page:
        """A page of the history, from the first keeper that answers without a gap that another may not have.

        `sharer` is whose part of the keepers' readers is used (`ports.Reader`). If all of the keepers have a gap, it is
        the page that misses the least; a node that has just started waits first until it knows all of them. Raises
        `UnknownPublication`, and `TimeoutError` if no keeper that has all up to `query.last` answers in time.
        """
        until, asked = monotonic() + within_s, set[str]()
        best: Page | UnknownPublication | None = None
        while (left_s := until - monotonic()) > 0:
            keepers = self.keepers()
            others = [each for each in keepers if each.name not in asked]
            if not others:
                if best is None:
                    asked.clear()
                elif self._members.is_complete(monotonic()):
                    break
                await asyncio.sleep(min(_AGAIN_S, left_s))
                continue
            others.sort(key=lambda each: each.head < query.last)
            asked.add(others[0].name)
            limit_s = left_s if len(keepers) == 1 else left_s / 2 if best is None else min(left_s, _BETTER_S)
            try:
                page = await self._read(query, others[0], limit_s, sharer)
            except (NobodyAnswers, TimeoutError):
                continue
            except RequestRefused as error:
                if error.word == UNKNOWN_PUBLICATION:  # it may be in what this keeper has lost
                    best = best or UnknownPublication()
                continue
            if not isinstance(best, Page) or self._missing(page, query) < self._missing(best, query):
                best = page
            if not self._missing(best, query):
                break
        if best is None:
            raise TimeoutError
        if isinstance(best, UnknownPublication):
            raise best
        return best

    def _missing(self, page: Page, query: Query) -> int:
        start = min((self.start_of(pattern) for pattern, _ in query.wanted), default=self.start)
        return sum(last - first + 1 for first, last in page.gaps if last >= start)

    def start_of(self, pattern: Pattern) -> int:
        """The first offset from which on no event that `pattern` matches was removed at the keepers."""
        return max(self.start, self._rules.start_of(pattern))

    async def _read(self, query: Query, keeper: LivingKeeper, within_s: float, sharer: str) -> Page:
        """A page of one keeper. Raises as `KeeperRequests.page` does, and `NobodyAnswers` if that keeper is gone."""
        requests = KeeperRequests(self._nats, keeper.name)
        asking = asyncio.create_task(requests.page(query, within_s, sharer))
        try:
            while not (await asyncio.wait({asking}, timeout=_CHECK_S))[0]:
                if not any(each.name == keeper.name for each in self._members.others()):
                    raise NobodyAnswers
            page, starts = await asking
        finally:
            asking.cancel()
        self._learn(starts)
        return page
