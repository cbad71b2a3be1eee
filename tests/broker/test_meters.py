"""Rate limits (S24): a burst, then a number per second; meters that are idle are forgotten."""

from __future__ import annotations

from halley.broker.limits import Meter, Meters, sharer_of


def test_s24_a_burst_and_then_the_rate():
    """S24: a burst of exactly 400 is admitted, then one more for each 5 ms."""
    meter = Meter(200, 400)
    assert [meter.admits(1_000.0) for _ in range(401)] == [True] * 400 + [False]
    assert not meter.admits(1_000.002)
    assert meter.admits(1_000.006)
    assert not meter.admits(1_000.006)


def test_s24_a_refusal_costs_nothing():
    """S24: refused requests are not penalized, else two clients behind one address could lock each other out."""
    meter = Meter(1, 1)
    assert meter.admits(0.0)
    assert not any(meter.admits(0.9) for _ in range(100))
    assert meter.admits(1.0)


def test_s24_a_silence_is_worth_one_burst_however_long():
    """S24: however long the silence, no more than one burst is saved up."""
    meter = Meter(10, 3)
    assert meter.admits(0.0)
    assert [meter.admits(86_400.0) for _ in range(4)] == [True, True, True, False]


def test_many_tokens_are_taken_together_or_not_at_all():
    """What is more than a burst passes where the bucket is full, and costs the time in which it is refilled."""
    meter = Meter(10, 100)
    assert [meter.takes(60, 0.0), meter.takes(60, 0.0), meter.takes(40, 0.0), meter.takes(1, 0.0)] == [
        *(True, False, True, False),
    ]
    assert meter.takes(500, 10.0)
    assert not meter.takes(1, 49.0)
    assert meter.takes(10, 51.1)
    meters = Meters(10, 100)
    assert meters.takes("a", 100, 0.0)
    assert not meters.takes("a", 1, 0.0)
    assert meters.takes("b", 1, 0.0)
    assert Meters(0, 1).takes("a", 10**9, 0.0)


def test_each_name_has_its_own():
    """Each name has its own meter; the name is an address where there is no session."""
    meters = Meters(1, 1)
    assert meters.admits("a", 0.0)
    assert not meters.admits("a", 0.0)
    assert meters.admits("b", 0.0)


def test_names_are_forgotten_when_they_know_nothing():
    """A meter that is full again is deleted: the table has only addresses that published recently."""
    meters = Meters(1, 1)
    meters.admits("a", 0.0)
    meters.sweep(0.9)
    assert len(meters) == 1
    meters.sweep(1.0)
    assert len(meters) == 0


def test_newcomers_to_a_full_table_share_a_meter():
    """Made-up addresses can neither make the table grow nor displace the meter of an address that is in it."""
    meters = Meters(1, 1, most=2)
    assert all(meters.admits(name, 0.0) for name in ("a", "b", "c"))
    assert not meters.admits("d", 0.0)
    assert len(meters) == 3
    meters.sweep(1.0)
    assert meters.admits("d", 1.0)


def test_0_is_no_limit():
    """With `limits.publishes_per_s` at 0 everything is admitted, and no meters are made."""
    meters = Meters(0, 1)
    assert all(meters.admits("a", 0.0) for _ in range(1_000))
    assert (meters.new(), len(meters)) == (None, 0)


def test_whose_share_it_is():
    """A user has one share at all addresses; without a token an address has one, or a connection if it is exempt."""
    assert sharer_of("ada", "203.0.113.5", "7") == sharer_of("ada", None, object())
    assert sharer_of(None, "203.0.113.5", "7") == sharer_of(None, "203.0.113.5", "8")
    one, other = object(), object()
    assert len({sharer_of(None, None, each) for each in (one, other, "7", "8", one)}) == 4
    assert len({sharer_of("x", None, "x"), sharer_of(None, "x", "x"), sharer_of(None, None, "x")}) == 3
