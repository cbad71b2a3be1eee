"""Subscription ids: small, in order, and never used twice (W13)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from support.wamp_peers import World

from halley.broker.names import Match, Pattern
from halley.protocols.wamp import state
from halley.protocols.wamp.state import RESERVED_AT_ONCE, SubscriptionIds

if TYPE_CHECKING:
    import pytest


ID_BYTES = 650
"""Of an id of a short pattern in the table."""


def pattern(number: int) -> Pattern:
    """The pattern with this number."""
    return Pattern(Match.EXACT, f"a{number}")


class Shop:
    """Reserves ids, as a server does that remembers its reservations across runs."""

    def __init__(self) -> None:
        self.next = 1

    def __call__(self) -> int:
        first, self.next = self.next, self.next + RESERVED_AT_ONCE
        return first


def test_small_and_in_order() -> None:
    """W13: ids begin at 1 and increase by 1, so they stay below 2^32, above which JavaScript writes floats."""
    ids = SubscriptionIds(Shop())
    assert [ids.of(pattern(at)) for at in range(2_500)] == list(range(1, 2_501))
    assert [ids.of(pattern(at)) for at in range(2_500)] == list(range(1, 2_501))
    assert ids.pattern(7) == pattern(6)
    assert ids.pattern(2_501) is None


@given(st.lists(st.lists(st.integers(0, 30), max_size=20), max_size=5))
def test_never_twice(runs: list[list[int]]) -> None:
    """No id is used for two patterns, neither in one run nor in later ones."""
    shop = Shop()
    given_out: set[int] = set()
    for wanted in runs:
        ids = SubscriptionIds(shop)
        mine = {at: ids.of(pattern(at)) for at in wanted}
        assert all(ids.of(pattern(at)) == number for at, number in mine.items())
        assert len(set(mine.values())) == len(mine)
        assert given_out.isdisjoint(mine.values())
        given_out.update(mine.values())


def test_what_is_not_asked_for_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of ids is bounded: the id that was used longest ago is deleted."""
    monkeypatch.setattr(state, "_IDS_BYTES", 3 * ID_BYTES)
    ids = SubscriptionIds(Shop())
    for at in (0, 1, 2, 0, 3):
        ids.of(pattern(at))
    assert [ids.pattern(number) for number in (1, 2, 3, 4)] == [pattern(0), None, pattern(2), pattern(3)]
    assert ids.of(pattern(1)) == 5


def test_what_is_subscribed_to_keeps_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """W17: a pattern with a subscriber keeps its id, however many other ids are used."""
    monkeypatch.setattr(state, "_IDS_BYTES", 2 * ID_BYTES)
    world = World()
    peer, other = world.joined(), world.joined()
    number = peer.subscribe("a")
    for at in range(5):
        other.subscribe(f"b{at}")
    assert peer.subscribe("a") == number
    assert other.subscribe("a") == number
    assert other.call("wamp.subscription.lookup", "a") == [number]
    assert peer.call("wamp.subscription.count_subscribers", number) == [2]
    peer.say([34, 90, number])
    assert peer.hear() == [35, 90]


def test_another_s_subscription_that_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """W47: a subscription that has subscribers is found by its id, by any session."""
    monkeypatch.setattr(state, "_IDS_BYTES", 2 * ID_BYTES)
    world = World()
    peer, other = world.joined(), world.joined()
    number = peer.subscribe("a")
    for at in range(5):
        peer.subscribe(f"b{at}")
    assert other.call("wamp.subscription.get", number)[0]["uri"] == "a"
