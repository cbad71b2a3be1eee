"""What every node makes of the stream: which frames count, and each event's offset and time.

`StreamState` is a pure function of the frames in the stream's order and of the stream's clock, so it comes to the same
on all nodes. Of each run exactly the next number counts, and every other frame is dropped: a sender may send a frame
again as often as it likes. An event whose idempotency key was used before, by any node, gets no offset.

A keeper saves what each message changes with the rows of its events, in one transaction (`history/state.py`). A node
that starts again applies what follows in the stream, which comes to the same offsets.

**The rules have a version**, which is in what is saved, and rises with the first frame of a later version (`frames.py`)
that counts: so it does at all nodes alike. A node writes such frames when all others know them (`consistency.py`).

    1  What was sent again is recognized for a day by the stream's clock, and a key is as old as that clock says. It is
       the clock of the NATS server that leads: where that is set, or another leads, frames would count twice and keys
       would be forgotten.
    2  What is sent again is recognized while there are not too many runs. The age of a key is the sum of the pauses
       between frames, each of which counts for a second at most, as in the log of a single server (`recent_keys.py`).
       When there are too many keys, the one that was used longest ago is forgotten, whosever it is: a stranger who
       publishes enough with keys has everybody's forgotten.
    3  When there are too many keys, one that is too old is forgotten, else one of the anonymous while they have more
       than their part, else the oldest of all (`broker/shared_table.py`).

Names that a later version of Halley adds to what is saved are passed over.

What was sent with idempotency keys decides nothing of that (`digests`): only the node whose client has used a key again
compares it, to answer that client. It is saved with the rows (`history/key_digests.py`), and not here; a keeper adds it
to what it has saved for other nodes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from halley.broker.ports import Erasure
from halley.broker.shared_table import SharedTable, part_of
from halley.cluster.frames import (
    DIGESTS,
    Frame,
    KeeperAnnouncement,
    KeeperDismissal,
    Row,
    control_of,
    control_to_json,
    digests_from_json,
)
from halley.history.state import AT, Change, Name

STEP_US = 1_000_000
"""A clock that goes back by less is being adjusted: the latest time counts instead."""

PAUSE_US = 1_000_000
"""What a longer pause between two frames counts as for the age of keys: it may be a clock that was set forward."""

RUN_AGE_US = 86_400_000_000
"""How long version 1 remembers the number of a run's last frame; no frame may be sent again after that."""

MOST_RUNS = 10_000
"""Of how many runs version 2 remembers that number: the latest ones."""

VERSION = 3
"""The latest version of the rules that is known."""

_SHARED = 3
"""The version of the rules from which on the anonymous lose their keys first."""

_MOST_KEEPERS = 64
_RUN, _KEEPER, _ERASURE = "run/", "keeper/", "erasure/"


class AnotherVersion(Exception):
    """A saved state is not one of this version."""


class KeyEntry(NamedTuple):
    """The event for which an idempotency key was used."""

    offset: int
    time_us: int
    topic: str
    clock_us: int
    """The clock by which keys age, as it was then."""


class NumberedRow(NamedTuple):
    """An event of a frame that counts: its offset and time, or the event that used its key before it."""

    row: Row
    offset: int
    time_us: int
    repeats: KeyEntry | None = None


