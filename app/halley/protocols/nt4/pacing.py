"""Pacing: what clients get, and when.

Control messages and values that are due leave at the end of a turn, in one write for each client (`Output`). Values are
collected before that by topic and by the options that clients want them with, and sent once a period (NA56). All
clients that want a topic's values with the same options share one `Stream`; all streams with the same period share a
`Pace`. So a value costs one append for each stream, regardless of the number of clients, and a tick costs one write for
each client, regardless of the number of values: the bytes are assembled once for all clients with the same streams. A
value that is received after a rest of a period is sent in the same turn.

Values for a client that does not keep up wait in its `Backlog`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import chain, count
from math import inf
from operator import itemgetter
from typing import NamedTuple

from halley.broker.flow import Flow
from halley.broker.sessions import Outputs, Session
from halley.protocols.contract import Close, Link
from halley.protocols.nt4 import messages, values
from halley.protocols.nt4.topics import Topic

_AT_ONCE_BYTES = 16_384
"""About how much of one client's backlog is written in one turn of the loop, so that other clients get theirs."""


class Interest(NamedTuple):
    """The combined options of a client for a topic: all values or the newest of each period; periods are in ms."""

    is_all: bool
    period_ms: int


Entry = tuple[int, bytes, object]
"""A value: an increasing number, its encoded bytes, and the session that published it."""


class Backlog:
    """Values that wait for a client that does not keep up: all of them while they are few, then the newest.

    A topic's newest value takes no additional memory, since the topic keeps it, so only older values count towards
    `max_bytes`. Beyond that the backlog keeps only the newest value of each topic, until it is empty (NA56).
    `conflated` counts the values that the client wanted and will not get.
    """

    __slots__ = ("_is_conflating", "_max_bytes", "_older_bytes", "_waiting", "conflated")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._waiting: OrderedDict[Topic, list[bytes]] = OrderedDict()  # oldest first, never empty
        self._older_bytes = 0
        self._is_conflating = False
        self.conflated = 0

    def __len__(self) -> int:
        """Return the number of topics with waiting values."""
        return len(self._waiting)

    def has_last(self, topic: Topic) -> bool:
        """Return whether a topic's last value waits."""
        return topic.frame in self._waiting.get(topic, ())

    def put(self, topic: Topic, frames: list[bytes], *, is_all: bool) -> None:
        """Add encoded values of a topic; unless `is_all`, only the newest value of the topic is kept."""
        if not frames:
            return
        waiting = self._waiting.setdefault(topic, [])
        self._older_bytes += (len(waiting[-1]) if waiting else 0) + sum(map(len, frames[:-1]))
        waiting += frames
        if not is_all:
            self._thin(topic, waiting)
        elif self._is_conflating:
            self.conflated += self._thin(topic, waiting)
        elif self._older_bytes > self._max_bytes:
            self._is_conflating = True
            self.conflated += sum(self._thin(*each) for each in self._waiting.items())

    def take(self, enough_bytes: int) -> list[bytes]:
        """Remove and return waiting values until they are `enough_bytes` or more; longest-waiting topics come first.

        The values of a topic are taken together.
        """
        taken: list[bytes] = []
        nbytes = 0
        while self._waiting and nbytes < enough_bytes:
            frames = self.drop(next(iter(self._waiting)))
            nbytes += sum(map(len, frames))
            taken += frames
        return taken

    def drop(self, topic: Topic) -> list[bytes]:
        """Remove and return the waiting values of one topic."""
        frames = self._waiting.pop(topic, [])
        self._older_bytes -= sum(map(len, frames[:-1]))
        if not self._waiting:
            self._is_conflating = False
        return frames

    def _thin(self, topic: Topic, waiting: list[bytes]) -> int:
        """Keep only the newest of a topic's values, which need not be the last one; return the number of the others."""
        others = len(waiting) - 1
        if others:
            self._older_bytes -= sum(map(len, waiting[:-1]))
            newest = topic.frame if topic.frame in waiting else None
            waiting[:] = [newest or waiting[-1]]
        return others


