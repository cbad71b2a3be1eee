"""The log of a node (`broker.ports.Log`): its events leave in frames, and come back from the stream with all others.

`append` never waits. What comes from the stream (`stream_reader.py`) is applied here: events get their offsets
(`applied.py`, `arrivals.py`), go to the node's store with those of other nodes, and are delivered when they are there
(`store.py`). What the stream no longer has comes from a keeper (`missed.py`). Frames under way are the sender's
(`sender.py`), and events that are not recorded go past the stream (`direct.py`). If the stream is not the one that this
node has applied, or most other nodes have made something else of it, the log takes no events any more
(`availability.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from time import monotonic

from halley.broker.commits import Commits
from halley.broker.errors import HistoryUnavailable, OutcomeUnknown
from halley.broker.events import EventRange
from halley.broker.names import Pattern
from halley.broker.pending import Entry, Pending
from halley.broker.ports import Durability
from halley.cluster.applied import StreamState
from halley.cluster.arrivals import EventFactory
from halley.cluster.availability import AWAY_S, OUTVOTED, Availability, Healing, NatsAway
from halley.cluster.consistency import FrameVersion, StateHistory
from halley.cluster.direct import DirectEvents
from halley.cluster.frames import Control, Frame
from halley.cluster.members import Member, Members
from halley.cluster.missed import CatchUp, CatchUpTarget
from halley.cluster.sender import InFlight, Sender
from halley.cluster.store import Store, StoreWriter
from halley.cluster.stream_reader import StreamReader
from halley.cluster.tasks import Tasks
from halley.nats.client import AwayErrors
from halley.nats.jetstream import ApiError
from halley.nats.stream_position import Position

_RETRY_S, _CHECK_S = 0.3, 0.1
_REACH_S, _REACH_CHECK_S = 2.0, 0.02


class ClusterLog:
    """The log of one node. Its methods are for the event loop; `begin` and `close` run on it.

    `frames_in` counts the frames that have come from the stream, and `repeats` those of them that were dropped.
    """

    def __init__(
        self,
        members: Members,
        store: Store,
        commits: Commits,
        applied: StreamState,
        flush: Callable[[], None],
        target: CatchUpTarget,
        controlled: Callable[[Control, int], None] = lambda _control, _sequence: None,
    ) -> None:
        """The connection of the `members` is opened by `begin` and closed by `close`.

        `target` takes what is missing in the stream. `controlled` is called with each control that counts and its
        sequence, when all before it is applied.
        """
        self.applied, self.states = applied, StateHistory()
        self.frames_in = self.repeats = 0
        self._nats = nats = members.nats
        self._store = store
        self.log_id = store.log_id  # this and the two below are of `ports.Log`, which the store is too
        self.durability_of: Callable[[str], Durability] = store.durability_of
        self.start_of: Callable[[Pattern], int] = store.start_of
        self._commits = commits
        self._flush = flush
        self._controlled = controlled
        self._arrivals = EventFactory(applied, store.publication_key, is_front=nats.options.front)
        self.availability = Availability(nats)
        self.sender = Sender(nats, self.availability, commits.options.inbox_bytes)
        self.reader = StreamReader(nats, store.log_id, applied, self.availability, self._apply)
        self.writer = StoreWriter(store, commits, self.availability, self._arrivals.firsts)
        self.direct = DirectEvents(nats, commits, flush)
        self.missed = CatchUp(members, applied, store, target, commits, self.sender, flush)
        self._version = FrameVersion(applied, members.node)
        self._watching, self._healing = Tasks("cluster"), Tasks("cluster_healing")

    # broker.ports.Log

    @property
    def is_diverged(self) -> bool:
        """Whether this node cannot go on with the stream."""
        return self.availability.is_diverged

    @property
    def foreign(self) -> int:
        """How many messages were dropped that are not frames."""
        return self.reader.foreign + self.direct.foreign

    @property
    def refusal(self) -> HistoryUnavailable | None:
        """What `append` raises for a recorded event at present; None while it takes events."""
        return self.availability.refusal or self._store.refusal

    def append(self, pending: Pending) -> None:
        """Queue an event for the stream, or to have its turn there. Raises `HistoryUnavailable`, `InboxFull`."""
        if pending.is_recorded:
            refusal = self.refusal
            if refusal is not None:
                raise refusal
            self.sender.append(pending)
        elif not self.sender.append_unrecorded(pending):
            self._store.append(pending)

    async def reach(self, offset: int) -> bool:
        """Wait until all events up to an offset are delivered here, for `_REACH_S` at most; False if they may yet come.

        True also for an offset that is none of this log: the node has delivered all that the stream had when asked.
        """
        commits, applied = self._commits, self.applied
        with suppress(ApiError, *AwayErrors):
            async with asyncio.timeout(_REACH_S):
                last = int((await self._nats.stream_info())["state"]["last_seq"])
                while commits.tail.head < offset:
                    if applied.sequence >= last and commits.tail.head >= applied.offset and not self.is_diverged:
                        return True
                    await asyncio.sleep(_REACH_CHECK_S)  # the hot path wakes nobody
        return commits.tail.head >= offset

    def compare(self, others: list[Member]) -> None:
        """Compare this node with the others; to be called once a second."""
        self.availability.is_disputed = any(each.heartbeat.get("went_back") for each in others)
        if self.states.is_outvoted(others):
            self.availability.diverge(OUTVOTED)
        self.sender.version = self._version.agreed_version(others, monotonic())

    # Its life

    def begin(self) -> None:
        """Connect, and begin to read the stream."""
        self.sender.begin()
        self.direct.begin()
        self._nats.begin()
        self._watching.repeat(self._watch, _CHECK_S)

    async def close(self) -> None:
        """Stop reading the stream, and disconnect from NATS; `give_up` then settles the events under way."""
        await self._watching.cancel()
        await self._healing.cancel()
        await self._nats.close()

    def give_up(self, now: float) -> None:
        """Settle the events that have not come back: whether they are stored is unknown."""
        self._commits.refused([*self.writer.give_up(), *self.sender.give_up()], OutcomeUnknown(), now)

    async def _watch(self) -> None:
        """See to it that the stream is read and frames come back."""
        await self._nats.opened.wait()
        if self.is_diverged:
            self.reader.close()
            return
        try:
            await self._check(monotonic())
        except Exception:
            self.availability.refused()  # it may be deaf
            raise

    async def _check(self, now: float) -> None:
        self.writer.check()
        if self._nats.away_since is not None:
            if self._nats.away_s > AWAY_S:
                self._refuse_unsent(now, self.availability.refusal or NatsAway())
            return
        if not self.writer.is_stalled and not self.reader.needed:
            self.sender.check(now)
            await self.reader.check(now)
        if self.reader.needed:
            self._heal(now)
        self.sender.plan()

    def _heal(self, now: float) -> None:
        """Get what is missing in the stream; begin with it, or look after it."""
        since = self.availability.healing_since
        self.availability.healing_since = now if since is None else since
        if not self.writer.is_stalled and not self._healing:
            self._healing.start(self._get_missed())
        elif isinstance(self.availability.refusal, Healing):
            self._refuse_unsent(now, Healing())

    async def _get_missed(self) -> None:
        failure = None
        try:
            await self.missed.get(self.reader.needed)
        except Exception as error:  # noqa: BLE001 - raised below
            failure = error
        if failure is not None:
            await asyncio.sleep(_RETRY_S)  # the next look begins again
            raise failure
        self.states.note(self.applied)
        self.reader.go_on()
        self.availability.healing_since = None

    def _refuse_unsent(self, now: float, refusal: HistoryUnavailable) -> None:
        """Refuse what no frame has had. What is not durable is delivered at this node then, if nothing is before it."""
        unsent = self.sender.withdraw(len(self._commits.pending))
        if unsent:
            self._commits.withdrawn(unsent, refusal, now)
            self._flush()

    # From the stream

    def _apply(self, position: Position, frame: Frame | None) -> Awaitable[None] | None:
        """Apply the stream's next message; the one after it waits for what is returned."""
        self.frames_in += 1
        applied = self.applied
        if not applied.admit(position.sequence, position.time_us, frame) or frame is None:
            self.states.note(applied)
            self.writer.save(applied)
            if frame is not None:
                self.repeats += 1
                self.sender.dropped(frame, applied.number_of(frame.run))
            return None
        entries: Sequence[Entry | EventRange]
        own = None
        if frame.run == self.sender.run:
            own = self.sender.returned(frame)  # raises if a stranger has sent it: the next start has another run
            entries = self._arrivals.own(frame, own.entries)
        else:
            entries = self._arrivals.others(frame)
        self.states.note(applied)
        for at, entry in enumerate(entries):
            if not self.writer.accept(entry):
                return self._write(entries[at:], position, frame, own)
        self._end_of(position, frame, own)
        return None

    async def _write(
        self, entries: Sequence[Entry | EventRange], position: Position, frame: Frame, own: InFlight | None
    ) -> None:
        await self.writer.write(entries)
        self._end_of(position, frame, own)

    def _end_of(self, position: Position, frame: Frame, own: InFlight | None) -> None:
        """Do what comes behind the events of a frame; `own` is what the sender knows of it, if it is this node's."""
        self.writer.save(self.applied)
        if frame.control is not None:
            self._controlled(frame.control, position.sequence)
            if own is not None and own.command is not None and not own.command.applied.done():
                own.command.applied.set_result(position.sequence)
        self.sender.plan()
