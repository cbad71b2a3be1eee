"""Lazy events (CometD's): they may wait a while for others, with which they are then delivered.

An event is lazy by the first [[lazy]] rule whose pattern matches its topic, or by `ext.lazy: true` of its publisher,
who can delay only his own. It is queued like any other and never overtaken. A connect is held though lazy events wait,
and answered when the first of them has waited for as long as it may; anything else that is delivered meanwhile takes
them along. What a program sends to one session alone is lazy only if the program says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from halley.broker.broker import Broker
from halley.broker.events import Event
from halley.broker.names import matches
from halley.broker.remembered import remembered
from halley.protocols.bayeux.names import NameLimits, to_pattern
from halley.protocols.bayeux.session import BayeuxSession, Hold
from halley.settings import Lazy


class Laziness:
    """Which events are lazy, and for how long: by `rules`, or without one for `usual_s`. Raises `InvalidName`."""

    def __init__(self, broker: Broker, rules: Iterable[Lazy], usual_s: float, bounds: NameLimits) -> None:
        self._broker = broker
        self._rules = tuple(
            (to_pattern(each.pattern, bounds), usual_s if each.lazy_s < 0 else each.lazy_s) for each in rules
        )
        self._usual_s = usual_s
        self.is_used = bool(self._rules)  # or an event was lazy by itself; else there is nothing to look at
        self._rule_s = remembered()(self._find)

    def mark(self, event: Event) -> None:
        """Make an event lazy that is to be delivered."""
        self.is_used = event.is_lazy = True

    def is_deferred(self, session: BayeuxSession, now: float) -> bool:
        """Whether something waits for a session, and all of it is lazy and may wait for longer.

        That is until `session.lazy_deadline`, which becomes the deadline of a held connect. Each event is looked at
        once: those up to `session.last_lazy` were lazy then. The time runs from an event's publication, so that it goes
        on while no connect is held.
        """
        queue, until = session.outbox.queue, inf
        if not (self.is_used and queue) or session.outbox.conflated is not None:
            return False
        for event in reversed(queue):
            if event is session.last_lazy:
                until = min(until, session.lazy_deadline)
                break
            wait_s = self._wait_s(event)
            if wait_s == 0:
                session.last_lazy = None
                return False
            event.is_lazy = True  # by a rule: its wait is not a delay (`flow.py`)
            published_at = event.time_us / 1_000_000 - self._broker.clock_offset_s
            until = min(until, published_at + wait_s, now + wait_s)  # another server's clock may be ahead
        session.last_lazy, session.lazy_deadline = queue[-1] if until > now else None, until
        if until <= now:
            return False
        if session.held is not None and until < session.deadline:
            self._broker.touch(session, until)
        return True

    def begin(self, hold: Hold, now: float) -> None:
        """Note when a hold ends that has begun, and that lazy events may have been waiting for it."""
        hold.until = now + hold.wait_s
        self.is_deferred(hold.session, now)

    def are_due(self, session: BayeuxSession, now: float) -> bool:
        """Whether a session's deadline is that of lazy events and not of its hold; what is due leaves in this turn."""
        hold = session.held
        if hold is None or hold.until <= now:
            return False
        self._broker.touch(session, hold.until)
        self._broker.mark_ready(session)
        return True

    def _wait_s(self, event: Event) -> float:
        """The seconds that an event may wait; 0 if it is not lazy."""
        if not event.is_lazy and not event.publication:  # of a program to one session
            return 0.0
        rule_s = self._rule_s(event.topic) if self._rules else None
        if rule_s is not None:
            return rule_s
        return self._usual_s if event.is_lazy else 0.0

    def _find(self, topic: str) -> float | None:
        return next((wait_s for pattern, wait_s in self._rules if matches(pattern, topic)), None)