class Output:
    """The output of one client: what is written at the end of this turn, its streams and its backlog.

    `mark_ready` has the session flushed at the end of the turn. While `is_paused`, the link takes nothing.
    """

    __slots__ = ("_closing", "_frames", "_mark_ready", "_texts", "backlog", "is_paused", "link", "session", "streams")

    def __init__(
        self, session: Session, link: Link, mark_ready: Callable[[Session], None], max_backlog_bytes: int
    ) -> None:
        self.session = session
        self.link = link
        self.streams: dict[Topic, Stream] = {}
        self.backlog = Backlog(max_backlog_bytes)
        self.is_paused = False
        self._mark_ready = mark_ready
        self._texts: list[bytes] = []
        self._frames: list[bytes] = []
        self._closing: tuple[int, str] | None = None  # the code and reason of the close that follows

    def write_text(self, text: bytes) -> None:
        """Send one text message, batched with other messages of this turn."""
        self._texts.append(text)
        self._mark_ready(self.session)

    def write_frames(self, frames: list[bytes]) -> None:
        """Send frames that are already encoded, after the text messages sent before."""
        if self._texts:
            self._frame_texts()
        self._frames += frames
        self._mark_ready(self.session)

    def write_values(self, encoded: list[bytes]) -> None:
        """Send encoded values in order, in frames of about `messages.MESSAGE_BYTES`."""
        self.write_frames(self.frames_of(encoded))

    def close(self, code: int, reason: str) -> None:
        """Close the link after the output so far; `code` is a WebSocket close code."""
        self._closing = (code, reason)
        self._mark_ready(self.session)

    def frames_of(self, encoded: list[bytes]) -> list[bytes]:
        """Return frames of encoded values; they may be written to all links of the same kind."""
        return [*map(self.link.binary, values.packed(encoded))]

    def schedule_drain(self) -> None:
        """Have a part of the backlog sent in this turn, if the client reads."""
        self._mark_ready(self.session)

    def drain_backlog(self) -> int:
        """Send a part of the backlog, if the client reads; return the number of values sent."""
        if self.is_paused or self.session.closed is not None:
            return 0
        taken = self.backlog.take(_AT_ONCE_BYTES)
        if taken:
            self.write_values(taken)
        if len(self.backlog):
            self.schedule_drain()
        return len(taken)

    def take(self) -> Outputs:
        """Take what is to be written now: frames, or frames and a close; nothing for a client that is lost."""
        self._frame_texts()
        frames, self._frames = self._frames, []
        if self._closing is not None:
            closing, self._closing = self._closing, None
            return ((self.link, Close(frames, *closing)),)
        return ((self.link, frames),) if frames and self.session.closed is None else ()

    def _frame_texts(self) -> None:
        if self._texts:
            texts, self._texts = self._texts, []
            self._frames += map(self.link.text, messages.packed(texts))


class Stream:
    """The pending values of one topic, for all clients that want them with the same options."""

    __slots__ = ("audience", "entries", "interest", "outputs", "pace", "topic", "writers")

    def __init__(self, topic: Topic, interest: Interest, pace: Pace) -> None:
        self.topic = topic
        self.interest = interest
        self.pace = pace
        self.outputs: dict[object, Output] = {}  # by session
        self.audience: frozenset[Output] | None = None  # the same outputs, once they are known for a tick
        self.entries: list[Entry] = []
        self.writers: set[object] = set()  # the sessions that published entries and also are clients of the stream

    def move_to_backlogs(self) -> None:
        """Move the pending values to the backlogs of the current clients; a new client gets the last value anyway."""
        for output in self.outputs.values():
            output.backlog.put(self.topic, self.values_for(output), is_all=self.interest.is_all)
        self.clear()

    def clear(self) -> None:
        """Drop the pending values, which were sent or moved; the topic keeps its last value."""
        self.entries.clear()
        if self.writers:
            self.writers.clear()

    def values_for(self, output: Output) -> list[bytes]:
        """Return the encoded pending values that the client did not publish itself (NA38)."""
        session = output.session
        return [encoded for _, encoded, origin in self.entries if origin is not session]


