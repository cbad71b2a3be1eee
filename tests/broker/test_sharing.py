"""Where `limits.waiting_bytes` gets short, an account with more than a share of it gives way, and nobody else does.

The look is called as the sweeper calls it, with the time as an argument. Sessions here only note their calls, and those
of `Slow` end, as the protocols' do (`tests/hardening/test_waiting_shares.py`).
"""

from __future__ import annotations

from itertools import count

import pytest
from support.broker import Owner, event, session

from halley import is_compiled
from halley.broker.broker import Broker
from halley.broker.errors import AtCapacity
from halley.broker.names import Match, Pattern
from halley.broker.policy import SERVER, Proof
from halley.broker.sharing import CHECK_S, WORK_AT_ONCE, Sharing
from halley.settings import Limits

WAITING = 100_000
SHARE = WAITING // 4
BOUNDS = {"waiting_bytes": WAITING, "sessions_per_address": 10_000, "queue_bytes": WAITING, "publishes_per_s": 0}
STRANGER, OTHER = "203.0.113.5", "203.0.113.6"


class Slow(Owner):
    """An engine whose sessions end when they are too slow."""

    def __init__(self, house):
        super().__init__()
        self.house = house

    def too_slow(self, session, now):
        super().too_slow(session, now)
        self.house.broker.close(session, "slow_consumer")


