"""The values on their way: collected by topic and by how clients want them, handed out once a period.

All clients that want a topic's values alike share one `Stream`; all streams with one period share a `Pace`. So a value
costs one append for each way in which it is wanted, however many clients there are, and a tick one write for each
client, however many values there were: the bytes are put together once for all who hear the same streams (nt4.md E).
A value that comes after a rest goes out in the turn in which it came.
"""

from __future__ import annotations

from itertools import chain
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from app.broker.flow import Flow
    from app.protocols.nt4.clients import Client
    from app.protocols.nt4.subscriptions import Interest
    from app.protocols.nt4.topics import Topic

Entry = tuple[int, bytes, object]
"""A value: a number that later ones have greater, its frame, and who published it."""


class Stream:
    """The values of one topic for all clients that hear it alike."""

    __slots__ = ("clients", "entries", "interest", "pace", "topic", "writers")

    def __init__(self, topic: Topic, interest: Interest, pace: Pace) -> None:
        self.topic = topic
        self.interest = interest
        self.pace = pace
        self.clients: dict[Client, None] = {}
        self.entries: list[Entry] = []
        self.writers: set[object] = set()  # of the entries, those that hear the topic and are not to hear themselves

    def put(self, entry: Entry, now_us: int, *, is_newest: bool) -> None:
        """Have a value go out with the next tick, in the place of what waits if only the newest is wanted."""
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
        """Give what waits to the clients that are here now: whoever comes next has the last value already."""
        for client in self.clients:
            client.backlog.put(self.topic, self.frames_for(client), is_all=self.interest.is_all)
        self.clear()

    def clear(self) -> None:
        """Nothing waits."""
        self.entries.clear()
        self.writers.clear()

    def frames_for(self, client: Client) -> list[bytes]:
        """What waits and was not published by that client itself (A38)."""
        return [frame for _, frame, origin in self.entries if origin is not client]


class Pace:
    """All streams with one period; `due` is when they are to be handed out next, infinity while nothing waits.

    Something has waited `since_us`, if anything does.
    """

    def __init__(self, period_ms: int, most_bytes: int, wake: Callable[[], None]) -> None:
        self.period_s = period_ms / 1000
        self.due = inf
        self.since_us = 0
        self.streams = 0  # that there are
        self._most_bytes = most_bytes
        self._wake = wake
        self._begun: dict[Stream, None] = {}
        self._nbytes = 0
        self._last = -inf

    def begin(self, stream: Stream, now_us: int) -> None:
        """Something waits in a stream in which nothing did."""
        if not self._begun:
            self.since_us = now_us
        self._begun[stream] = None
        if self.due == inf:
            self.due = self._last + self.period_s
            self._wake()

    def weigh(self, nbytes: int) -> None:
        """So many bytes more wait; too many do not wait any longer."""
        self._nbytes += nbytes
        if self._nbytes > self._most_bytes and self.due != -inf:
            self.due = -inf
            self._wake()

    def tick(self, now: float) -> list[Stream]:
        """The streams in which something waits; to be cleared when it has been handed out."""
        begun, self._begun = [stream for stream in self._begun if stream.entries], {}
        self._nbytes = 0
        # Ticks keep their beat when the loop is a little late, and begin another after a rest.
        self._last = self.due if self.due > now - self.period_s else now
        self.due = inf
        return begun


class Pacing:
    """All paces.

    `say` writes ready frames to a client, `linger` has what is in its backlog written when it may be, `pack` makes
    frames for all clients whose links are of one kind, and `wake` says that something may be due. `flow` counts values,
    once for each client, and the delay of the first in each flush.
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
        self.flushes = 0  # how often somebody was written to

    @property
    def due(self) -> float:
        """When something is to be handed out next."""
        return min((pace.due for pace in self._paces.values()), default=inf)

    def stream(self, topic: Topic, interest: Interest) -> Stream:
        """The values of a topic for those who want them so."""
        stream = topic.streams.get(interest)
        if stream is None:
            pace = self._paces.get(interest.period_ms)
            if pace is None:
                pace = self._paces[interest.period_ms] = Pace(interest.period_ms, self._most_bytes, self._wake)
            pace.streams += 1
            stream = topic.streams[interest] = Stream(topic, interest, pace)
        return stream

    def join(self, client: Client, stream: Stream) -> None:
        """From now on a client gets what goes through a stream."""
        self.settle(stream)
        stream.clients[client] = None
        client.streams[stream.topic] = stream

    def move(self, client: Client, stream: Stream) -> None:
        """From now on it gets a topic's values another way; what waits in the old one is not lost."""
        before = client.streams[stream.topic]
        self.settle(before)
        waiting = client.backlog.drop(stream.topic)
        self.leave(client, stream.topic)
        self.join(client, stream)
        client.backlog.put(stream.topic, waiting, is_all=stream.interest.is_all)

    def leave(self, client: Client, topic: Topic) -> None:
        """It gets nothing more, and nothing that waits; a stream without clients goes."""
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
        """Hand out what waits in a stream before its time, each client's to its backlog."""
        if stream.entries:
            stream.settle()
            for client in stream.clients:
                self._linger(client)

    def tick(self, now: float, now_us: int) -> None:
        """Hand out what is due."""
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
    """Streams that the same clients hear: who hears everything is looked for once, not in each of thousands."""

    __slots__ = ("streams", "writers")

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.writers: set[object] = set()

    def add(self, stream: Stream) -> None:
        """One more."""
        self.streams.append(stream)
        self.writers |= stream.writers


def _streams(groups: list[_Group]) -> Iterator[Stream]:
    return chain.from_iterable(group.streams for group in groups)


def _in_order(streams: list[Stream], without: Client | None) -> Iterator[bytes]:
    """All values of some streams in the order in which they came, but for those of one client."""
    entries = streams[0].entries
    if len(streams) > 1:
        entries = sorted(chain.from_iterable(stream.entries for stream in streams), key=itemgetter(0))
    return (frame for _, frame, origin in entries if without is None or origin is not without)
