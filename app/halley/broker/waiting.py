"""The bytes of the events that wait, and so whether the server takes more (`limits.waiting_bytes`).

An event waits from when it is put into an outbox until no outbox, no reply on its way and no list of unacknowledged
events contains it any more. It counts once for all sessions: each of these places is one of its `refs`, and its bytes
are counted while it has any. They change as follows:

* `Outbox.put` adds a hold. For an event that the outbox drops, also because its session ends, the outbox releases it.
* `Outbox.take` and `Broker.take` leave the holds to their caller, who releases them when the events are written to a
  connection: its buffer has a bound of its own.
* A Bayeux `Reply` keeps one for each of its events, also after the end of its session. They are released when the reply
  is written; when it is not, they return to the outbox with the events.
* With the acknowledge extension there is another one from `Outbox.retain` to `Outbox.release`.

Other references to an event do not count here, and have bounds of their own: those of pending events
(`history.inbox_bytes`), of the history's newest events (`history.tail_bytes`), of retained events and of last values.
"""

from __future__ import annotations

from collections.abc import Iterable

from halley.broker.events import Event
from halley.broker.limits import Watermark


class QueuedBytes(Watermark):
    """The bytes of all events that have `refs`, as a watermark: `value`, `peak`, and whether it `is_over`."""

    __slots__ = ()

    def retain(self, event: Event, times: int = 1) -> None:
        """Note that an event waits in further places, `times` of them.

        Some of them may have released it before that is noted: during a fan-out the number of holds can be negative.
        """
        before = event.refs
        event.refs = after = before + times
        if before <= 0 < after:
            self.set(self.value + event.nbytes)

    def release(self, events: Iterable[Event]) -> None:
        """Note that each of the events has left one of the places in which it waited. On the hot path."""
        for event in events:
            event.refs = left = event.refs - 1
            if left == 0:
                self.drop(event)

    def drop(self, event: Event) -> None:
        """Stop counting an event that has no holds any more."""
        self.set(self.value - event.nbytes)
