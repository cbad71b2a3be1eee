"""The heap of deadlines: it misses no session and returns none too early (CometD #674)."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from support.broker import session

from halley.broker import sessions as deadlines_module
from halley.broker.sessions import Deadlines

seconds = st.integers(0, 50)


def entries(heap):
    """Return all entries, in no order."""
    return [*heap._heap, *heap._former]


class Heap(RuleBasedStateMachine):
    """The heap compared with a dictionary, with a clock that only goes forward."""

    sessions = Bundle("sessions")

    @initialize()
    def start(self):
        self.heap = Deadlines()
        self.expected = {}
        self.now = 0
        self.count = 0

    @rule(target=sessions, after=seconds)
    def add(self, after):
        self.count += 1
        new = session(str(self.count))
        self.heap.add(new, self.now + after)
        self.expected[new] = self.now + after
        return new

    @rule(who=sessions, after=st.integers(-5, 50))
    def move(self, who, after):
        """Move a deadline to a later or an earlier time; one in the past is due immediately."""
        self.heap.move(who, self.now + after)
        self.expected[who] = self.now + after

    @rule(who=consumes(sessions))
    def remove(self, who):
        self.heap.remove(who)
        del self.expected[who]

    @rule(passed=seconds)
    def due(self, passed):
        """Exactly the sessions whose deadline has passed are due, each once; they stay in the heap."""
        self.now += passed
        due = self.heap.due(self.now)
        assert len(due) == len(set(due))
        assert set(due) == {who for who, deadline in self.expected.items() if deadline <= self.now}

    @rule(passed=seconds, after=st.integers(1, 50))
    def renew(self, passed, after):
        """Give each session that is due more time, as owners usually do."""
        self.now += passed
        for who in self.heap.due(self.now):
            self.heap.move(who, self.now + after)
            self.expected[who] = self.now + after
        assert self.heap.due(self.now) == []

    @invariant()
    def every_session_is_in_the_heap(self):
        """Each session has one current entry, never later than its deadline, so that `next` is never too late."""
        assert len(self.heap) == len(self.expected)
        for who, deadline in self.expected.items():
            assert who.deadline == deadline
            assert who.alarm_at <= deadline
            assert sum(entry[1] == who.alarm for entry in entries(self.heap)) == 1
        assert self.heap.next() <= min(self.expected.values(), default=float("inf"))


TestHeap = Heap.TestCase


class CrowdedHeap(Heap):
    """The same tests with a heap that discards stale entries after every few removals."""

    @initialize()
    def start(self):
        super().start()
        self.kept = deadlines_module._STALE_ENTRIES_KEPT, deadlines_module._MOVED_AT_ONCE
        deadlines_module._STALE_ENTRIES_KEPT, deadlines_module._MOVED_AT_ONCE = 0, 1

    def teardown(self):
        deadlines_module._STALE_ENTRIES_KEPT, deadlines_module._MOVED_AT_ONCE = self.kept


TestCrowdedHeap = CrowdedHeap.TestCase


def test_an_empty_heap_has_nothing_to_wait_for():
    """For an empty heap `next` is infinity and `due` is empty."""
    heap = Deadlines()
    assert heap.next() == float("inf")
    assert heap.due(1e9) == []


def test_deadlines_that_move_on_and_on_leave_one_entry():
    """Each poll moves a deadline: a hundred thousand moves must not make a hundred thousand entries."""
    heap = Deadlines()
    who = session()
    heap.add(who, 10)
    for later in range(100_000):
        heap.move(who, 10 + later)
    assert len(entries(heap)) == 1


def test_sessions_that_come_and_go_leave_no_heap_behind():
    """S23: the number of entries of ended sessions is bounded, even if no deadline ever passes."""
    heap = Deadlines()
    for number in range(50_000):
        who = session(str(number))
        heap.add(who, 1e9)
        heap.remove(who)
    assert len(heap) == 0
    assert len(entries(heap)) <= 1.5 * deadlines_module._STALE_ENTRIES_KEPT
    heap.add(who, 1e9)
    assert heap.due(1e9) == [who]


def test_deadlines_moved_towards_now_do_not_grow_the_heap_without_end():
    """A client that requests shorter and shorter times leaves stale entries, which are removed when they become due."""
    heap = Deadlines()
    who = session()
    heap.add(who, 1_000_000)
    for nearer in range(100):
        heap.move(who, 1_000 - nearer)
    heap.due(1_000_000)
    assert len(entries(heap)) == 1