class StreamState:
    """The state after a part of the stream. A part of it is saved under the name that `changed` gives it.

    stream    the id of the stream; one that was made again has another
    sequence  the last message of the stream that was seen; `checksum` is its frame's, "" if it was none
    offset    that of the last event, which is also how many events there are
    time_us   the time of the last frame that counted, and of its events
    rules     their version
    clock_us  the clock by which keys age
    digests   of what was sent with the keys, by the offset of their events, as far as this node knows them
    lead      by how much the number of an event's publication is above its offset; not 0 only in a log that is older
              than its cluster
    """

    def __init__(self, keys: int, key_age_us: int) -> None:
        """Begin with an empty stream; idempotency keys are remembered as the settings of all nodes say alike."""
        self.sequence = self.offset = self.time_us = self.clock_us = self.lead = 0
        self.rules = 1
        self.stream = self.checksum = ""
        self._most_keys = keys
        self._key_age_us = key_age_us
        self._runs: OrderedDict[str, tuple[int, int]] = OrderedDict()  # number and time of the last frame, by time
        self._keepers: OrderedDict[str, int] = OrderedDict()  # when each has said last that it is one, by that time
        self._keys = _table_of([])
        self.digests: dict[int, bytes] = {}
        self._after = 0  # the sequence before the last message
        self._changed: dict[Name, Any] = {}  # by it

    def begin(
        self, stream: str, offset: int, time_us: int, lead: int, keys: Iterable[tuple[tuple[str | None, str], KeyEntry]]
    ) -> None:
        """Begin with an empty stream behind a history that ends with `offset`.

        `keys` are its newest idempotency keys, oldest first: the authid of the publisher, the key, and its event.
        """
        self.stream, self.offset, self.lead = stream, offset, lead
        self.time_us = self.clock_us = time_us
        self._keys = _table_of(keys)
        self.digests = {}

    def know(self, digests: Mapping[int, bytes]) -> None:
        """Take over digests of what was sent with the keys, by the offset of their events."""
        offsets = {first.offset for _, first in self._keys.items()}
        self.digests |= {offset: digest for offset, digest in digests.items() if offset in offsets}

    def number_of(self, run: str) -> int:
        """The number of the last frame that counted of that run; 0 for an unknown one."""
        return self._runs.get(run, (0, 0))[0]

    def first_of(self, authid: str | None, key: str) -> KeyEntry | None:
        """The event for which that publisher's key was used; None if it is not remembered."""
        return self._keys.of(is_anonymous=authid is None).get((authid, key))

    def apply(self, sequence: int, stream_us: int, frame: Frame | None) -> list[NumberedRow] | None:
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
        self._after, self._changed = self.sequence, {}
        self.sequence, self.checksum = sequence, "" if frame is None else frame.checksum
        if frame is None or frame.number != self.number_of(frame.run) + 1:
            return False
        self.rules = max(self.rules, frame.version)
        before_us = self.time_us
        if not self.time_us - STEP_US < stream_us < self.time_us:
            self.time_us = stream_us
        if self.rules == 1:
            self.clock_us = self.time_us
        else:
            self.clock_us += min(max(0, self.time_us - before_us), PAUSE_US)
        self._count_run(frame, stream_us)
        if isinstance(frame.control, KeeperAnnouncement):
            self._note_keeper(frame.control.node, stream_us)
        elif isinstance(frame.control, KeeperDismissal):
            self._keepers.pop(frame.control.node, None)
            self._changed[f"{_KEEPER}{frame.control.node}"] = None
        elif frame.control is not None:
            self._changed[name_of_erasure(sequence)] = [control_to_json(frame.control), self.offset]
            self._forget(frame.control)
        return True

    def _count_run(self, frame: Frame, stream_us: int) -> None:
        self._runs[frame.run] = frame.number, stream_us
        self._runs.move_to_end(frame.run)
        if self.rules == 1:
            while next(iter(self._runs.values()))[1] < stream_us - RUN_AGE_US:
                self._changed[f"{_RUN}{self._runs.popitem(last=False)[0]}"] = None
        while self.rules > 1 and len(self._runs) > MOST_RUNS:
            self._changed[f"{_RUN}{self._runs.popitem(last=False)[0]}"] = None
        self._changed[f"{_RUN}{frame.run}"] = [self.sequence, frame.number, stream_us]

    def _note_keeper(self, node: str, stream_us: int) -> None:
        self._keepers[node] = stream_us
        self._keepers.move_to_end(node)
        if len(self._keepers) > _MOST_KEEPERS:
            gone, _ = self._keepers.popitem(last=False)
            self._changed[f"{_KEEPER}{gone}"] = None
        self._changed[f"{_KEEPER}{node}"] = [self.sequence, stream_us]

    def number(self, frame: Frame) -> list[NumberedRow]:
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
            self._drop(self._keys.of(is_anonymous=name[0] is None).pop(name))

    @property
    def keepers(self) -> Collection[str]:
        """The nodes with a folder, also those that are away, until they are dismissed."""
        return self._keepers.keys()

    def _number(self, row: Row) -> NumberedRow:
        if row.key is not None and self._most_keys:
            name = (row.kind.authid, row.key)
            table = self._keys.of(is_anonymous=name[0] is None)
            first = table.get(name)
            if first is not None and not self._is_old(first):
                return NumberedRow(row, first.offset, first.time_us, first)
            if first is not None:
                self._drop(first)
            used = table[name] = KeyEntry(self.offset + 1, self.time_us, row.topic, self.clock_us)
            table.move_to_end(name)
            self._changed[used.offset] = _key(name, used)
            if row.digest is not None:
                self.digests[used.offset] = row.digest
            if len(self._keys) > self._most_keys:
                self._drop(self._forgotten())
        self.offset += 1
        return NumberedRow(row, self.offset, self.time_us)

    def _drop(self, first: KeyEntry) -> None:
        """Save nothing more of a key, which is forgotten."""
        self._changed[first.offset] = None
        self.digests.pop(first.offset, None)

    def _forgotten(self) -> KeyEntry:
        """Forget a key because there are too many: for which event it was used."""
        keys = self._keys
        if self.rules < _SHARED or self._is_old(keys.oldest()):
            return keys.lose(of_the_anonymous=False)[1]
        return keys.lose(of_the_anonymous=len(keys.anonymous) > part_of(self._most_keys))[1]

    def _is_old(self, first: KeyEntry) -> bool:
        return self.clock_us - first.clock_us > self._key_age_us

    def _at(self) -> dict[str, Any]:
        at = {
            "version": self.rules,
            "stream": self.stream,
            "lead": self.lead,
            "sequence": self.sequence,
            "checksum": self.checksum,
            "offset": self.offset,
            "time_us": self.time_us,
        }
        return at if self.rules == 1 else at | {"clock_us": self.clock_us}

    def changed(self) -> Change:
        """What the last message has changed, once its events are counted.

        There is a value for each run, each keeper and each key, by the offset of its event; and one for each erasure,
        which is due at this node from then on.
        """
        self._changed[AT] = self._at()
        return Change(self._after, self.sequence, self.offset, self._changed)

    def values(self) -> dict[Name, Any]:
        """The whole state, as `changed` has parts of it."""
        values: dict[Name, Any] = {AT: self._at()}
        values |= {f"{_RUN}{run}": [turn, *last] for turn, (run, last) in enumerate(self._runs.items())}
        values |= {f"{_KEEPER}{node}": [turn, time_us] for turn, (node, time_us) in enumerate(self._keepers.items())}
        return values | {first.offset: _key(name, first) for name, first in self._keys.items()}

    def saved(self) -> dict[str, Any]:
        """The state as JSON values, for another node; `restore` takes them."""
        return document(self.values())

    def restore(self, saved: dict[str, Any]) -> None:
        """Go on from a state that was saved. Raises `AnotherVersion`."""
        try:
            if not 1 <= saved["version"] <= VERSION:
                raise AnotherVersion
            self.rules = saved["version"]
            self.sequence, self.offset, self.time_us = saved["sequence"], saved["offset"], saved["time_us"]
            self.stream, self.checksum, self.lead = saved["stream"], saved["checksum"], saved["lead"]
            self.clock_us = saved["time_us" if self.rules == 1 else "clock_us"]
            self._runs = OrderedDict((run, (number, time_us)) for run, number, time_us in saved["runs"])
            self._keepers = OrderedDict(saved["keepers"])
            self._keys = _table_of(
                ((authid, key), KeyEntry(offset, time_us, topic, *(clock_us or [time_us])))
                for authid, key, offset, time_us, topic, *clock_us in saved["keys"]
            )
            self.digests = {}
            self.know(digests_from_json(saved.get(DIGESTS, {})))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise AnotherVersion from None


