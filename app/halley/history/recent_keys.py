"""The idempotency keys of a log's newest events, which a server remembers when it starts.

Events have the times of a wall clock, which can be set, and a server that is stopped forgets nothing. So the age of a
key is measured along the log: it is the sum of the pauses between the events from the key's on, of which each counts as
a second at most. In a busy log that is the time that has passed; in a quiet one it is less, and keys are remembered for
longer, never for much shorter.

Of more keys than there is room for, those are found that the server would still know had it not been stopped
(`broker/shared_table.py`). So where the newest are the anonymous', older ones are looked at for those of others.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import NamedTuple

from halley.broker.commits import PublishResult
from halley.broker.shared_table import part_of
from halley.history import key_digests, segment
from halley.history.folder import Segment
from halley.history.stored import COLUMNS, Stored

_PAUSE_US = 1_000_000
"""What a longer pause between two events counts as: it may be a clock that was set forward."""

_KEYED = (
    f"select {', '.join(COLUMNS)} from events where offset between ? and ? and idempotency_key is not null "  # noqa: S608
    "order by offset desc"
)
_TIMES = (
    "select offset, time_us, idempotency_key is not null, authid is null from stored where offset <= ? "
    "order by offset desc"
)


class RecentKey(NamedTuple):
    """A key, the authid of its publisher, what was published with it, and its age in seconds."""

    authid: str | None
    key: str
    published: PublishResult
    age_s: float


def recent_keys(segments: Sequence[Segment], head: int, most: int, age_s: float) -> list[RecentKey]:
    """The keys to remember, at most `most`, of a log that ends at the offset `head`, oldest first.

    None is older than `age_s` seconds. Blocks. Of a damaged segment only the keys of damaged rows are left out: a
    repeat must be recognized although the first event is not served.
    """
    found: list[RecentKey] = []
    age, room = _Age(int(age_s * 1_000_000)), _Room(most)
    for each in reversed(segments):
        if age.is_over or room.is_full:
            break
        last = head if each.last is None else each.last
        with suppress(sqlite3.Error), closing(segment.read(each.path, is_sealed=each.is_sealed)) as connection:
            ages = age.along(connection, last, room)
            rows = _keyed(connection, min(ages), last) if ages else []
            digests = key_digests.read(connection, min(ages), last) if ages else {}
            for row in rows:
                if row.offset in ages:
                    published = PublishResult(row.topic, row.offset, row.publication, digests.get(row.offset))
                    found.append(RecentKey(row.authid, row.idempotency_key or "", published, ages[row.offset] / 1e6))
    superfluous = len(found) - most
    kept = []
    for key in reversed(found):
        if superfluous > 0 and key.authid is None:
            superfluous -= 1
        else:
            kept.append(key)
    return kept


class _Room:
    """Counts the keys that are found, newest first, up to those that a table of `most` may have."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._of_the_anonymous = self._of_others = 0

    @property
    def is_full(self) -> bool:
        """Whether no older key, whosever it is, would be in the table."""
        return self._of_others + min(self._of_the_anonymous, part_of(self._most)) >= self._most

    def takes(self, *, is_anonymous: bool) -> bool:
        """Count a key, unless it is one of the anonymous that has no room with those found before."""
        if is_anonymous and self._of_others + self._of_the_anonymous >= self._most:
            return False
        self._of_the_anonymous += is_anonymous
        self._of_others += not is_anonymous
        return True


def _keyed(connection: sqlite3.Connection, first: int, last: int) -> list[Stored]:
    """The intact rows with an idempotency key from `first` to `last`, newest first. Raises `sqlite3.Error`."""
    try:
        rows = [Stored._make(row) for row in connection.execute(_KEYED, (first, last))]
    except UnicodeDecodeError as error:  # SQLite's error text quotes the damaged bytes
        raise sqlite3.DatabaseError("malformed") from error
    return [row for row in rows if row.is_intact]


class _Age:
    """The age of the event that was read last, going back along the log."""

    def __init__(self, most_us: int) -> None:
        self.is_over = False
        self._most_us = most_us
        self._us = 0
        self._later_us: int | None = None

    def along(self, connection: sqlite3.Connection, last: int, room: _Room) -> dict[int, int]:
        """The ages in microseconds of events with a key that `room` takes, by offset, from the offset `last` back."""
        ages: dict[int, int] = {}
        with suppress(sqlite3.Error):  # the part that cannot be read counts as one pause
            for offset, time_us, has_key, is_anonymous in connection.execute(_TIMES, (last,)):
                if not isinstance(time_us, int):  # a flipped bit
                    continue
                if self._later_us is not None:
                    self._us += min(max(0, self._later_us - time_us), _PAUSE_US)
                self._later_us = time_us
                self.is_over = self._us > self._most_us
                if self.is_over or room.is_full:
                    break
                if has_key and room.takes(is_anonymous=bool(is_anonymous)):
                    ages[offset] = self._us
        return ages
