"""What every node makes of the stream: which frames count, and each event's offset and time.

`Applied` is a pure function of the frames in the stream's order and of the stream's clock, so it comes to the same on
all nodes. Of each run exactly the next number counts, and every other frame is dropped: a sender may send a frame again
as often as it likes. An event whose idempotency key was used before, by any node, gets no offset.

A node saves `Applied` from time to time, never ahead of the rows on its disk. A node that starts again applies what
follows in the stream: that comes to the same offsets, and what is on disk already is not written again.

What is saved has a version, as frames have one (`frames.py`): names that a later one adds to it are passed over, and
all else that is new raises VERSION, in a version of Halley that reads both and still writes the one before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from halley.broker.aging import drop_expired
from halley.broker.ports import Erasure
from halley.cluster.frames import Frame, KeeperAnnouncement, Row

STEP_US = 1_000_000
"""A clock that goes back by less is being adjusted: the latest time counts instead."""

RUN_AGE_US = 86_400_000_000
"""How long the number of a run's last frame is remembered; no frame may be sent again after that."""

VERSION = 1
_MOST_KEEPERS = 64


class AnotherVersion(Exception):
    """A saved state is not one of this version."""


class First(NamedTuple):
    """The event for which an idempotency key was used."""

    offset: int
    time_us: int
    topic: str


class UsedKey(NamedTuple):
    """An idempotency key, the authid of its publisher, and the event for which it was used."""

    authid: str | None
    key: str
    first: First


class Numbered(NamedTuple):
    """An event of a frame that counts: its offset and time, or the event that used its key before it."""

    row: Row
    offset: int
    time_us: int
    repeats: First | None = None


class Applied:
    """The state after a part of the stream.

    stream    the id of the stream; one that was made again has another
    sequence  the last message of the stream that was seen; `checksum` is its frame's, "" if it was none
    offset    that of the last event, which is also how many events there are
    time_us   the time of the last event
    lead      by how much the number of an event's publication is above its offset; not 0 only in a log that is older
              than its cluster
    """

    def __init__(self, keys: int, key_age_us: int) -> None:
        """Begin with an empty stream; idempotency keys are remembered as the settings of all nodes say alike."""
        self.sequence = self.offset = self.time_us = self.lead = 0
        self.stream = self.checksum = ""
        self._most_keys = keys
        self._key_age_us = key_age_us
        self._runs: OrderedDict[str, tuple[int, int]] = OrderedDict()  # number and time of the last frame, by time
        self._keepers: OrderedDict[str, int] = OrderedDict()  # when each has said last that it is one, by that time
        self._keys: OrderedDict[tuple[str | None, str], First] = OrderedDict()  # in the order of use

    def begin(self, stream: str, offset: int, time_us: int, lead: int, keys: Iterable[UsedKey]) -> None:
        """Begin with an empty stream behind a history that ends with `offset`; `keys` are its newest, oldest first."""
        self.stream, self.offset, self.time_us, self.lead = stream, offset, time_us, lead
        self._keys = OrderedDict(((each.authid, each.key), each.first) for each in keys)

    def number_of(self, run: str) -> int:
        """The number of the last frame that counted of that run; 0 for an unknown one."""
        return self._runs.get(run, (0, 0))[0]

    def first_of(self, authid: str | None, key: str) -> First | None:
        """The event for which that publisher's key was used; None if it is not remembered."""
        return self._keys.get((authid, key))

    def apply(self, sequence: int, stream_us: int, frame: Frame | None) -> list[Numbered] | None:
        """Take the stream's next message: the events of a frame that counts, else None; see `admit`."""
        counts = self.admit(sequence, stream_us, frame)
        return self.number(frame) if counts and frame is not None else None

    def admit(self, sequence: int, stream_us: int, frame: Frame | None) -> bool:
        """Take the stream's next message; whether it is a frame that counts, whose events must be counted next.

        `stream_us` is the stream's own time of the message, in microseconds since 1970. A message that is not a frame
        is given as None.
        """
        if sequence <= self.sequence:
            return False
        self.sequence, self.checksum = sequence, "" if frame is None else frame.checksum
        if frame is None or frame.number != self.number_of(frame.run) + 1:
            return False
        if not self.time_us - STEP_US < stream_us < self.time_us:
            self.time_us = stream_us
        self._runs[frame.run] = frame.number, stream_us
        self._runs.move_to_end(frame.run)
        drop_expired(self._runs, lambda last: last[1] < stream_us - RUN_AGE_US, len(self._runs))
        if isinstance(frame.control, KeeperAnnouncement):
            self._keepers[frame.control.node] = stream_us
            self._keepers.move_to_end(frame.control.node)
            drop_expired(self._keepers, lambda announced_us: announced_us < stream_us - RUN_AGE_US, len(self._keepers))
            if len(self._keepers) > _MOST_KEEPERS:
                self._keepers.popitem(last=False)
        elif frame.control is not None:
            self._forget(frame.control)
        return True

    def number(self, frame: Frame) -> list[Numbered]:
        """The events of a frame that counts."""
        return [self._number(row) for row in frame.rows]

    def skip(self, frame: Frame) -> int:
        """Count the events of a frame that counts and is plain, without looking at them; the offset of the first."""
        first = self.offset + 1
        self.offset += frame.count
        return first

    def _forget(self, erasure: Erasure) -> None:
        """Forget the keys of events that are erased: a name and a topic are in them."""
        concerned = [name for name, first in self._keys.items() if erasure.concerns(first.topic, name[0])]
        for name in concerned:
            del self._keys[name]

    @property
    def keepers(self) -> Collection[str]:
        """The nodes that have had a folder within the last day."""
        return self._keepers.keys()

    def _number(self, row: Row) -> Numbered:
        if row.key is not None and self._most_keys:
            name = (row.kind.authid, row.key)
            first = self._keys.get(name)
            if first is not None and self.time_us - first.time_us <= self._key_age_us:
                return Numbered(row, first.offset, first.time_us, first)
            self._keys[name] = First(self.offset + 1, self.time_us, row.topic)
            self._keys.move_to_end(name)
            if len(self._keys) > self._most_keys:
                self._keys.popitem(last=False)
        self.offset += 1
        return Numbered(row, self.offset, self.time_us)

    def saved(self) -> dict[str, Any]:
        """The state as JSON values, for a file or another node; `restore` takes them."""
        return {
            "version": VERSION,
            "stream": self.stream,
            "lead": self.lead,
            "sequence": self.sequence,
            "checksum": self.checksum,
            "offset": self.offset,
            "time_us": self.time_us,
            "runs": [[run, *last] for run, last in self._runs.items()],
            "keepers": dict(self._keepers),
            "keys": [[*name, *first] for name, first in self._keys.items()],
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Go on from a state that was saved. Raises `AnotherVersion`."""
        try:
            if saved["version"] != VERSION:
                raise AnotherVersion
            self.sequence, self.offset, self.time_us = saved["sequence"], saved["offset"], saved["time_us"]
            self.stream, self.checksum, self.lead = saved["stream"], saved["checksum"], saved["lead"]
            self._runs = OrderedDict((run, (number, time_us)) for run, number, time_us in saved["runs"])
            self._keepers = OrderedDict(saved["keepers"])
            self._keys = OrderedDict(((authid, key), First(*first)) for authid, key, *first in saved["keys"])
        except (KeyError, TypeError, ValueError):
            raise AnotherVersion from None