def _table_of(keys: Iterable[tuple[tuple[str | None, str], KeyEntry]]) -> SharedTable[tuple[str | None, str], KeyEntry]:
    """The table with these keys, oldest first."""
    table: SharedTable[tuple[str | None, str], KeyEntry] = SharedTable(lambda first: first.offset)
    for name, first in keys:
        table.of(is_anonymous=name[0] is None)[name] = first
    return table


def _key(name: tuple[str | None, str], first: KeyEntry) -> list[Any]:
    """A key as it is saved; without its clock where that is its time, as it is by the rules of version 1."""
    return [*name, *first][: 5 if first.clock_us == first.time_us else 6]


def document(values: Mapping[Name, Any]) -> dict[str, Any]:
    """A whole state in the form of `StreamState.saved`."""
    named = sorted((name, value) for name, value in values.items() if isinstance(name, str) and name != AT)

    def those(prefix: str) -> list[list[Any]]:
        found = [[name.removeprefix(prefix), *value] for name, value in named if name.startswith(prefix)]
        return sorted(found, key=lambda each: each[1])  # by their turns

    return {
        **values[AT],
        "runs": [[run, number, time_us] for run, _, number, time_us in those(_RUN)],
        "keepers": {node: time_us for node, _, time_us in those(_KEEPER)},
        "keys": [values[offset] for offset in sorted(name for name in values if isinstance(name, int))],
    }


def name_of_erasure(sequence: int) -> str:
    """The name under which the erasure with that sequence is saved while it is due."""
    return f"{_ERASURE}{sequence}"


def due_erasures(values: Mapping[Name, Any]) -> Iterator[tuple[int, Erasure, int]]:
    """The erasures that a saved state says are due: sequence, erasure, and the last offset that it concerns."""
    names = [name for name in values if isinstance(name, str) and name.startswith(_ERASURE)]
    due = [(int(name.removeprefix(_ERASURE)), *values[name]) for name in names]
    for sequence, as_json, last in sorted(due):
        control = control_of(as_json)
        if isinstance(control, Erasure):
            yield sequence, control, last
