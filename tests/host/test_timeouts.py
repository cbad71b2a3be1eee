"""Deadlines of connections: overdue in the order in which they were set, and never extended by slow progress."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from halley.broker.aging import TimeoutQueue

NAMES = st.sampled_from("abcde")
LIMIT_S = 10


class Watching(RuleBasedStateMachine):
    """A queue of deadlines, compared with a dictionary of the time at which each connection was first watched."""

    @initialize()
    def start(self):
        self.queue = TimeoutQueue(LIMIT_S)
        self.since = {}
        self.now = 0

    @rule(name=NAMES)
    def watch(self, name):
        """S3: a deadline that runs already is not extended; a byte a second gains no time."""
        self.queue.add(name, self.now)
        self.since.setdefault(name, self.now)

    @rule(name=NAMES)
    def forget(self, name):
        self.queue.forget(name)
        self.since.pop(name, None)

    @rule(passed=st.integers(0, 8))
    def sweep(self, passed):
        """Each overdue connection is yielded once, oldest first."""
        self.now += passed
        expected = [name for name, since in self.since.items() if since + LIMIT_S <= self.now]
        assert list(self.queue.overdue(self.now)) == expected
        for name in expected:
            del self.since[name]

    @rule(passed=st.integers(8, 12))
    def sweep_and_end(self, passed):
        """Ending a connection can make the queue forget it, or another one that is overdue as well."""
        self.now += passed
        ended = []
        for name in self.queue.overdue(self.now):
            ended.append(name)
            for other in "ab":
                self.queue.forget(other)
                self.since.pop(other, None)
            self.since.pop(name, None)
        assert len(ended) == len(set(ended))
        assert not [name for name, since in self.since.items() if since + LIMIT_S <= self.now]

    @invariant()
    def none_is_watched_that_is_done(self):
        assert len(self.queue) == len(self.since)


TestWatching = Watching.TestCase
