"""What a running node missed of the stream: frames were trimmed or deleted that it had not seen, so a keeper helps.

A node that was cut off for long, or stood still, meets a gap in the stream. It takes no events then, and gets from a
keeper the state that follows the gap and the rows up to there: they are delivered to its subscribers in their order,
and it goes on behind that state. If no keeper answers it asks again, for as long as it takes.

The node's own frames may be among the missed ones; by its run's number in the state it knows which. Their rows are
found by what is in them: a publisher is answered as ever if there are as many such rows as it has published, and else
that the outcome is unknown. Nothing is delivered twice.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import groupby
from time import monotonic, time
from typing import Any, Protocol

from halley import telemetry
from halley.broker.commits import Commits, PublishResult
from halley.broker.events import Publications
from halley.broker.pending import Pending
from halley.broker.sessions import Session
from halley.cluster.applied import StreamState
from halley.cluster.copying import ANSWER_S, copied, usable
from halley.cluster.keeper_client import KeeperRequests, KeeperState, LivingKeeper
from halley.cluster.members import Members
from halley.cluster.requests import NobodyAnswers, RequestRefused
from halley.cluster.sender import Sender
from halley.cluster.store import Store
from halley.history.history import CannotPurge
from halley.history.key_digests import Digests
from halley.history.stored import Stored, event_of, row_of

_AGAIN_S, _LONGEST_S = 0.3, 10.0
_QUIET_S, _CHECK_S = 2.0, 0.02
_EVENTS_AT_ONCE = 50


class CatchUpTarget(Protocol):
    """Where a node's missed events go before they are delivered."""

    async def take_over(self, rows: list[Stored], reached: int, digests: Digests) -> None:
        """Take the rows that follow, which are all up to the offset `reached`. Raises `OSError`.

        `digests` has those of their idempotency keys, as far as they are known.
        """

    async def erase_like(self, keeper: KeeperRequests, state: KeeperState, last: int) -> None:
        """Erase what is erased by now at the keeper with this state, of the events up to the offset `last`.

        Raises `OSError`, `CannotPurge`, and what `keeper` does.
        """

    async def save(self) -> None:
        """Save the state of that keeper, which `StreamState` has now. Raises `OSError`."""


class CatchUp:
    """Gets one node what it missed; `events` counts those.

    `figures` says what is under way, for other nodes and the operator; it is None if nothing is.
    """

    def __init__(
        self,
        members: Members,
        applied: StreamState,
        store: Store,
        target: CatchUpTarget,
        commits: Commits,
        sender: Sender,
        flush: Callable[[], None],
    ) -> None:
        """`store` has the log, and `sender` the node's own frames; `flush` is called when events were delivered."""
        self.figures: dict[str, Any] | None = None
        self.events = 0
        self._nats, self._members = members.nats, members
        self._applied = applied
        self._store, self._target = store, target
        self._commits = commits
        self._sender = sender
        self._flush = flush

    async def get(self, needed: int) -> None:
        """Get all up to a state that has come as far as `needed` in the stream, and go on with that state.

        Nothing may be applied or sent meanwhile.
        """
        first, pause_s = self._applied.offset + 1, _AGAIN_S
        self.figures = {"first": first, "last": 0, "since": int(time()), "keeper": "", "waits": ""}
        own = _OwnEvents(self._sender)
        try:
            while not await self._is_got(needed, own, self.figures):
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_S)
        finally:
            self.figures = None
        own.resolve(self._applied, Publications(self._store.publication_key), self._commits, monotonic())
        self._flush()
        telemetry.log.info("cluster_healed", first=first, last=self._applied.offset)

    async def _is_got(self, needed: int, own: _OwnEvents, figures: dict[str, Any]) -> bool:
        """Try each keeper once; whether one has helped."""
        why = "no other keeper is running"
        names = [each.name for each in filter(None, map(LivingKeeper.of, self._members.others()))]
        for name in names:
            try:
                await self._get_from(name, [each for each in names if each != name], needed, own, figures)
            except (NobodyAnswers, RequestRefused, CannotPurge, OSError) as error:
                why = f"{name}: {str(error) or 'no answer'}"
            else:
                return True
        if figures["waits"] != why:
            telemetry.log.warning("cluster_healing", first=figures["first"], last=0, keeper="", waits=why)
        figures.update(keeper="", waits=why)
        return False

    async def _get_from(
        self, name: str, others: list[str], needed: int, own: _OwnEvents, figures: dict[str, Any]
    ) -> None:
        """Get it from the keeper `name`, and from the `others` what is missing there."""
        keeper = KeeperRequests(self._nats, name)
        more = [partial(_some, KeeperRequests(self._nats, each)) for each in others]
        tail = self._commits.tail
        state = await keeper.state(ANSWER_S)
        found = usable(state, self._store.log_id, self._applied.stream, needed)
        own.begin(self._applied, found)
        async with asyncio.timeout(_QUIET_S):  # until all that was applied is delivered, and settled if it is own
            while not self._is_quiet(own):  # noqa: ASYNC110 - the hot path waits for nobody
                await asyncio.sleep(_CHECK_S)
        head, last = tail.head, found.offset
        if last < head:
            raise RequestRefused("it is behind")
        if not figures["keeper"]:
            telemetry.log.warning("cluster_healing", first=head + 1, last=last, keeper=name, waits="")
        figures.update(last=last, keeper=name, waits="")
        async for rows, reached in copied([keeper.rows, *more], head + 1, last):
            await self._target.take_over(rows, reached, found.digests)
            await self._deliver(rows, own, found.digests)
            if tail.head < reached:
                tail.skip_to(reached)
        await self._target.erase_like(keeper, state, head)
        self._applied.restore(state.applied)
        await self._target.save()

    def _is_quiet(self, own: _OwnEvents) -> bool:
        return self._commits.tail.head >= self._applied.offset and own.are_oldest(self._commits.pending)

    async def _deliver(self, rows: list[Stored], own: _OwnEvents, digests: Digests) -> None:
        """Deliver rows as events of other nodes; own ones not to the session that their publisher has left out."""
        for without, same in groupby((row for row in rows if not row.is_purged), own.without):
            events = [event_of(row) for row in same]
            for event in events:
                event.key_digest = digests.get(event.position)
            for begin in range(0, len(events), _EVENTS_AT_ONCE):
                some = events[begin : begin + _EVENTS_AT_ONCE]
                self.events += len(some)
                self._commits.arrived(some, monotonic(), without)
                self._flush()
                await asyncio.sleep(0)


