"""Throughput and delay: for each protocol, the events that its clients published and received.

A delay is the time from an event's publication until it is written to a ready subscriber (`DELAY`). A subscriber is
ready while its poll is held or its connection takes data, and for some time after that: until its interval between two
polls has passed (`advice.interval`), and one second more (`GRACE_S`). So a delay includes the commit that a durable
event waits for, and the time until a client that polls is back.

An event that is written later than that has waited for its subscriber, and no delay is counted for it: one client that
polls when it likes, or does not read, would skew the quantiles of all, which are to show what the server does. It
is not counted from the subscriber's return either: that is always nothing, and would make the quantiles too good. Such
events are seen where they wait, in the queues of sessions. If a subscriber returns late because the server was too slow
to read its poll, that is seen in the delays of the others, and in the lag of the event loop.

Counted is the oldest of the events that are written together, but none that was read from the history or is lazy, and
no value of NetworkTables that waited for a client that did not read. Over WAMP's long-polling an event counts as
written when it can be fetched.

The topics that were published to most recently are remembered, each with its count. Clients make up topics, so the
number of them is bounded: when it is reached, a new topic takes the place of one that has been idle for long, and the
events of that one stay counted. Which one is found by the second-chance algorithm: each topic in turn, unless it was
published to since its last turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from halley.broker.ports import Erasure
from halley.broker.traceparent import read, with_traceparent

DELAY = "from an event's publication until it is written to a ready subscriber"
"""The definition in the words of the metrics, the console and the pages."""

GRACE_S: Final = 1.0
"""How long a subscriber still counts as ready after it was: several round trips on a bad network."""

_EXACT_BITS: Final = 4
_STEPS = 1 << _EXACT_BITS
"""Delays are counted in classes, each at most an eighth as wide as the delays in it."""

_LONGEST_US: Final = 600_000_000
"""Ten minutes; longer ones count as this."""


class Delays:
    """A histogram of delays: its size is fixed, regardless of the number of delays."""

    __slots__ = ("counts", "total_us")

    def __init__(self) -> None:
        self.counts = [0] * (_class_of(_LONGEST_US) + 1)
        self.total_us = 0

    def note(self, us: int, times: int = 1) -> tuple[int, int]:
        """Count a delay of `us` microseconds, `times` times. On the hot path: `_class_of` is inlined.

        Returns the microseconds and the class that were counted, which are limited.
        """
        if not 0 <= us <= _LONGEST_US:  # wall clocks can be set back
            us = 0 if us < 0 else _LONGEST_US
        shift = us.bit_length() - _EXACT_BITS
        number = us if shift <= 0 else (shift << (_EXACT_BITS - 1)) + (us >> shift)
        self.counts[number] += times
        self.total_us += us * times
        return us, number

    def since(self, before: Delays) -> Delays:
        """The delays noted since `before` was copied from this."""
        later = Delays()
        later.counts = [now - then for now, then in zip(self.counts, before.counts, strict=True)]
        later.total_us = self.total_us - before.total_us
        return later

    def copy(self) -> Delays:
        """A copy of the counts as they are now, to be passed to `since` later."""
        return self.since(Delays())

    def __len__(self) -> int:
        return sum(self.counts)

    def quantile_ms(self, share: float) -> float | None:
        """About the delay in milliseconds that a `share` (0 to 1) of all did not exceed; None without any delay."""
        left = len(self) * share
        if not left:
            return None
        last = 0
        for number, count in enumerate(self.counts):
            if count:
                last = number
                left -= count
                if left <= 0:
                    break
        return _top_of(last) / 1000

    def up_to(self, us: int) -> int:
        """About how many delays were at most `us` microseconds."""
        return sum(self.counts[: _class_of(us) + 1])


class Flow:
    """The numbers of events that one protocol's clients have published and received, and the delays of deliveries.

    `malformed_traceparents` is how often a publisher has given one that was left out (`traceparent.py`).
    """

    __slots__ = (
        "_class",
        "_time_us",
        "_us",
        "_written_at",
        "delays",
        "delivered",
        "malformed_traceparents",
        "published",
    )

    def __init__(self) -> None:
        self.published = 0
        self.delivered = 0
        self.malformed_traceparents = 0
        self.delays = Delays()
        # of the latest delay: the event's time, when it was written, and what was counted
        self._time_us, self._written_at = -1, 0.0
        self._us = self._class = 0

    def traced(self, details: str | None, name: str, given: object) -> str | None:
        """Return an event's details with the `traceparent` that its publisher has given, by the protocol's name for it.

        A malformed one is counted and left out.
        """
        traceparent = read(given)
        if traceparent is None:
            self.malformed_traceparents += 1
            return details
        return with_traceparent(details, name, traceparent)

    def note_delay(self, time_us: int, now: float, clock_offset_s: float) -> None:
        """Count the delay of an event of the time `time_us` that is written now. On the hot path.

        It is the same for all who get the event in one turn. `clock_offset_s` is the wall clock minus that of `now`.
        """
        if time_us == self._time_us and now == self._written_at:
            self.delays.counts[self._class] += 1
            self.delays.total_us += self._us
        else:
            self._time_us, self._written_at = time_us, now
            self._us, self._class = self.delays.note(int((now + clock_offset_s) * 1_000_000) - time_us)


def _class_of(us: int) -> int:
    """The class of `us` microseconds: small numbers have one each, larger ones share it by their first bits."""
    shift = us.bit_length() - _EXACT_BITS
    return us if shift <= 0 else (shift << (_EXACT_BITS - 1)) + (us >> shift)


def _top_of(number: int) -> int:
    """The longest delay of a class, in microseconds."""
    if number < _STEPS:
        return number
    shift = (number >> (_EXACT_BITS - 1)) - 1
    first = number - (shift << (_EXACT_BITS - 1))
    return ((first + 1) << shift) - 1


class TopicStats:
    """One topic's count of published events, and the time of the last one in the event loop's seconds.

    `seen` is the count at its latest turn to be forgotten.
    """

    __slots__ = ("last", "published", "seen")

    def __init__(self) -> None:
        self.published = 0
        self.seen = 1  # the publish that created it does not count as a further one
        self.last = 0.0


_CHANCES: Final = 16
"""Topics that are looked at to make room for one; where all of them are busy, the next one goes all the same."""


class RecentTopics:
    """The traces of at most `most` topics."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.traces: dict[str, TopicStats] = {}  # by canonical topic
        self._turns: deque[str] = deque()  # the same topics, the one whose turn is next first
        self.forgotten = 0  # events of topics that are no longer remembered

    def note(self, topic: str, now: float) -> None:
        """Count a publish on `topic` at `now` (monotonic seconds). On the hot path."""
        trace = self.traces.get(topic)
        if trace is None:
            if len(self.traces) >= self._most:
                self._forget()
            trace = self.traces[topic] = TopicStats()
            self._turns.append(topic)
        trace.published += 1
        trace.last = now

    def latest(self) -> Iterator[tuple[str, TopicStats]]:
        """All remembered topics with their traces, the most recently active first."""
        return iter(sorted(self.traces.items(), key=lambda entry: entry[1].last, reverse=True))

    def erase(self, erasure: Erasure) -> None:
        """Forget the topics of events that are erased (`ports.Erasable`); their publishers are not known here."""
        for topic in [topic for topic in self.traces if erasure.concerns(topic, None)]:
            self.forgotten += self.traces.pop(topic).published
        self._turns = deque(topic for topic in self._turns if topic in self.traces)

    def _forget(self) -> None:
        """Forget a topic that was not published to since its last turn."""
        for _ in range(_CHANCES):
            trace = self.traces[self._turns[0]]
            if trace.published == trace.seen:
                break
            trace.seen = trace.published
            self._turns.rotate(-1)
        self.forgotten += self.traces.pop(self._turns.popleft()).published
