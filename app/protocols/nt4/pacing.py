"""Pacing: values are collected by topic and by the options that clients want them with, and sent once a period.

All clients that want a topic's values with the same options share one `Stream`; all streams with the same period share
a `Pace`. So a value costs one append for each stream, regardless of the number of clients, and a tick costs one write
for each client, regardless of the number of values: the bytes are assembled once for all clients with the same streams.
A value that is received after a rest of a period is sent in the same turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING

from app.broker.flow import Flow
from app.protocols.nt4.subscriptions import Interest

if TYPE_CHECKING:
    from app.protocols.nt4.clients import Client
    from app.protocols.nt4.topics import Topic

Entry = tuple[int, bytes, object]
"""A value: an increasing number, its encoded bytes, and its publisher."""


class Stream:
    """The pending values of one topic, for all clients that want them with the same options."""

    __slots__ = ("clients", "entries", "interest", "pace", "topic", "writers")

    def __init__(self, topic: Topic, interest: Interest, pace: Pace) -> None:
        self.topic = topic
        self.interest = interest
        self.pace = pace
        self.clients: dict[Client, None] = {}
        self.entries: list[Entry] = []
        self.writers: set[object] = set()  # of the entries, those that are also clients of the stream

    def put(self, entry: Entry, now_us: int, *, is_newest: bool) -> None:
        """Add a value for the next tick; it replaces the pending one if the clients want only the newest."""
        entries = self.entries
        if not entries:
            self.pace.begin(self, now_us)
        elif not self.interest.is_all:
            if not is_newest:
                return
            entries.clear()
        entries.append(entry)
        if entry[2] in self.clients:
            self.writers.add(entry[2])
        self.pace.weigh(len(entry[1]))

    def settle(self) -> None:
        """Move the pending values to the backlogs of the current clients; a new client gets the last value anyway."""
        for client in self.clients:
            client.backlog.put(self.topic, self.frames_for(client), is_all=self.interest.is_all)
        self.clear()

    def clear(self) -> None:
        """Drop the pending values."""
        self.entries.clear()
        self.writers.clear()

    def frames_for(self, client: Client) -> list[bytes]:
        """Return the encoded pending values that the client did not publish itself (NA38)."""
        return [frame for _, frame, origin in self.entries if origin is not client]


class Pace:
    """All streams with one period.

    `due` is the time of the next tick in monotonic seconds, infinity while no values are pending; `since_us` is when
    the first pending value was received, in microseconds.
    """

    def __init__(self, period_ms: int, most_bytes: int, wake: Callable[[], None]) -> None:
        self.period_s = period_ms / 1000
        self.due = inf
        self.since_us = 0
        self.streams = 0  # the number of streams with this period
        self._most_bytes = most_bytes
        self._wake = wake
        self._begun: dict[Stream, None] = {}
        self._nbytes = 0
        self._last = -inf

    def begin(self, stream: Stream, now_us: int) -> None:
        """Note that a stream has its first pending value."""
        if not self._begun:
            self.since_us = now_us
        self._begun[stream] = None
        if self.due == inf:
            self.due = self._last + self.period_s
            self._wake()

    def weigh(self, nbytes: int) -> None:
        """Count `nbytes` more of pending values; beyond the bound the pace is due immediately."""
        self._nbytes += nbytes
        if self._nbytes > self._most_bytes and self.due != -inf:
            self.due = -inf
            self._wake()

    def tick(self, now: float) -> list[Stream]:
        """Begin the next period, and return the streams with pending values; the caller clears them afterwards."""
        begun, self._begun = [stream for stream in self._begun if stream.entries], {}
        self._nbytes = 0
        # Ticks keep their rhythm when the loop is a little late, and begin a new one after a rest.
        self._last = self.due if self.due > now - self.period_s else now
        self.due = inf
        return begun


class Pacing:
    """All paces of a server.

    `say` writes encoded frames to a client, `linger` schedules a client's backlog, `pack` makes frames for all clients
    whose links are of the same kind, and `wake` notes that something may be due. `flow` counts values, once for each
    client, and the delay of the first in each flush. `most_bytes` bounds the pending values of each pace.
    """

    def __init__(
        self,
        flow: Flow,
        most_bytes: int,
        say: Callable[[Client, list[bytes]], None],
        linger: Callable[[Client], None],
        pack: Callable[[Client, list[bytes]], list[bytes]],
        wake: Callable[[], None],
    ) -> None:
        self._flow = flow
        self._most_bytes = most_bytes
        self._say = say
        self._linger = linger
        self._pack = pack
        self._wake = wake
        self._paces: dict[int, Pace] = {}
        self.flushes = 0  # the number of writes to clients

    @property
    def due(self) -> float:
        """When `tick` is to be called next, in monotonic seconds; infinity if no values are pending."""
        return min((pace.due for pace in self._paces.values()), default=inf)

    def stream(self, topic: Topic, interest: Interest) -> Stream:
        """Return the stream of a topic's values for an interest; a new one if there is none."""
        stream = topic.streams.get(interest)
        if stream is None:
            pace = self._paces.get(interest.period_ms)
            if pace is None:
                pace = self._paces[interest.period_ms] = Pace(interest.period_ms, self._most_bytes, self._wake)
            pace.streams += 1
            stream = topic.streams[interest] = Stream(topic, interest, pace)
        return stream

    def join(self, client: Client, stream: Stream) -> None:
        """Add a client to a stream, from the next value on."""
        self.settle(stream)
        stream.clients[client] = None
        client.streams[stream.topic] = stream

    def move(self, client: Client, stream: Stream) -> None:
        """Move a client to another stream of the same topic, without losing its waiting values."""
        before = client.streams[stream.topic]
        self.settle(before)
        waiting = client.backlog.drop(stream.topic)
        self.leave(client, stream.topic)
        self.join(client, stream)
        client.backlog.put(stream.topic, waiting, is_all=stream.interest.is_all)

    def leave(self, client: Client, topic: Topic) -> None:
        """Remove a client from a topic's stream and drop its waiting values; a stream without clients is deleted."""
        stream = client.streams.pop(topic)
        del stream.clients[client]
        client.backlog.drop(topic)
        if not stream.clients:
            stream.clear()
            del topic.streams[stream.interest]
            stream.pace.streams -= 1
            if not stream.pace.streams:
                del self._paces[stream.interest.period_ms]

    def settle(self, stream: Stream) -> None:
        """Move a stream's pending values to the clients' backlogs before the next tick."""
        if stream.entries:
            stream.settle()
            for client in stream.clients:
                self._linger(client)

    def tick(self, now: float, now_us: int) -> None:
        """Send the pending values of all paces that are due; `now_us` is the server's time in microseconds."""
        for pace in [pace for pace in self._paces.values() if pace.due <= now]:
            begun, flushes = pace.tick(now), self.flushes
            self._hand_out(begun)
            self._flow.delays.note(now_us - pace.since_us, self.flushes - flushes)
            for stream in begun:
                stream.clear()

    def _hand_out(self, begun: list[Stream]) -> None:
        groups: dict[tuple[Client, ...], _Group] = {}
        for stream in begun:
            groups.setdefault(tuple(stream.clients), _Group()).add(stream)
        shares: dict[Client, list[_Group]] = {}
        for clients, group in groups.items():
            for client in clients:
                shares.setdefault(client, []).append(group)
        made: dict[tuple[object, ...], tuple[list[bytes], int]] = {}
        for client, heard in shares.items():
            if client.is_paused or len(client.backlog):
                for stream in _streams(heard):
                    client.backlog.put(stream.topic, stream.frames_for(client), is_all=stream.interest.is_all)
                self._linger(client)
                continue
            wrote = any(client in group.writers for group in heard)
            key = (client if wrote else client.link.kind, *heard)
            found = made.get(key)
            if found is None:
                frames = list(_in_order([*_streams(heard)], client if wrote else None))
                found = made[key] = (self._pack(client, frames), len(frames))
            data, count = found
            if count:
                self.flushes += 1
                self._flow.delivered += count
                self._say(client, data)


class _Group:
    """Streams with the same clients, so that thousands of streams need not be handled one by one for each client."""

    __slots__ = ("streams", "writers")

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.writers: set[object] = set()

    def add(self, stream: Stream) -> None:
        """Add a stream."""
        self.streams.append(stream)
        self.writers |= stream.writers


def _streams(groups: list[_Group]) -> Iterator[Stream]:
    return chain.from_iterable(group.streams for group in groups)


def _in_order(streams: list[Stream], without: Client | None) -> Iterator[bytes]:
    """Yield all pending values of some streams in the order of receipt, except those that one client published."""
    entries = streams[0].entries
    if len(streams) > 1:
        entries = sorted(chain.from_iterable(stream.entries for stream in streams), key=itemgetter(0))
    return (frame for _, frame, origin in entries if without is None or origin is not without)