class Pace:
    """All streams with one period; `wake` is called when `due` has become earlier.

    `due` is the time of the next tick in monotonic seconds, infinity while no values are pending; `since_us` is when
    the first pending value was received, in microseconds; `nbytes` is the size of the pending values, and the pace is
    due at once if that is more than `max_bytes`.
    """

    def __init__(self, period_ms: int, max_bytes: int, wake: Callable[[], None]) -> None:
        self.period_s = period_ms / 1000
        self.due = inf
        self.since_us = 0
        self.streams = 0  # the number of streams with this period
        self.max_bytes = max_bytes
        self.nbytes = 0
        self._wake = wake
        self._pending: dict[Stream, None] = {}
        self._last = -inf

    def start(self, stream: Stream, now_us: int) -> None:
        """Note that a stream has its first pending value."""
        if not self._pending:
            self.since_us = now_us
        self._pending[stream] = None
        if self.due == inf:
            self.due = self._last + self.period_s
            self._wake()

    def hurry(self) -> None:
        """Be due immediately, because more than `max_bytes` are pending."""
        if self.due != -inf:
            self.due = -inf
            self._wake()

    def tick(self, now: float) -> list[Stream]:
        """Begin the next period, and return the streams with pending values; the caller clears them afterwards."""
        pending, self._pending = [stream for stream in self._pending if stream.entries], {}
        self.nbytes = 0
        # Ticks keep their rhythm when the loop is a little late, and begin a new one after a rest.
        self._last = self.due if self.due > now - self.period_s else now
        self.due = inf
        return pending


