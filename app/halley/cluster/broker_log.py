"""The log of a node (`broker.ports.Log`): its events leave in frames, and come back from the stream with all others.

`append` never waits. What is appended while frames are under way goes into the next one. A frame that comes back from
the stream is stored there; its events get their offsets, go to the node's `Store` with those of other nodes, and are
delivered when they are on disk. While the first frame under way does not come back, all of them are sent again,
in order. Events that are not recorded go past the stream.

A node that receives nothing from the stream for `_QUIET_S` begins another consumer, behind what it has applied, and
leaves a NATS server that does not answer. If the stream is not the one that it has applied, or most other nodes have
made something else of it, it takes no events any more: no offset may mean two events.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, groupby
from time import monotonic
from typing import Any, NamedTuple

from halley import telemetry
from halley.broker.commits import Commits, Published
from halley.broker.errors import HistoryUnavailable, InboxFull, OutcomeUnknown, Refusal
from halley.broker.events import Event, EventRange
from halley.broker.faults import for_each
from halley.broker.names import RESERVED, SPACE, Pattern
from halley.broker.pending import Entry, Pending
from halley.broker.ports import Durability
from halley.cluster.alike import State
from halley.cluster.applied import Applied
from halley.cluster.arrivals import Arrivals
from halley.cluster.frames import BadFrame, Control, Frame, LaterVersion, Row, event_of, pack, pack_all, row_of, unpack
from halley.cluster.members import Member
from halley.cluster.membership import GAP, check_place, subject_of_node
from halley.cluster.store import Store
from halley.history.stored import row_of as stored_row
from halley.nats.client import AwayErrors
from halley.nats.jetstream import ApiError, Connection
from halley.nats.places import Place, is_behind, is_control, place_of
from halley.nats.wire import Message
from halley.settings import Cluster

_FRAME_BYTES = 524_288
_ROW_BYTES = 256
"""About what a row takes in a frame besides its payload."""

_FRAME_S = 0.001
_FRAMES_PER_S = 500
"""Of all nodes together, if all are busy: a frame costs every node as much as a hundred events in it.

