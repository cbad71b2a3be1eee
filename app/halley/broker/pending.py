"""An event on its way through the log: what the log is given of it, and what the broker keeps until it is settled."""

from __future__ import annotations

from math import inf
from typing import Protocol

from halley.broker.errors import Refusal
from halley.broker.events import Event
from halley.broker.sessions import Session


class Waiter(Protocol):
    """An object that waits for the result of a pending event."""

    def settled(self, event: Event, refusal: Refusal | None, now: float) -> None:
        """Receive the result: the event is on disk and delivered, or refused with `refusal`.

        It is called once for each time that the waiter was added to `Pending.waiters`.
        """


class Entry:
    """What a log is given (`ports.Log`): an event to be written or, if not `is_recorded`, to be reported in its turn.

    The entries of one `source` that are appended in the same turn of the event loop are written together.
    """

    __slots__ = ("event", "is_recorded", "source")

    def __init__(self, event: Event, source: object = None) -> None:
        self.event = event
        self.source = source
        self.is_recorded = True

    @property
    def position(self) -> int:
        """The event's offset in the log; 0 while it has none."""
        return self.event.position

    @property
    def nbytes(self) -> int:
        """About the event's size in memory, in bytes."""
        return self.event.nbytes


class Pending(Entry):
    """An event that was published here, from then until its log, or the server that takes it, has settled it.

    Its `source` is the publisher, a session or a request without one. The session `without` does not receive it. It
    `is_delivered` if those sessions have it already that do not replay; otherwise nobody has it yet. It `is_durable` if
    it is refused, not delivered, when it cannot be stored. `since` is when it was given to the log, in monotonic
    seconds; infinity if another server takes it.
    """

    __slots__ = ("is_delivered", "is_durable", "since", "waiters", "without")

    def __init__(self, event: Event, source: object = None, without: Session | None = None, since: float = inf) -> None:
        self.event = event  # not by `Entry.__init__`, which would cost each durable publish a call
        self.source = source
        self.is_recorded = True
        self.is_durable = False
        self.is_delivered = False
        self.without = without
        self.since = since
        self.waiters: list[Waiter] = []