class Pacing:
    """All streams of a server, and their paces.

    `flow` counts values, once for each client, and the delay of the first in each flush. `max_bytes` bounds the pending
    values of each pace. `wake` notes that something may be due.
    """

    def __init__(self, flow: Flow, max_bytes: int, wake: Callable[[], None]) -> None:
        self._flow = flow
        self._max_bytes = max_bytes
        self._wake = wake
        self._paces: dict[int, Pace] = {}  # by period in ms
        self._streams: dict[Topic, dict[Interest, Stream]] = {}  # no topic without a stream
        self._audiences: dict[frozenset[Output], frozenset[Output]] = {}  # so that streams share equal ones
        self._numbers = count(1)  # of values
        self.flushes = 0  # the number of writes to clients

    # Values

    def put(self, topic: Topic, encoded: bytes, origin: object, now_us: int, *, is_newest: bool) -> None:
        """Add a topic's value to its streams; `origin` is the session that published it."""
        streams = self._streams.get(topic)
        if streams is None:
            return
        entry = (next(self._numbers), encoded, origin)
        for stream in streams.values():
            entries, pace = stream.entries, stream.pace
            if not entries:
                pace.start(stream, now_us)
            elif not stream.interest.is_all:  # the clients want only the newest
                if not is_newest:
                    continue
                entries.clear()
            entries.append(entry)
            if origin in stream.outputs:
                stream.writers.add(origin)
            pace.nbytes += len(encoded)
            if pace.nbytes > pace.max_bytes:
                pace.hurry()

    def send_last(self, output: Output, topic: Topic) -> None:
        """Send a topic's last value to a client of one of its streams, unless it already waits for the client."""
        stream = output.streams[topic]
        self._settle(stream)
        if topic.frame is not None and not output.backlog.has_last(topic):
            output.backlog.put(topic, [topic.frame], is_all=stream.interest.is_all)
            output.schedule_drain()

    # Who gets them

    def has_subscribers(self, topic: Topic) -> bool:
        """Return whether any client gets a topic's values."""
        return topic in self._streams

    def count_subscribers(self, topic: Topic) -> int:
        """Return the number of clients that get a topic's values."""
        return sum(len(stream.outputs) for stream in self._streams.get(topic, {}).values())

    def set_interest(self, output: Output, topic: Topic, interest: Interest | None) -> None:
        """Have a client get a topic's values from the next one on, in another way, or no longer if that is None.

        Where only the way changes, values that wait for the client are not lost.
        """
        before = output.streams.get(topic)
        if interest is None:
            if before is not None:
                self.leave(output, topic)
        elif before is None:
            self._join(output, topic, interest)
        elif before.interest != interest:
            self._settle(before)
            waiting = output.backlog.drop(topic)
            self.leave(output, topic)
            self._join(output, topic, interest)
            output.backlog.put(topic, waiting, is_all=interest.is_all)

    def leave(self, output: Output, topic: Topic) -> None:
        """End a topic's values for a client, with those that wait; a stream without clients is deleted."""
        stream = output.streams.pop(topic)
        del stream.outputs[output.session]
        self._regroup(stream)
        output.backlog.drop(topic)
        if not stream.outputs:
            stream.clear()
            streams = self._streams[topic]
            del streams[stream.interest]
            if not streams:
                del self._streams[topic]
            stream.pace.streams -= 1
            if not stream.pace.streams:
                del self._paces[stream.interest.period_ms]

    def leave_all(self, output: Output) -> None:
        """End all values for a client."""
        for topic in tuple(output.streams):
            self.leave(output, topic)

    def end(self, topic: Topic) -> None:
        """End a topic: its clients get the waiting values in this turn, before anything that they are sent later."""
        for stream in tuple(self._streams.get(topic, {}).values()):
            stream.move_to_backlogs()
            for output in tuple(stream.outputs.values()):
                waiting = output.backlog.drop(topic)
                if waiting:
                    output.write_values(waiting)
                    self._flow.delivered += len(waiting)
                self.leave(output, topic)

    def _join(self, output: Output, topic: Topic, interest: Interest) -> None:
        streams = self._streams.setdefault(topic, {})
        stream = streams.get(interest)
        if stream is None:
            pace = self._paces.get(interest.period_ms)
            if pace is None:
                pace = self._paces[interest.period_ms] = Pace(interest.period_ms, self._max_bytes, self._wake)
            pace.streams += 1
            stream = streams[interest] = Stream(topic, interest, pace)
        self._settle(stream)
        stream.outputs[output.session] = output
        self._regroup(stream)
        output.streams[topic] = stream

    def _regroup(self, stream: Stream) -> None:
        stream.audience = None
        self._audiences.clear()

    def _settle(self, stream: Stream) -> None:
        """Move a stream's pending values to the clients' backlogs before the next tick."""
        if stream.entries:
            stream.move_to_backlogs()
            for output in stream.outputs.values():
                output.schedule_drain()

    # Ticks

    @property
    def due(self) -> float:
        """When `tick` is to be called next, in monotonic seconds; infinity if no values are pending."""
        return min((pace.due for pace in self._paces.values()), default=inf)

    def tick(self, now: float, now_us: int) -> None:
        """Send the pending values of all paces that are due; `now_us` is the server's time in microseconds."""
        for pace in [pace for pace in self._paces.values() if pace.due <= now]:
            pending, flushes = pace.tick(now), self.flushes
            self._send(pending)
            self._flow.delays.note(now_us - pace.since_us, self.flushes - flushes)
            for stream in pending:
                stream.clear()

    def _send(self, pending: list[Stream]) -> None:
        groups: dict[frozenset[Output], _Group] = {}
        for stream in pending:
            audience = stream.audience or self._audience_of(stream)
            group = groups.get(audience)
            if group is None:
                group = groups[audience] = _Group()
            group.add(stream)
        shares: dict[Output, list[_Group]] = {}
        for group in groups.values():
            for output in group.streams[0].outputs.values():
                shares.setdefault(output, []).append(group)
        made: dict[tuple[object, ...], tuple[list[bytes], int]] = {}
        for output, share in shares.items():
            if output.is_paused or len(output.backlog):
                for stream in _streams(share):
                    output.backlog.put(stream.topic, stream.values_for(output), is_all=stream.interest.is_all)
                output.schedule_drain()
                continue
            session = output.session
            wrote = any(session in group.writers for group in share)
            key = (output if wrote else output.link.kind, *share)
            found = made.get(key)
            if found is None:
                encoded = _in_order([*_streams(share)], session if wrote else None)
                found = made[key] = (output.frames_of(encoded), len(encoded))
            frames, number = found
            if number:
                self.flushes += 1
                self._flow.delivered += number
                output.write_frames(frames)

    def _audience_of(self, stream: Stream) -> frozenset[Output]:
        """Return the outputs of a stream as a set, whose hash is computed once for all ticks."""
        audience = frozenset(stream.outputs.values())
        stream.audience = audience = self._audiences.setdefault(audience, audience)
        return audience


class _Group:
    """Streams with the same clients, so that thousands of streams need not be handled one by one for each client."""

    __slots__ = ("streams", "writers")

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.writers: set[object] = set()

    def add(self, stream: Stream) -> None:
        self.streams.append(stream)
        if stream.writers:
            self.writers |= stream.writers


def _streams(groups: list[_Group]) -> Iterator[Stream]:
    return chain.from_iterable([group.streams for group in groups])


def _in_order(streams: list[Stream], without: Session | None) -> list[bytes]:
    """Return all pending values of some streams in the order of receipt, except those that one session published."""
    entries = streams[0].entries
    if len(streams) > 1:
        entries = sorted(chain.from_iterable([stream.entries for stream in streams]), key=itemgetter(0))
    if without is None:
        return [entry[1] for entry in entries]
    return [entry[1] for entry in entries if entry[2] is not without]