async def _some(keeper: KeeperRequests, first: int, last: int) -> tuple[list[Stored], int]:
    """Some rows of a keeper (`copying.Source`); none if it does not answer: events do not wait for that."""
    with suppress(NobodyAnswers, RequestRefused, TimeoutError):
        rows, reached = await keeper.rows(first, last)
        if reached >= first:
            return rows, reached
    return [], last


class _OwnEvents:
    """The events of this node in frames under way, and the missed rows that are like them."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._number = 0  # of the last frame that has counted
        self._like: dict[tuple[Any, ...], list[Pending]] = {}  # by what is in them
        self._rows: defaultdict[tuple[Any, ...], list[Stored]] = defaultdict(list)

    def begin(self, applied: StreamState, found: StreamState) -> None:
        """Look for the events of the frames that have counted by the state `found`; `applied` is that of this node.

        Where all nodes have forgotten the run meanwhile, nobody knows which have: none is sent again.
        """
        run = self._sender.run
        self._number = found.number_of(run)
        if self._number < applied.number_of(run):
            self._number = self._sender.number
        self._like = {}
        for pending in self._sender.entries(self._number):
            if pending.is_recorded:
                self._like.setdefault(_content(row_of(pending.event, 0)), []).append(pending)

    def are_oldest(self, pending: deque[Pending]) -> bool:
        """Whether no event waits to be settled before these."""
        entries = self._sender.entries(self._number)
        return not entries or pending[0] is entries[0]

    def without(self, row: Stored) -> Session | None:
        """The session that does not receive a missed row, if that is one of these by its content."""
        like = self._like.get(_content(row)) if self._like else None
        if like is None:
            return None
        rows = self._rows[_content(row)]
        if len(rows) > len(like):  # there are more of them than own ones
            return None
        rows.append(row)
        return like[len(rows) - 1].without if len(rows) <= len(like) else None

    def resolve(self, applied: StreamState, publications: Publications, commits: Commits, now: float) -> None:
        """Answer the publishers of the events that have counted by the state `applied`."""
        known = {
            pending: PublishResult(row.topic, row.offset, row.publication, pending.event.key_digest)
            for content, like in self._like.items()
            if len(like) == len(self._rows[content])
            for pending, row in zip(like, self._rows[content], strict=True)
        }
        for pending in self._sender.stored(self._number):
            event = pending.event
            if not pending.is_recorded:
                commits.committed([pending], commits.tail.head + 1, now)
                continue
            first = None if event.idempotency_key is None else applied.first_of(event.authid, event.idempotency_key)
            if first is not None:
                publication = publications.id_of(applied.lead + first.offset)
                known[pending] = PublishResult(
                    first.topic, first.offset, publication, applied.digests.get(first.offset)
                )
            commits.delivered_before(pending, known.get(pending), now)


def _content(row: Stored) -> tuple[Any, ...]:
    return (row.topic, *row[4:-1])
