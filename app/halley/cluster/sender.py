"""A node's events on their way into the stream: packed into frames, and sent until they come back.

What is appended while frames are under way goes into the next one. The stream has a frame when that comes back from it;
an acknowledgement by NATS says nothing of its order. While the first frame under way does not come back, all of them
are sent again, in order: of each run exactly the next number counts at all nodes (`applied.py`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import NamedTuple

from halley.broker.errors import InboxFull
from halley.broker.pending import Pending
from halley.cluster.availability import Availability, NoLeader, StreamFull
from halley.cluster.bounds import EventTooLarge, is_within_bounds
from halley.cluster.frames import FRAME_BYTES, Control, Frame, pack, row_of
from halley.nats.jetstream import NO_ROOM, Connection, error_code
from halley.nats.wire import Message

_ROW_BYTES = 256
"""About what a row takes in a frame besides its payload."""

MOST_ROWS = FRAME_BYTES // _ROW_BYTES
"""No frame has more events."""

_FRAME_S = 0.001
_FRAMES_PER_S = 500
"""Of all nodes together, if all are busy: a frame costs every node as much as a hundred events in it.

A node that has sent nothing for a while does not wait for this; one of 16 busy ones sends every 32 ms.
"""

_UNDER_WAY = 2
_AGAIN_S = 1.0
_RENEW_S = 43_200.0
"""A node that has sent nothing for so long begins a new run, before the nodes forget the old one (`applied.py`)."""


@dataclass(slots=True)
class InFlight:
    """A frame that has not come back; `entries` has those that are not recorded too, in their turn."""

    number: int
    data: bytes
    entries: list[Pending] = field(default_factory=list)
    command: Command | None = None


class NotOwn(Exception):
    """A frame has the run of this node, and was sent by another."""


class Command(NamedTuple):
    """A control to be sent; `applied` gets its sequence when it has come back."""

    control: Control
    applied: asyncio.Future[int]


class Sender:
    """The outgoing frames of one node. Its methods are for the event loop; none of them waits.

    `frames` counts those that were sent, `resent` included. `run` stands for the frames that are numbered together,
    `number` is that of the last one.
    """

    def __init__(self, nats: Connection, availability: Availability, inbox_bytes: int) -> None:
        """Of recorded events `inbox_bytes` may be on their way."""
        self.frames = self.resent = 0
        self.run = ""
        self.version = 1
        """The version of its frames (`consistency.FrameVersion`)."""
        self._node = nats.options.node
        self._subject = f"{nats.space}.f.{self._node}"
        self._acks = f"{nats.space}.a.{secrets.token_hex(8)}"
        self._nats = nats
        self._availability = availability
        self._inbox_bytes = inbox_bytes
        self._waiting_bytes = 0  # of recorded events that have not come back
        self.number = 0
        self._inbox: deque[Pending] = deque()
        self._commands: deque[Command] = deque()
        self._under_way: deque[InFlight] = deque()
        self._frame_s, self._others = _FRAME_S, 0  # frames of other nodes until a second ago
        self._is_running = self._is_due = False
        self._sent_at = self._progress_at = monotonic()
        self._begin_run()

    def begin(self) -> None:
        """Send from now on, on the running event loop."""
        self._is_running = True
        self._nats.subscribe(self._acks, self._acked)

    def _begin_run(self) -> None:
        self.run, self.number = f"{self._node}-{secrets.token_hex(6)}", 0

    # Into frames

    def append(self, pending: Pending) -> None:
        """Queue a recorded event for the next frame. Raises `InboxFull`, `EventTooLarge`."""
        if not is_within_bounds(pending.event):
            raise EventTooLarge
        nbytes = pending.nbytes
        if self._waiting_bytes and self._waiting_bytes + nbytes > self._inbox_bytes:
            raise InboxFull
        self._waiting_bytes += nbytes
        self._inbox.append(pending)
        self.plan()

    def append_unrecorded(self, pending: Pending) -> bool:
        """Have an event settled behind those on their way, though it is in no frame; False if there are none."""
        if self._inbox:
            self._inbox.append(pending)
        elif self._under_way:
            self._under_way[-1].entries.append(pending)
        else:
            return False
        return True

    def command(self, control: Control) -> asyncio.Future[int]:
        """Send a control; the result is its sequence in the stream, as soon as all before it is applied here."""
        command = Command(control, asyncio.get_running_loop().create_future())
        self._commands.append(command)
        self.plan()
        return command.applied

    def share_stream(self, nodes: int, frames_in: int) -> None:
        """Send as many frames as the others leave, or as each of `nodes` may; to be called once a second.

        `frames_in` counts the frames of all nodes that have come from the stream.
        """
        others = frames_in - self.frames
        left, self._others = _FRAMES_PER_S - (others - self._others), others
        self._frame_s = max(_FRAME_S, 1 / max(left, _FRAMES_PER_S / nodes))

    def plan(self) -> None:
        """Send a frame as soon as this node may, if something waits for one."""
        if (self._inbox or self._commands) and not self._is_due and self._is_running:
            self._is_due = True
            loop = asyncio.get_running_loop()
            loop.call_later(max(0.0, self._sent_at + self._frame_s - monotonic()), self._send)

    def _send(self) -> None:
        self._is_due = False
        is_idle = self._availability.healing_since is not None or not (self._inbox or self._commands)
        if is_idle or len(self._under_way) >= _UNDER_WAY or self._nats.away_since is not None:
            return  # `plan` is called again when a frame comes back, and by `check`
        entries, nbytes = [], 0
        command = self._commands.popleft() if self._commands else None
        while command is None and self._inbox and nbytes < FRAME_BYTES:
            entries.append(self._inbox.popleft())
            nbytes += len(entries[-1].event.payload) + _ROW_BYTES
        if not self._under_way:
            self._progress_at = monotonic()
            if self._progress_at - self._sent_at > _RENEW_S:
                self._begin_run()
        self.number += 1
        packed = self._packed(self.number, entries, command)
        while len(packed.data) > self._nats.max_payload and len(entries) > 1:  # long names, keys or details
            half = len(entries) // 2
            self._inbox.extendleft(reversed(entries[half:]))
            entries = entries[:half]
            packed = self._packed(self.number, entries, command)
        self._under_way.append(packed)
        self._sent_at = monotonic()
        self._publish(packed.data)
        self.plan()

    def _packed(self, number: int, entries: list[Pending], command: Command | None) -> InFlight:
        rows = [row_of(entry.event) for entry in entries if entry.is_recorded]
        data = pack(self.run, number, rows, command and command.control, self.version)
        return InFlight(number, data, entries, command)

    def _publish(self, data: bytes) -> None:
        self.frames += 1
        self._nats.publish(self._subject, data, self._acks)

    def _acked(self, message: Message) -> None:
        """Note a refusal of the stream. Other answers do not say in which order frames are stored."""
        if message.head or b'"error"' in message.data[:200]:
            self._availability.refused(StreamFull if error_code(message.data) in NO_ROOM else NoLeader)

    # Until they come back

    def returned(self, frame: Frame) -> InFlight:
        """Take the first frame under way, which has come back from the stream and counts.

        Raises `NotOwn` if it is another one: then the number is taken, so that the own one never counts.
        """
        if not self._under_way or not self._under_way[0].data.endswith(frame.checksum.encode()):
            raise NotOwn
        first = self._under_way.popleft()
        self._progress_at = monotonic()
        self._waits_no_more(first.entries)
        return first

    def check(self, now: float) -> None:
        """Send what is under way again if nothing has come back for too long."""
        if self._under_way and now - self._progress_at > _AGAIN_S:
            self._progress_at = now
            self.resent += len(self._under_way)
            for frame in self._under_way:
                self._publish(frame.data)

    def entries(self, number: int) -> list[Pending]:
        """The events of the frames under way up to that number."""
        return [entry for frame in self._under_way if frame.number <= number for entry in frame.entries]

    def stored(self, number: int) -> list[Pending]:
        """Take the events of the frames under way up to that number: they have counted, but do not come back."""
        entries = self.entries(number)
        self._waits_no_more(entries)
        while self._under_way and self._under_way[0].number <= number:
            command = self._under_way.popleft().command
            if command is not None and not command.applied.done():
                command.applied.set_exception(TimeoutError())
                command.applied.exception()  # nobody need wait for it
        self._progress_at = -inf
        return entries

    def dropped(self, frame: Frame, last_number: int) -> None:
        """Note that a frame was dropped; `last_number` is that of its run's last frame that counted, 0 for none.

        If it is the next of this run all nodes have forgotten those before it, since this one was away for a day: what
        is under way is sent as another run.
        """
        if self._under_way and frame.number == self._under_way[0].number and frame.run == self.run and not last_number:
            self._begin_run()
            frames, self._under_way = self._under_way, deque()
            for number, each in enumerate(frames, 1):
                self._under_way.append(self._packed(number, each.entries, each.command))
            self.number = len(frames)

    def _waits_no_more(self, entries: list[Pending]) -> None:
        self._waiting_bytes -= sum([entry.nbytes for entry in entries if entry.is_recorded])

    def withdraw(self, count: int) -> list[Pending]:
        """Take back the events that no frame has had: they are stored nowhere. `count` is how many wait in all.

        What is not durable stays behind others whose outcome is not known, if there are any.
        """
        is_first = len(self._inbox) == count
        withdrawn = [entry for entry in self._inbox if entry.is_durable or is_first]
        if withdrawn:
            self._inbox = deque(entry for entry in self._inbox if not (entry.is_durable or is_first))
            self._waits_no_more(withdrawn)
        return withdrawn

    def give_up(self) -> list[Pending]:
        """Take back all events that have not come back: whether they are stored is unknown."""
        abandoned = [entry for frame in self._under_way for entry in frame.entries] + [*self._inbox]
        for command in filter(None, [*(frame.command for frame in self._under_way), *self._commands]):
            command.applied.cancel()
        self._commands.clear()
        self._under_way.clear()
        self._inbox.clear()
        return abandoned
