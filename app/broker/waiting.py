"""The bytes of the events that wait, and so whether the server takes more (`limits.waiting_bytes`).

An event waits from when it is put into an outbox until no outbox, no reply on its way and no list of unacknowledged
events has it any more. It counts once, whatever the number of sessions that it waits for: each place that has it is one
of its `holds`, and its bytes are counted while it has any. Its holds go with it:

* `Outbox.put` adds one. What an outbox drops, also because its session ends, is released there.
* `Outbox.take` hands the holds to its caller: `Broker.take` releases them, since what it returns is written at once, to
  a connection whose buffer has a bound of its own. `Broker.take_held` leaves that to its caller.
* A Bayeux `Reply` has one of each of its events until it is written, which releases it, or is known not to have been,
  which returns it to the outbox. It does so also after its session has ended.
* With the acknowledge extension the outbox has another one, from `Outbox.retain` to `Outbox.release`.

What else refers to an event does not count here and has a bound of its own: events that are pending
(`history.inbox_bytes`), the history's newest (`history.tail_bytes`), retained events and last values.
"""

from __future__ import annotations

from collections.abc import Iterable

from app.broker.events import Event
from app.broker.limits import Watermark


class Waiting(Watermark):
    """The bytes of all events that have `holds`, as a watermark: `value`, `peak`, and whether it `is_over`."""

    __slots__ = ()

    def hold(self, event: Event, times: int = 1) -> None:
        """Note that an event waits in so many more places.

        They may be noted after some of them have released it: during a fan-out its holds can be negative.
        """
        before = event.holds
        event.holds = after = before + times
        if before <= 0 < after:
            self.set(self.value + event.nbytes)

    def release(self, events: Iterable[Event]) -> None:
        """Note that each of the events has left one of the places in which it waited. On the hot path."""
        for event in events:
            event.holds = left = event.holds - 1
            if left == 0:
                self.let_go(event)

    def let_go(self, event: Event) -> None:
        """Note that an event waits nowhere any more."""
        self.set(self.value - event.nbytes)
