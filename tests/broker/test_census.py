"""How many are connected, of each protocol and of each account."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.broker import join, session

from halley.broker.broker import Broker
from halley.broker.census import Census
from halley.broker.errors import TooManyFromAddress
from halley.settings import Limits


@pytest.fixture
def broker():
    return Broker(replace(Limits(), sessions_per_address=2))


def member(broker, session_id, account, protocol="test"):
    one = session(session_id)
    one.account, one.protocol = account, protocol
    broker.open(one, 100, 0)
    return one


def test_sessions_are_counted_by_protocol_and_by_account(broker):
    """While they are open, apart from the number that were opened."""
    first = member(broker, "1", "here")
    member(broker, "2", "here", "other")
    member(broker, "3", "there")
    census = broker.census
    assert census.open == census.opened == {"test": 2, "other": 1}
    assert [census.charged(each) for each in ("here", "there", "nowhere")] == [2, 1, 0]
    assert [census.charged("here", each) for each in ("test", "other", "third")] == [1, 1, 0]
    broker.close(first, "left")
    assert (census.open, census.opened) == ({"test": 1, "other": 1}, {"test": 2, "other": 1})
    assert (census.charged("here"), census.charged("here", "test"), census.charged("here", "other")) == (1, 0, 1)


def test_an_account_has_as_many_sessions_as_it_may_and_gets_another_for_each_that_ends(broker):
    """S: a session that is refused counts for nothing, and one that ends counts once."""
    first = member(broker, "1", "here")
    member(broker, "2", "here", "other")
    with pytest.raises(TooManyFromAddress):
        member(broker, "3", "here")
    member(broker, "4", "there")
    broker.close(first, "left")
    broker.close(first, "again")
    member(broker, "5", "here")
    with pytest.raises(TooManyFromAddress):
        member(broker, "6", "here")


def test_what_is_exempt_is_charged_to_nobody(broker):
    """It has no account, and no limit but that of all; it is counted by its protocol."""
    for number in range(5):
        join(broker, str(number))
    assert broker.census.open == {"test": 5}
    assert broker.census.charged(None) == 0


def test_the_sessions_of_the_program_are_no_clients(broker):
    """Figures of clients leave them out."""
    member(broker, "1", None, "local")
    member(broker, "2", None)
    assert (broker.census.clients, broker.census.open) == (1, {"local": 1, "test": 1})


def test_what_has_no_session_yet_is_charged_by_itself():
    """It takes no account's place for a session; nothing is left when all have gone."""
    census = Census()
    census.charge("here", "waiting")
    census.charge("here", "waiting")
    census.charge(None, "waiting")
    assert (census.charged("here", "waiting"), census.charged("here")) == (2, 0)
    census.discharge("here", "waiting")
    census.discharge(None, "waiting")
    census.discharge("here", "waiting")
    assert not any(census._charged.values())