A node that has sent nothing for a while does not wait for this; one of 16 busy ones sends every 32 ms.
"""

_UNDER_WAY = 2
_AGAIN_S, _QUIET_S, _RETRY_S, _LOOK_S = 1.0, 2.0, 0.3, 0.1
_DOUBT_S, _REACH_S = 5.0, 2.0
_AWAY_S = 1.0
"""After which a durable publish is refused at once; an election among NATS servers may be over sooner."""

_RENEW_S = 43_200.0
"""A node that has sent nothing for so long begins a new run, before the nodes forget the old one (`applied.py`)."""
LATER = "the stream has frames of a later version of Halley, which this node needs to go on"
ODD = "most other nodes have made something else of the stream"
_OF_THIS_NODE = frozenset((GAP, LATER, ODD))
"""Reasons that concern this node alone: the others can go on."""

_LOCAL = (f"{RESERVED}/", "wamp/", "service/", "meta/", SPACE + SPACE)
"""What is never sent past the stream: each node informs its own clients about itself, and has its own services."""


class StreamUnavailable(HistoryUnavailable):
    """The stream cannot take events at present."""

    cause = "cluster"


class Diverged(HistoryUnavailable):
    """The node cannot go on with the stream."""

    cause = "cluster_diverged"


@dataclass(slots=True)
class _UnderWay:
    """A frame that has not come back; `entries` has those that are not recorded too, in their turn."""

    number: int
    data: bytes
    entries: list[Pending] = field(default_factory=list)
    order: _Order | None = None


class _Order(NamedTuple):
    """A control to be sent; `applied` gets its sequence when it has come back."""

    control: Control
    applied: asyncio.Future[int]


class ClusterLog:
    """The log of one node. Its methods are for the event loop; `begin` and `close` run on it.

    Plain counts, read by telemetry: `frames_in`, `frames_out`, `resent`, `repeats` (frames that were dropped) and
    `foreign` (other messages). `is_diverged`: this node cannot go on with the stream, and `went_back` that it has less
    than was applied. `is_disputed` while that is so for another node: what this one took might get offsets of other
    events.
    """

    def __init__(
        self,
        options: Cluster,
        nats: Connection,
        store: Store,
        commits: Commits,
        applied: Applied,
        flush: Callable[[], None],
        controlled: Callable[[Control, int], None] = lambda _control, _sequence: None,
    ) -> None:
        """`nats` is opened by `begin` and closed by `close`.

        `controlled` is called with each control that counts and its sequence, when all before it is applied.
        """
        self.applied, self.state = applied, State()
        self.frames_in = self.frames_out = self.resent = self.repeats = self.foreign = 0
        self._options = options
        self._store = store
        self._append: Callable[[Any], None] = store.append  # that of a front takes ranges, too
        self._commits = commits
        self._flush = flush
        self._controlled = controlled
        self._nats = nats
        self._arrivals = Arrivals(applied, store.publication_key, is_front=options.front)
        self._run = ""
        self._frame_s, self._others = _FRAME_S, 0  # frames of other nodes until a second ago
        self._number = 0
        self._inbox: deque[Pending] = deque()
        self._orders: deque[_Order] = deque()
        self._under_way: deque[_UnderWay] = deque()
        self._waiting_bytes = 0  # of recorded events that have not come back
        self._fleeting: list[Row] = []
        self._moved = asyncio.Event()  # set when more is delivered, and then replaced
        self._unwritten: list[Entry] = []  # by the disk's fault; they are given to the writer again
        self._head = store.head  # what the stream gives up to this offset is on disk already
        on_disk = chain.from_iterable(store.rows(applied.offset + 1, self._head))
        self._on_disk = {row.offset: row.crc for row in on_disk if not row.is_purged}
        self.is_diverged = self.went_back = self.is_disputed = self._is_due = self._is_stalled = False
        self._refused_until = self._doubted_at = 0.0
        self._sent_at = self._progress_at = self._heard_at = monotonic()
        self._in_consumer = 0
        self._end_consumer: Callable[[], None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._acks = f"{options.space}.a.{secrets.token_hex(8)}"
        self._new_run()

    # broker.ports.Log

    @property
    def log_id(self) -> str:
        """The id of the log, which all nodes share."""
        return self._store.log_id

    def durability_of(self, topic: str) -> Durability:
        """Whether and when a topic's events are written."""
        return self._store.durability_of(topic)

    def start_of(self, pattern: Pattern) -> int:
        """The first offset from which on this node has every event that `pattern` matches."""
        return self._store.start_of(pattern)

    @property
    def refusal(self) -> HistoryUnavailable | None:
        """What `append` raises for a recorded event at present; None while it takes events."""
        return self.stream_refusal or self._store.refusal

    @property
    def stream_refusal(self) -> HistoryUnavailable | None:
        """The part of `refusal` that is the stream's."""
        if self.is_diverged or self.is_disputed:
            return Diverged()
        if monotonic() < self._refused_until or self.away_s > _AWAY_S:
            return StreamUnavailable()
        return None

    @property
    def away_s(self) -> float:
        """For how many seconds NATS has not been reachable; 0 while it is."""
        return self._nats.away_s

    def append(self, pending: Pending) -> None:
        """Queue an event for the stream, or to have its turn there. Raises `HistoryUnavailable`, `InboxFull`."""
        if not pending.is_recorded and not self._inbox:
            if self._under_way:
                self._under_way[-1].entries.append(pending)
            else:
                self._store.append(pending)
            return
        if pending.is_recorded:
            refusal = self.refusal
            if refusal is not None:
                raise refusal
            if self._waiting_bytes and self._waiting_bytes + pending.nbytes > self._commits.options.inbox_bytes:
                raise InboxFull
            self._waiting_bytes += pending.nbytes
        self._inbox.append(pending)
        self._plan()

    def share(self, event: Event) -> None:
        """Send an event that is not recorded to the other nodes, which may not get it."""
        if not event.topic.startswith(_LOCAL) and self._nats.away_since is None:
            if not self._fleeting:
                asyncio.get_running_loop().call_soon(self._send_fleeting)
            self._fleeting.append(row_of(event, is_stamped=True))

    async def reach(self, offset: int) -> None:
        """Wait until all events up to an offset are delivered here, for `_REACH_S` at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_REACH_S):
                while self._commits.tail.head < offset:
                    await self._moved.wait()

    def compare(self, others: list[Member]) -> None:
        """Compare this node with the others; to be called once a second."""
        self.is_disputed = any(each.facts.get("went_back") for each in others)
        if self.state.is_odd(others):
            self._diverge(ODD)

    # What the writer of the folder reports

    def committed(self, entries: Sequence[Any], _first: int, now: float) -> None:
        """Report to the broker the events that are on disk, or have had their turn."""
        if self._unwritten and not any(entry.is_recorded for entry in entries):  # their turn comes behind those
            self._unwritten += entries
            return
        try:
            for_each([list(run) for _, run in groupby(entries, _is_own)], self._commit, now)
        finally:
            self._moved.set()
            self._moved = asyncio.Event()

    def _commit(self, run: list[Any], now: float) -> None:
        if not _is_own(run[0]):
            self._commits.arrived([each.event if isinstance(each, Entry) else each for each in run], now)
            return
        for is_repeat, group in groupby(run, _is_repeat):
            if not is_repeat:
                self._commits.committed(list(group), self._commits.tail.head + 1, now)
                continue
            for pending in group:
                topic = self._arrivals.first_topics.pop(pending)
                first = Published(topic, pending.position, pending.event.publication)
                self._commits.repeated_late(pending, first, now)

    def refused(self, entries: Sequence[Entry], _refusal: Refusal, _now: float) -> None:
        """Keep events that could not be written, in their order: they are in the stream, and must be written."""
        self._unwritten += entries

    # The life of the log

    def begin(self) -> None:
        """Connect, and begin to read the stream."""
        self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Stop reading the stream, and disconnect from NATS; `give_up` then settles the events under way."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._nats.close()

    def give_up(self, now: float) -> None:
        """Settle the events that have not come back: whether they are stored is unknown."""
        left = [entry for entry in self._unwritten if _is_own(entry)]
        left += [entry for frame in self._under_way for entry in frame.entries] + [*self._inbox]
        for order in filter(None, [*(frame.order for frame in self._under_way), *self._orders]):
            order.applied.cancel()
        self._orders.clear()
        self._under_way.clear()
        self._inbox.clear()
        self._commits.refused(left, OutcomeUnknown(), now)

    # Out

    def _new_run(self) -> None:
        self._run, self._number = f"{self._options.node}-{secrets.token_hex(6)}", 0

    def _plan(self) -> None:
        if not self._is_due and self._watching is not None:  # before that no event loop need be running
            self._is_due = True
            loop = asyncio.get_running_loop()
            loop.call_later(max(0.0, self._sent_at + self._frame_s - monotonic()), self._send)

    def share_stream(self, nodes: int) -> None:
        """Send as many frames as the others leave, or as each of `nodes` may; to be called once a second."""
        others = self.frames_in - self.frames_out
        left, self._others = _FRAMES_PER_S - (others - self._others), others
        self._frame_s = max(_FRAME_S, 1 / max(left, _FRAMES_PER_S / nodes))

    def send(self, control: Control) -> asyncio.Future[int]:
        """Send a control; the result is its sequence in the stream, as soon as all before it is applied here."""
        order = _Order(control, asyncio.get_running_loop().create_future())
        self._orders.append(order)
        self._plan()
        return order.applied

    def _send(self) -> None:
        self._is_due = False
        is_idle = not self._inbox and not self._orders
        if is_idle or len(self._under_way) >= _UNDER_WAY or self._nats.away_since is not None:
            return  # the next frame that comes back passes by here, or the watch does
        entries, nbytes = [], 0
        order = self._orders.popleft() if self._orders else None
        while order is None and self._inbox and nbytes < _FRAME_BYTES:
            entries.append(self._inbox.popleft())
            nbytes += len(entries[-1].event.payload) + _ROW_BYTES
        if not self._under_way:
            self._progress_at = monotonic()
            if self._progress_at - self._sent_at > _RENEW_S:
                self._new_run()
        self._number += 1
        packed = self._packed(self._number, entries, order)
        while len(packed.data) > self._nats.max_payload and len(entries) > 1:  # long names, keys or details
            half = len(entries) // 2
            self._inbox.extendleft(reversed(entries[half:]))
            entries = entries[:half]
            packed = self._packed(self._number, entries, order)
        self._under_way.append(packed)
        self._sent_at = monotonic()
        self._post(packed.data)
        if self._inbox or self._orders:
            self._plan()

    def _packed(self, number: int, entries: list[Pending], order: _Order | None) -> _UnderWay:
        rows = [row_of(entry.event) for entry in entries if entry.is_recorded]
        return _UnderWay(number, pack(self._run, number, rows, order and order.control), entries, order)

    def _post(self, data: bytes) -> None:
        self.frames_out += 1
        subject = f"{self._options.space}.f.{self._options.node}"
        self._nats.publish(subject, data, self._acks)

    def _send_fleeting(self) -> None:
        rows, self._fleeting = self._fleeting, []
        subject = f"{self._options.space}.c.{self._options.node}"
        for data in pack_all(self._run, rows, _FRAME_BYTES):
            self._nats.publish(subject, data)

    def _acked(self, message: Message) -> None:
        """Note that the stream takes nothing: it is full, or has no leader. It does not say what is stored."""
        if message.head or b'"error"' in message.data[:200]:
            self._refused_until = monotonic() + _AGAIN_S

    # In

    def _shared(self, message: Message) -> None:
        """Deliver what another node has shared."""
        try:
            frame = unpack(message.data)
        except BadFrame:
            self.foreign += 1
            return
        if frame.stamps is None:
            self.foreign += 1
        elif frame.run != self._run:
            self._commits.arrived([event_of(row) for row in frame.rows], monotonic())
            self._flush()

    def _delivered(self, message: Message) -> Awaitable[None] | None:
        """Take a message of the consumer; the next one waits for what is returned."""
        if self.is_diverged:
            return None
        self._heard_at = monotonic()
        if is_control(message):
            self._nats.answer_control(message)
            if is_behind(message, self._in_consumer):  # the last ones before it were lost, as with a connection
                self._heard_at = 0.0
            return None
        place, frame = place_of(message), self._frame_of(message)
        self._in_consumer += 1
        if not self.is_diverged and self._is_next(place, frame):
            return self._apply(place, frame)
        return None

    def _frame_of(self, message: Message) -> Frame | None:
        try:
            return unpack(message.data)
        except LaterVersion:
            self._diverge(LATER)
        except BadFrame:
            self.foreign += 1
        return None

    def _is_next(self, place: Place, frame: Frame | None) -> bool:
        """Whether a message is the stream's next one. Where the consumer has lost one, another is begun."""
        applied = self.applied
        if place.in_consumer != self._in_consumer:
            self._heard_at = 0.0
        elif place.sequence > applied.sequence + 1:
            self._diverge(GAP)
        elif place.sequence == applied.sequence and (frame.checksum if frame else "") != applied.checksum:
            self._diverge("the stream has another frame at the sequence that this node has applied last")
        else:
            return place.sequence > applied.sequence
        return False

    def _apply(self, place: Place, frame: Frame | None) -> Awaitable[None] | None:
        self.frames_in += 1
        applied = self.applied
        if not applied.admit(place.sequence, place.time_us, frame) or frame is None:
            self.state.note(applied)
            self.repeats += frame is not None
            if frame is not None and self._is_forgotten(frame):
                self._renumber()
            return None
        entries: Sequence[Entry | EventRange]
        back = None
        if frame.run == self._run:
            back = self._under_way.popleft()
            assert back.number == frame.number
            self._progress_at = monotonic()
            self._waiting_bytes -= sum(entry.nbytes for entry in back.entries if entry.is_recorded)
            entries = self._arrivals.own(frame, back.entries)
        else:
            entries = self._arrivals.others(frame)
        self.state.note(applied)
        for at, entry in enumerate(entries):
            if not self._is_written(entry):
                return self._write(entries[at:], place, frame, back)
        self._end_of(place, frame, back)
        return None

    async def _write(
        self, entries: Sequence[Entry | EventRange], place: Place, frame: Frame, back: _UnderWay | None
    ) -> None:
        """Give the writer what is left of a frame, when it takes events again."""
        for entry in entries:
            while not self.is_diverged and not self._is_written(entry):
                self._is_stalled = True
                await asyncio.sleep(_RETRY_S)
        self._is_stalled = False
        self._end_of(place, frame, back)

    def _end_of(self, place: Place, frame: Frame, back: _UnderWay | None) -> None:
        """Do what comes behind the events of a frame."""
        if frame.control is not None:
            self._controlled(frame.control, place.sequence)
            if back is not None and back.order is not None and not back.order.applied.done():
                back.order.applied.set_result(place.sequence)
        if self._inbox or self._orders:
            self._plan()

    def _is_written(self, entry: Entry | EventRange) -> bool:
        """Give an event to the writer; False while that takes none. What a restart applies again is on disk."""
        known = self._on_disk.pop(entry.position, None) if entry.is_recorded else None
        if known is not None or (entry.is_recorded and entry.position <= self._head):
            if isinstance(entry, Entry) and known not in (None, stored_row(entry.event, entry.position).crc):
                self._diverge("the stream has another event at an offset than this node's folder")
            return True
        if self._unwritten:
            return False
        try:
            self._append(entry)
        except HistoryUnavailable:
            return False
        return True

    def _is_forgotten(self, frame: Frame) -> bool:
        """Whether a frame was dropped although it is the next of this run: all nodes have forgotten those before it."""
        is_next = bool(self._under_way) and frame.number == self._under_way[0].number
        return is_next and frame.run == self._run and not self.applied.number_of(self._run)

    def _renumber(self) -> None:
        """Send what is under way as another run; this one was away for a day."""
        self._new_run()
        frames, self._under_way = self._under_way, deque()
        for number, frame in enumerate(frames, 1):
            self._under_way.append(self._packed(number, frame.entries, frame.order))
        self._number = len(frames)

    def _is_doubtful(self, why: str) -> bool:
        """Whether the stream seems to be another, for the reason `why`, and so takes no events.

        A NATS server that has just begun to lead may not have read all that is stored, so only time makes it sure.
        """
        if not why:
            self._doubted_at = 0.0
            return False
        now = monotonic()
        self._refused_until = now + _AGAIN_S
        self._doubted_at = self._doubted_at or now
        if now - self._doubted_at > _DOUBT_S:
            self._diverge(why)
        return True

    def _diverge(self, why: str) -> None:
        if not self.is_diverged:
            self.is_diverged, self.went_back = True, why not in _OF_THIS_NODE
            telemetry.log.error("cluster_diverged", why=why)

    # Watching over it

    async def _watch(self) -> None:
        """Connect, and from then on see to it that the stream is read and frames come back."""
        while True:
            try:
                await self._nats.open()
                break
            except OSError:  # of the files that prove who it is, which it has read when it joined
                await asyncio.sleep(_RETRY_S)
        space, node = self._options.space, self._options.node
        self._nats.subscribe(self._acks, self._acked)
        self._nats.subscribe(f"{space}.c.*", self._shared)
        self._nats.subscribe(subject_of_node(space, node), self._named)
        self._heard_at = 0.0
        while not self.is_diverged:
            try:
                await self._look(monotonic())
            except Exception as error:  # noqa: BLE001 - the next look must come, else the node would stay deaf
                telemetry.fault("cluster", error)
            await asyncio.sleep(_LOOK_S)
        if self._end_consumer is not None:
            self._end_consumer()

    def _named(self, message: Message) -> None:
        self._nats.publish(message.reply, self._options.node.encode())

    async def _look(self, now: float) -> None:
        if self._unwritten and self._store.refusal is None:
            self._write_again()
        if self._nats.away_since is not None:
            if self.away_s > _AWAY_S:
                self._refuse_unsent(now)
            return
        if now - self._heard_at > _QUIET_S and not self._is_stalled:
            await self._consume()
        if self._under_way and now - self._progress_at > _AGAIN_S and not self._is_stalled:
            self._progress_at = now
            self.resent += len(self._under_way)
            for frame in self._under_way:
                self._post(frame.data)
        if self._inbox or self._orders:
            self._plan()

    def _refuse_unsent(self, now: float) -> None:
        """Refuse what no frame has had, as it is stored nowhere.

        What is not durable is delivered at this node then, unless others are before it whose outcome is not known.
        """
        is_first = len(self._inbox) == len(self._commits.pending)
        unsent = [entry for entry in self._inbox if entry.is_durable or is_first]
        if unsent:
            self._inbox = deque(entry for entry in self._inbox if not (entry.is_durable or is_first))
            self._waiting_bytes -= sum(entry.nbytes for entry in unsent if entry.is_recorded)
            self._commits.withdrawn(unsent, StreamUnavailable(), now)
            self._flush()

    def _write_again(self) -> None:
        entries, self._unwritten = self._unwritten, []
        for at, entry in enumerate(entries):
            try:
                self._store.append(entry)
            except HistoryUnavailable:
                self._unwritten = entries[at:]
                return

    async def _consume(self) -> None:
        """Begin a consumer at the last message that was applied, if the stream still has it, to see that it is that."""
        if self._end_consumer is not None:
            self._end_consumer()
            self._end_consumer = None
        try:
            info = await self._nats.stream_info()
            if self._is_doubtful(check_place(info, self.applied)):
                self._heard_at = monotonic() - _QUIET_S + _RETRY_S
                return
            self._in_consumer = 0
            first = max(self.applied.sequence, info["state"]["first_seq"], 1)
            self._end_consumer = await self._nats.consume(secrets.token_hex(8), first, self._delivered)
            self._heard_at = monotonic()
        except ApiError as error:
            self._refused_until = monotonic() + _AGAIN_S
            self._heard_at = monotonic() - _QUIET_S + _RETRY_S
            telemetry.log.debug("cluster_consumer", error=str(error))
        except AwayErrors as error:
            self._heard_at = monotonic() - _QUIET_S + _RETRY_S
            if isinstance(error, TimeoutError):  # the server may stand still: another may not
                self._nats.renew()


def _is_own(entry: Entry | EventRange) -> bool:
    """Whether this node has published the event, so that it is pending here."""
    return isinstance(entry, Pending)


def _is_repeat(pending: Pending) -> bool:
    """Whether an own event got no offset, since another event had its key: its position is that one's."""
    return pending.event.position > 0 and not pending.is_recorded
