"""What CometD's and Salesforce's extensions keep: unacknowledged events, clock offsets, and gaps of a replay.

**Acknowledge** (CometD's): events are kept until the client's next connect acknowledges them. `ext.ack: true` stands in
both handshake messages; then each connect reply carries `ext.ack: N`, which closes batch N, and each connect carries
`ext.ack: k`, which frees all batches up to k. Events that are not freed are sent again, before newer events and in a
batch with a new number, but their first number frees them too. A client that lost a reply repeats its old k and gets
all of the events again.

**Timesync** (CometD's): a client learns the network's lag and the offset of its clock. It sends `ext.timesync:
{tc, l, o}` (its time, and its estimates of lag and offset, in ms); a handshake or connect reply has `{tc, ts, p, a}`:
the client's time again, ours when the message was received, how long the reply took, and the error of the estimate
(`a = tc + o + l - ts`). For a client that is already accurate to 25 ms the reply has none, which ends the exchange.

**Replay** (Salesforce's, see `history.py`): the events that a replaying session misses because they no longer exist are
gaps. A gap is reported once, on a connect reply after which no earlier event is outstanding, and again if that reply
was not written to its socket.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from halley.broker.events import Event
from halley.broker.names import Pattern
from halley.broker.replaying import Gap

_ACCURATE_MS = 25
_LARGEST_MS = 2**53  # beyond any real clock; sums of such values stay within what JSON carries
_GAPS = 300


class Acks:
    """The events of one session that were sent and not yet acknowledged."""

    __slots__ = ("_unacknowledged", "batch")

    def __init__(self) -> None:
        self.batch = 0
        """The number of the newest batch."""
        self._unacknowledged: deque[tuple[int, Event]] = deque()

    def __len__(self) -> int:
        return len(self._unacknowledged)

    def __iter__(self) -> Iterator[Event]:
        """Iterate over the unacknowledged events, oldest first."""
        for _, event in self._unacknowledged:
            yield event

    def acknowledge(self, batch: int) -> list[Event]:
        """Free and return the events of all batches up to `batch`, which may be any number."""
        freed = []
        while self._unacknowledged and self._unacknowledged[0][0] <= batch:
            freed.append(self._unacknowledged.popleft()[1])
        return freed

    def discard(self, is_unwanted: Callable[[Event], bool]) -> list[Event]:
        """Free and return the events for which `is_unwanted` is true: they are not sent again."""
        freed = [event for _, event in self._unacknowledged if is_unwanted(event)]
        self._unacknowledged = deque(each for each in self._unacknowledged if not is_unwanted(each[1]))
        return freed

    def close_batch(self, fresh: Sequence[Event]) -> list[Event]:
        """Add `fresh` events in a new batch; return all that the connect reply carries, the unacknowledged ones first.

        The new batch's number is `batch`.
        """
        self.batch += 1
        self._unacknowledged.extend((self.batch, event) for event in fresh)
        return [event for _, event in self._unacknowledged]


class Timesync(NamedTuple):
    """The timesync request of one message, with its times in milliseconds."""

    client_ms: int | float
    arrived_ms: int
    error_ms: int
    is_wanted: bool

    @classmethod
    def read(cls, ext: dict[str, Any] | None, arrived_s: float) -> Timesync | None:
        """Read the request in the `ext` of a message; None if it is missing or invalid.

        `arrived_s` is the wall clock at which the message was received, in seconds.
        """
        requested = (ext or {}).get("timesync")
        if not isinstance(requested, dict):
            return None
        client_ms, lag_ms, offset_ms = (requested.get(name, 0) for name in ("tc", "l", "o"))
        if "tc" not in requested or not all(_is_number(value) for value in (client_ms, lag_ms, offset_ms)):
            return None
        arrived_ms = int(arrived_s * 1000)
        error_ms = round(client_ms + offset_ms + lag_ms - arrived_ms)
        is_wanted = "l" not in requested or lag_ms == 0 or abs(error_ms) >= _ACCURATE_MS
        return cls(client_ms, arrived_ms, error_ms, is_wanted)

    def answer(self, now_s: float) -> dict[str, int | float]:
        """The reply's `ext.timesync` if the reply is written at `now_s` of the wall clock."""
        taken_ms = int(now_s * 1000) - self.arrived_ms
        return {"tc": self.client_ms, "ts": self.arrived_ms, "p": taken_ms, "a": self.error_ms}


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= _LARGEST_MS


class Replay:
    """The gaps of one session's replay: `gaps` are not reported yet, `reported` are part of a reply not yet written.

    `reported_to` is the connection of that reply. `in_data`: positions are added to the events' data too. `reader` is
    the newest connect that has waited for a page.
    """

    __slots__ = ("gaps", "in_data", "reader", "reported", "reported_to")

    def __init__(self, *, in_data: bool) -> None:
        self.in_data = in_data
        self.gaps: list[Gap] = []
        self.reported: list[Gap] = []
        self.reported_to: object = None
        self.reader: object = None

    def miss(self, gap: Gap) -> None:
        """Add a gap, unless it is already known; too many gaps of a pattern are merged into one."""
        if gap in self.gaps:
            return
        if len(self.gaps) >= _GAPS:
            same = [known for known in self.gaps if known.pattern == gap.pattern]
            self.gaps = [known for known in self.gaps if known.pattern != gap.pattern]
            gap = span([*same, gap])
        self.gaps.append(gap)

    def report_again(self) -> None:
        """Queue the gaps in `reported` again: the reply with them may not have arrived."""
        reported, self.reported = self.reported, []
        self.gaps = [*reported, *(gap for gap in self.gaps if gap not in reported)]

    def forget(self, pattern: Pattern) -> None:
        """Drop the gaps of a pattern."""
        self.gaps = [gap for gap in self.gaps if gap.pattern != pattern]
        self.reported = [gap for gap in self.reported if gap.pattern != pattern]


def span(gaps: Iterable[Gap]) -> Gap:
    """A gap that covers all of `gaps`, which are of one pattern."""
    patterns, firsts, lasts = zip(*gaps, strict=True)
    return Gap(patterns[0], min(firsts), max(lasts))
