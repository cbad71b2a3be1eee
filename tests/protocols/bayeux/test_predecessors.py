"""`ext.after` of a publish: no later event is published if an earlier one was refused."""

import pytest
from support.bayeux import House
from support.messages import publish

from halley.protocols.bayeux.request import DONE_AT_ONCE

UNKNOWN = "412::predecessor_unknown"


def chained(number, after=None, channel="/a"):
    """Return a publish with a key, to be published after the one with another key."""
    ext = {"idempotency_key": f"key {number}"} | ({} if after is None else {"after": f"key {after}"})
    return publish(channel, number, ext=ext)


def errors_of(house, *messages):
    """Send the messages and commit; return the error of each reply, or None."""
    sent = house.send(*messages)
    house.log.commit(now=house.now)
    house.turn()
    return [reply.get("error") for reply in sent.messages]


def numbers(house):
    return [int(event.payload) for event in house.log.inbox]


def test_what_comes_after_a_published_one_is_published():
    """The predecessor can be pending or stored, in the same request or another, on this channel or another."""
    house = House(history={})
    house.send(chained(1), chained(2, 1), chained(3, 2, "/b"))
    assert numbers(house) == [1, 2, 3]  # they are pending
    house.log.commit(now=house.now)
    house.send(chained(4, 1), chained(5, 4))
    assert numbers(house) == [4, 5]


def test_nothing_is_published_behind_what_was_refused():
    """A rate limit refuses only for a moment; the next moment it would let the later events through."""
    house = House(limits={"publishes_per_s": 0.01, "publish_burst": 2}, history={})
    house.broker.account_of = str
    limited = "403:rate_limited:publish_denied"
    batch = [chained(n, n - 1 or None) for n in (1, 2, 3, 4, 5)]
    assert errors_of(house, *batch) == [None, None, limited, UNKNOWN, UNKNOWN]
    assert errors_of(house, *batch[3:]) == [UNKNOWN, UNKNOWN]
    house.pass_time(100)  # one more is allowed; the refused followers have used nothing of the rate
    assert errors_of(house, *batch[2:]) == [None, limited, UNKNOWN]


def test_what_a_disk_has_refused_is_no_predecessor():
    """The key of an event that was not stored is forgotten, so its successors are not published either."""
    house = House(history={})
    house.send(chained(1))
    house.log.refuse(now=house.now)
    assert errors_of(house, chained(2, 1)) == [UNKNOWN]


def test_a_long_request_goes_on_only_behind_what_is_stored():
    """The log stores all events of a turn or none; what is published in a later turn must not overtake them."""
    house = House(history={})
    count = 2 * DONE_AT_ONCE
    sent = house.send(*(chained(number, number - 1 or None) for number in range(1, count + 1)))
    house.turn()
    assert numbers(house) == [*range(1, DONE_AT_ONCE + 1)]
    house.log.refuse(now=house.now)
    house.turn()
    assert house.log.inbox == []
    assert [reply["error"] for reply in sent.replies[DONE_AT_ONCE:]] == [UNKNOWN] * DONE_AT_ONCE


def test_a_repeat_is_answered_whatever_is_known_of_the_one_before():
    """The event is already published, so the repeat gets the same reply."""
    house = House(history={"keys": 1})
    house.send(chained(1), chained(2, 1))
    house.log.commit(now=house.now)
    assert house.send(chained(2, 1)).only["successful"] is True
    assert errors_of(house, chained(3, 1)) == [UNKNOWN]


@pytest.mark.parametrize("after", [1, "", "é", "x" * 200, ["key 1"]])
def test_what_is_no_key_is_refused(after):
    """`after` must have the form of an idempotency key."""
    house = House(history={})
    assert errors_of(house, publish("/a", 1, ext={"after": after})) == ["400::idempotency_key_invalid"]
    assert house.log.inbox == []
