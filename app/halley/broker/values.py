"""Events on topics that have a last value, NetworkTables' topics, on their way between their keeper and subscribers.

What other protocols publish on such a topic is passed to the keeper (`ports.Values`), which makes it a value. That is
delivered immediately, and recorded afterwards at the pace that its keeper has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from halley.broker.commits import Commits
from halley.broker.errors import NotForAll, OutcomeUnknown, Refusal
from halley.broker.events import COMMITTED, LIVE, Event, Stage
from halley.broker.faults import Report, notify
from halley.broker.names import Pattern
from halley.broker.pending import Pending
from halley.broker.ports import Values
from halley.broker.sessions import Session


class LastValues:
    """What the broker does with values; `keeper` is None where NetworkTables is not served."""

    def __init__(
        self,
        commits: Commits,
        stamp: Callable[[Event, float], None],
        fan_out: Callable[[Event, float, Stage, Session | None], None],
        counted: Callable[[Refusal], Refusal],
        report: Report,
    ) -> None:
        """`stamp` gives an event its time and publication, and `fan_out` delivers it to its subscribers."""
        self.keeper: Values | None = None
        self._commits = commits
        self._stamp = stamp
        self._fan_out = fan_out
        self._counted = counted
        self._report = report

    def keep_in(self, keeper: Values, arrived: Callable[[Event], None] | None = None) -> None:
        """Have `keeper` keep the last values; in a cluster `arrived` is called with each value of another node."""
        self.keeper = keeper
        self._commits.value_arrived = arrived

    def notify(self, note: Callable[[Values], None]) -> None:
        """Have the keeper, if there is one, note a change of sessions, which is complete."""
        if self.keeper is not None:
            notify((self.keeper,), note, self._report, "values")

    def publish(
        self, keeper: Values, event: Event, now: float, without: Session | None, source: object
    ) -> Pending | None:
        """Have an event of another protocol made a value. Raises `Refusal`, also `OutcomeUnknown` after a fault."""
        if event.audience is not None or event.chosen is not None:
            raise NotForAll
        self._stamp(event, now)
        try:
            pending = keeper.publish(event, now, without, source)
        except Refusal as refusal:
            raise self._counted(refusal) from None
        except Exception as fault:  # noqa: BLE001 - reported; some may have got the value
            self._report("values", fault)
            raise self._counted(OutcomeUnknown()) from None
        if event.idempotency_key is not None:
            self._commits.remember(event, now, pending)
        return pending

    def deliver(self, event: Event, now: float, *, without: Session | None = None) -> None:
        """Deliver a value immediately to its subscribers, except the session `without` and sessions that replay.

        The value gets a time and a publication if it has none yet. It is not written to the log.
        """
        if not event.publication:
            self._stamp(event, now)
        self._fan_out(event, now, LIVE, without)

    def record(self, event: Event, now: float) -> bool:
        """Append a value to the log if its topic is recorded; values are never durable. Return whether it was taken.

        Only sessions that replay receive it: when it is on disk, or immediately if the log does not take it.
        """
        self._stamp(event, now)
        if self._commits.record_value(event, now):
            return True
        self._fan_out(event, now, COMMITTED, None)
        return False

    def latest(self, patterns: Collection[Pattern], most: int, now: float) -> list[Event]:
        """The last values of topics that match any of `patterns`: the newest `most` of them, oldest first.

        Each has a publication.
        """
        events = [] if self.keeper is None else self.keeper.latest(patterns, most)
        for event in events:
            if not event.publication:  # it was not published since the server was started
                self._stamp(event, now)
        return events
