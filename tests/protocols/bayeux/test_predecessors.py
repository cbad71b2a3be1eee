"""`ext.after` of a publish: nothing overtakes what was refused a moment ago."""

import pytest
from support.bayeux import House
from support.messages import publish

UNKNOWN = "412::predecessor_unknown"


def chained(number, after=None, channel="/a"):
    """A publish with a key, after the one with another."""
    ext = {"idempotency_key": f"key {number}"} | ({} if after is None else {"after": f"key {after}"})
    return publish(channel, number, ext=ext)


def errors_of(house, *messages):
    """The reply to each, once what was taken is on disk."""
    sent = house.send(*messages)
    house.log.commit(now=house.now)
    house.turn()
    return [reply.get("error") for reply in sent.messages]


def numbers(house):
    return [int(event.payload) for event in house.log.inbox]


def test_what_comes_after_a_published_one_is_published():
    """Whether that is pending or on disk, in the same request or another, on this channel or another."""
    house = House(history={})
    house.send(chained(1), chained(2, 1), chained(3, 2, "/b"))
    assert numbers(house) == [1, 2, 3]  # they wait for the disk
    house.log.commit(now=house.now)
    house.send(chained(4, 1), chained(5, 4))
    assert numbers(house) == [4, 5]


def test_nothing_is_published_behind_what_was_refused():
    """A rate limit says no for a moment only; in the next moment it would let the later ones through."""
    house = House(limits={"publishes_per_s": 0.01, "publish_burst": 2}, history={})
    house.broker.account_of = str
    limited = "403:rate_limited:publish_denied"
    batch = [chained(n, n - 1 or None) for n in (1, 2, 3, 4, 5)]
    assert errors_of(house, *batch) == [None, None, limited, UNKNOWN, UNKNOWN]
    assert errors_of(house, *batch[3:]) == [UNKNOWN, UNKNOWN]
    house.pass_time(100)  # there is room for one; what came behind it has taken nothing of that
    assert errors_of(house, *batch[2:]) == [None, limited, UNKNOWN]


def test_what_a_disk_has_refused_is_no_predecessor():
    """Its key is forgotten with it; the next is not published either."""
    house = House(history={})
    house.send(chained(1))
    house.log.refuse(now=house.now)
    assert errors_of(house, chained(2, 1)) == [UNKNOWN]


def test_a_repeat_is_answered_whatever_is_known_of_the_one_before():
    """It was published; only the answer is asked for."""
    house = House(history={"keys": 1})
    house.send(chained(1), chained(2, 1))
    house.log.commit(now=house.now)
    assert house.send(chained(2, 1)).only["successful"] is True
    assert errors_of(house, chained(3, 1)) == [UNKNOWN]


@pytest.mark.parametrize("after", [1, "", "é", "x" * 200, ["key 1"]])
def test_what_is_no_key_is_refused(after):
    """As an idempotency key of that form is."""
    house = House(history={})
    assert errors_of(house, publish("/a", 1, ext={"after": after})) == ["400::idempotency_key_invalid"]
    assert house.log.inbox == []