class House:
    """A broker, and the look at its waiting events; `now` passes with each sweep of the server."""

    def __init__(self, **limits):
        self.broker = Broker(Limits(**{**BOUNDS, **limits}), account_of=lambda address: address or None)
        self.sharing = Sharing(self.broker)
        self.now = 0.0
        self.numbers = count()
        self.turns = 0  # of the latest look

    def join(self, address=STRANGER, topic=None, *, authid=None, owner=None, role=None):
        """Return a session that has subscribed to a topic, its own unless one is given."""
        joined = session(f"s{next(self.numbers)}", owner or Slow(self), self.broker.outbox())
        joined.account = self.broker.account_of(address)
        if authid is not None:
            joined.prove(Proof(authid, "member"), 0.0)
        if role is not None:
            joined.role = role
        self.broker.open(joined, 1e9, self.now)
        self.broker.subscribe(joined, Pattern(Match.EXACT, topic or joined.id))
        return joined

    def publish(self, topic, nbytes=1_000, *, by=None, address=OTHER, authid=None):
        """Publish an event that counts `nbytes`, as a protocol does. Raises `AtCapacity`."""
        self.broker.check_publish(by, address, self.now, authid)
        self.broker.publish(event("x" * ((nbytes - 640) // 2), topic), self.now)

    def fill(self, joined, nbytes):
        """Let so many bytes wait for a session alone, as far as the bound allows."""
        for _ in range(nbytes // 1_000):
            self.publish(joined.id, by=joined)

    def fill_until_refused(self, sessions):
        """Let events wait for these sessions in turn until a publish is refused; return the limit."""
        while True:
            for each in sessions:
                if each.closed is None:
                    try:
                        self.fill(each, 1_000)
                    except AtCapacity as refusal:
                        return refusal.limit

    def look(self):
        """Pass a second, and sweep until the look is over."""
        self.now += CHECK_S
        self.turns = 1
        while self.sharing.sweep(self.now):
            self.turns += 1

    def refused(self, **how):
        """Return the limit for which a publish is refused; None if it is taken."""
        try:
            self.publish("nobody", **how)
        except AtCapacity as refusal:
            return refusal.limit
        return None

    def refused_session(self, address, **who):
        """Return the limit for which a session is refused; None if it is taken."""
        try:
            self.broker.close(self.join(address, **who), "test")
        except AtCapacity as refusal:
            return refusal.limit
        return None


def ended(sessions):
    return [each for each in sessions if each.closed is not None]


def test_a_stranger_gives_way_before_anybody_notices():
    """The stranger's sessions fill what there is; another address publishes and comes in throughout."""
    house = House()
    other = house.join(OTHER)
    strangers = [house.join() for _ in range(20)]
    for _ in range(40):
        for each in strangers:
            if each.closed is None and house.refused(by=each) is None:
                house.publish(each.id, by=each)
            assert house.refused(by=other) is None
            assert house.refused(address=OTHER) is None
            assert house.refused_session(OTHER) is None
        house.look()
    assert ended(strangers)
    assert other.closed is None
    assert house.broker.closed["slow_consumer"] == house.broker.hits["waiting_share"]
    assert house.broker.waiting.value <= WAITING // 2


def test_queues_end_until_the_rest_is_within_the_share_or_the_whole_below_half():
    """Which of both comes first is where it stops."""
    house = House()
    house.join(OTHER)
    strangers = [house.join() for _ in range(9)]
    for each in strangers:
        house.fill(each, 6_000)
    house.look()
    assert len(ended(strangers)) == 1
    assert house.broker.waiting.value == 48_000

    house = House()
    honest = [house.join(f"203.0.113.{100 + number}") for number in range(10)]
    for each in honest:
        house.fill(each, 5_000)
    strangers = [house.join() for _ in range(8)]
    for each in strangers:
        house.fill(each, 6_000)
    house.look()
    assert len(ended(strangers)) == 4
    assert house.broker.waiting.value == 50_000 + 24_000
    assert not ended(honest)
    assert house.broker.shares.over == frozenset()


def test_honest_sessions_at_the_strangers_own_address_lose_nothing():
    """300 of them publish on, with an event or two in their queues; what ends are the stranger's queues."""
    house = House(waiting_bytes=2_000_000)
    other = house.join(OTHER)
    honest = [house.join(topic="chat") for _ in range(300)]
    strangers = [house.join() for _ in range(100)]
    for number in range(60):
        for each in strangers:
            if each.closed is None and house.refused(by=each) is None:
                house.publish(each.id, by=each)
        for each in honest:
            house.broker.waiting.release(each.outbox.take())
        assert house.refused(by=honest[number]) is None
        house.publish("chat", by=honest[number])
        house.publish(honest[-1].id, by=honest[-1])
        house.look()
        assert house.refused(by=other) is None
    assert ended(strangers)
    assert not ended(honest)


def test_the_largest_end_first_and_of_these_the_slowest():
    """A small queue stays, however slow its client; of the large ones those stay whose clients read."""
    house = House()
    house.join(OTHER)
    small = [house.join() for _ in range(5)]
    large = [house.join() for _ in range(10)]
    for each in small:
        house.fill(each, 1_000)
        each.reads_until = -1.0
    for number, each in enumerate(large):
        house.fill(each, 5_000)
        each.reads_until = float(number * 7 % 10)
    house.look()
    assert sorted(each.reads_until for each in ended(large)) == [0.0]
    house.fill(house.join(OTHER), 10_000)
    house.look()
    assert sorted(each.reads_until for each in ended(large)) == [0.0, 1.0, 2.0]
    assert not ended(small)


def test_who_reads_after_the_look_has_begun_stays():
    """What a queue has is looked at again before it ends."""
    house = House()
    house.join(OTHER)
    first, second = house.join(), house.join()
    house.fill(first, 40_000)
    house.fill(second, 40_000)
    first.reads_until = 1.0
    house.now += CHECK_S
    steps = house.sharing._scan()
    for _ in steps:
        if house.broker.shares.over:
            break
    house.broker.waiting.release(first.outbox.take())
    house.fill(house.join(OTHER), 30_000)
    for _ in steps:
        pass
    assert ended([first, second]) == [second]


def test_one_account_alone_has_all_of_it():
    """Nothing of it ends, and at the bound it is refused as if there were no shares."""
    house = House()
    strangers = [house.join() for _ in range(10)]
    for _ in range(3):
        for each in strangers:
            while len(each.outbox) < 10 and house.refused(by=each) is None:
                house.publish(each.id, by=each)
        house.look()
    assert house.fill_until_refused(strangers) == "waiting_bytes"
    house.look()
    assert not ended(strangers)
    assert house.refused(by=strangers[0]) == house.refused_session(STRANGER) == "waiting_bytes"
    assert house.broker.waiting.value > WAITING


NEEDS = {
    "a session": lambda house: house.join(OTHER),
    "a session that ended": lambda house: house.refused_session(OTHER),
    "a user at the same address": lambda house: house.join(STRANGER, authid="ada"),
    "a publish": lambda house: house.publish("nobody"),
    "a user's publish from the same address": lambda house: house.publish("nobody", address=STRANGER, authid="ada"),
}


@pytest.mark.parametrize("need", NEEDS)
def test_once_another_account_needs_something_room_is_made(need):
    """A client that comes to a server that one account has filled is taken at once, and the next look ends queues."""
    house = House()
    strangers = [house.join() for _ in range(10)]
    assert house.fill_until_refused(strangers) == "waiting_bytes"
    house.look()
    house.look()
    assert not ended(strangers)
    NEEDS[need](house)
    house.look()
    assert ended(strangers)
    assert house.broker.waiting.value <= WAITING // 2
    assert house.refused(by=next(each for each in strangers if each.closed is None)) is None


def test_another_need_counts_until_the_look_after_it():
    """A publish of long ago ends nothing of who is alone now."""
    house = House()
    strangers = [house.join() for _ in range(10)]
    for each in strangers:
        house.fill(each, 5_000)
    house.fill(strangers[0], 4_000)
    house.look()
    house.publish("nobody")
    house.look()
    gone = len(ended(strangers))
    assert gone
    assert house.fill_until_refused(strangers) == "waiting_share"
    house.look()
    assert len(ended(strangers)) == gone


def test_the_programs_own_session_is_no_other_account():
    """Neither does it end, nor does it need what a client has."""
    house = House()
    own = house.join("", role=SERVER)
    stranger = house.join()
    house.fill(own, 40_000)
    house.fill(stranger, 40_000)
    house.look()
    house.join("", role=SERVER)
    house.look()
    assert not ended([own, stranger])
    house.join(OTHER)
    house.look()
    assert ended([own, stranger]) == [stranger]
    house.fill(own, 59_000)
    assert house.refused(by=own) is None


def test_an_event_counts_once_for_an_account():
    """In 300 queues of one account an event is one event."""
    house = House()
    house.join(OTHER)
    crowd = [house.join(topic="chat") for _ in range(300)]
    for _ in range(20):
        house.publish("chat")
    full = [house.join(f"203.0.113.{100 + number}") for number in range(10)]
    for each in full:
        house.fill(each, 4_000)
    assert house.broker.waiting.value > WAITING // 2
    house.look()
    assert not ended(crowd + full)
    for _ in range(6):
        house.publish("chat")
    house.look()
    assert house.broker.waiting.value <= WAITING // 2


def test_a_user_is_one_account_at_all_addresses():
    """A proved name counts, and not the address; who has proved none is at its address."""
    house = House()
    users = [house.join(f"203.0.113.{number}", authid="ada") for number in range(10)]
    honest = [house.join(f"203.0.113.{number}") for number in range(10)]
    for each in users:
        house.fill(each, 5_000)
    for each in honest:
        house.fill(each, 1_000)
    house.look()
    assert ended(users)
    assert not ended(honest)


def test_exempt_connections_are_accounts_of_their_own():
    """Where nothing is charged to an address, each connection has a share; at the bound all are refused as before."""
    house = House()
    programs = [house.join("") for _ in range(10)]
    for each in programs:
        house.fill(each, 10_000)
    house.look()
    assert house.fill_until_refused(programs) == "waiting_bytes"
    house.look()
    assert not ended(programs)
    assert house.refused(by=programs[0]) == house.refused(address="") == house.refused_session(OTHER) == "waiting_bytes"


def test_at_the_bound_who_has_more_than_a_share_is_refused_and_nobody_else():
    """Its sessions do not end here, as those of an engine that ends them later."""
    house = House()
    strangers = [house.join(owner=Owner()) for _ in range(10)]
    other, user = house.join(OTHER), house.join(STRANGER, authid="ada")
    assert house.fill_until_refused(strangers) == "waiting_bytes"
    house.look()
    house.broker.hits.clear()
    assert house.refused(by=strangers[0]) == house.refused(address=STRANGER) == "waiting_share"
    assert house.refused_session(STRANGER) == "waiting_share"
    assert house.refused(by=other) is house.refused(address=OTHER) is house.refused_session(OTHER) is None
    assert house.refused(by=user) is house.refused(address=STRANGER, authid="ada") is None
    assert house.refused_session(STRANGER, authid="ada") is None
    assert house.broker.hits == {"waiting_share": 3}


def test_others_have_one_share_beyond_the_bound():
    """Then everybody is refused, so what waits has a bound in any case."""
    house = House()
    strangers = [house.join(owner=Owner()) for _ in range(10)]
    other = house.join(OTHER)
    assert house.fill_until_refused(strangers) == "waiting_bytes"
    house.look()
    assert house.fill_until_refused([other]) == "waiting_bytes"
    assert WAITING + SHARE < house.broker.waiting.value <= WAITING + SHARE + 1_000
    assert house.refused(by=other) == house.refused_session(OTHER) == "waiting_bytes"


def test_where_nobody_has_more_than_a_share_all_are_refused():
    """Many with a little each: as without shares."""
    house = House()
    all_of_them = [house.join(f"203.0.113.{number}") for number in range(5)]
    for each in all_of_them:
        house.fill(each, 20_000)
    assert house.fill_until_refused(all_of_them) == "waiting_bytes"
    house.look()
    assert not ended(all_of_them)
    assert {house.refused(by=each) for each in all_of_them} == {"waiting_bytes"}


def test_below_half_it_is_not_looked():
    """What one account has of the first half is nobody's concern, and what a look has found is forgotten."""
    house = House()
    house.join(OTHER)
    stranger = house.join(owner=Owner())
    house.fill(stranger, 51_000)
    house.look()
    assert house.broker.shares.over == {f"address {STRANGER}"}
    house.broker.waiting.release(stranger.outbox.take())
    house.fill(stranger, 49_000)
    heard = len(stranger.owner.heard)
    house.look()
    assert house.broker.shares.over == frozenset()
    assert len(stranger.owner.heard) == heard


def test_it_is_looked_once_a_second():
    """However often it is swept."""
    house = House()
    house.join(OTHER)
    stranger = house.join(owner=Owner())
    house.fill(stranger, 60_000)
    for number in range(41):
        while house.sharing.sweep(number / 10):
            pass
    assert [now for occasion, _, now in stranger.owner.heard if occasion == "too_slow"] == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.skipif(is_compiled(), reason="a method of a compiled class cannot be replaced")
def test_a_turn_has_a_bound_on_its_work(monkeypatch):
    """Bounded are the events that are looked at in one turn, and the queues that end in one."""
    house = House(waiting_bytes=1_000_000, queue_bytes=1_000_000)
    house.join(OTHER)
    crowd = [house.join(topic="chat") for _ in range(300)]
    for _ in range(400):
        house.publish("chat", 700)
    strangers = [house.join() for _ in range(200)]
    for each in strangers:
        house.fill(each, 2_000)
    looked, turns = [0], []
    waiting = type(crowd[0]).waiting

    def counted(self):
        events = waiting(self)
        looked[0] += len(events)
        return events

    monkeypatch.setattr(type(crowd[0]), "waiting", counted)
    house.now += CHECK_S
    has_more = True
    while has_more:
        looked[0], before = 0, house.broker.closed["slow_consumer"]
        has_more = house.sharing.sweep(house.now)
        turns.append((looked[0], house.broker.closed["slow_consumer"] - before))
    assert max(events for events, _ in turns) < WORK_AT_ONCE + 400
    assert max(ends for _, ends in turns) == 1
    assert sum(events for events, _ in turns) > 300 * 400
    assert ended(crowd + strangers)


def test_a_session_that_cannot_be_ended_by_its_engine_is_ended_all_the_same():
    """The fault is reported, and the look goes on with the others."""

    class Broken(Owner):
        def too_slow(self, session, now):
            raise ValueError("a fault")

    house = House()
    house.join(OTHER)
    broken, stranger = house.join(owner=Broken()), house.join()
    house.fill(broken, 40_000)
    house.fill(stranger, 40_000)
    broken.reads_until = 0.0
    reported = []
    house.broker.commits.report = lambda *fault: reported.append(fault)
    house.look()
    assert ([(what, str(fault)) for what, fault in reported], broken.closed) == ([("share", "a fault")], "fault")
    house.fill(house.join(OTHER), 20_000)
    house.look()
    assert stranger.closed == "slow_consumer"


def test_who_reads_no_values_has_them_counted_too():
    """Values set apart from a full queue wait as well."""
    house = House(queue_events=1)
    house.join(OTHER)
    stranger = house.join(topic="robot")
    house.broker.subscribe(stranger, Pattern(Match.PREFIX, "v"))
    house.publish("robot")
    for number in range(60):
        value = event("x" * 180, f"v/{number}")
        value.nt4_type = "string"
        house.broker.publish(value, house.now)
    assert len(stranger.outbox.queue) == 1
    assert house.broker.waiting.value > WAITING // 2
    house.look()
    assert stranger.closed == "slow_consumer"


def test_a_queue_weighs_what_it_alone_keeps():
    """Many who share a large backlog with all others have little of their own, so it is not they who end."""
    house = House()
    house.join(OTHER)
    crowd = [house.join(topic="chat") for _ in range(20)]
    for _ in range(20):
        house.publish("chat")
    strangers = [house.join() for _ in range(4)]
    for number, each in enumerate((*crowd, *strangers)):
        each.reads_until = float(number)  # those of the crowd are the slowest
    for each in strangers:
        house.fill(each, 12_000)
    house.look()
    assert ended(crowd + strangers) == strangers[:2]
    assert house.broker.waiting.value == 44_000
    assert house.broker.shares.over == {f"address {STRANGER}"}


def test_without_shares_it_is_as_if_nobody_looked():
    """`waiting_share = 0`: nothing ends, and all are refused."""
    house = House(waiting_share=0)
    house.join(OTHER)
    stranger = house.join()
    assert house.fill_until_refused([stranger]) == "waiting_bytes"
    house.look()
    assert stranger.closed is None
    assert house.refused() == house.refused_session(OTHER) == "waiting_bytes"
