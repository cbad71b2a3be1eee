"""How fast somebody may go (S24): so many at once, then so many a second; and no memory of those who are idle."""

from __future__ import annotations

from app.broker.meters import Meter, Meters


def test_s24_a_burst_and_then_the_rate():
    """S24: exactly 400 at once; then one more for each 5 ms."""
    meter = Meter(200, 400)
    assert [meter.admits(1_000.0) for _ in range(401)] == [True] * 400 + [False]
    assert not meter.admits(1_000.002)
    assert meter.admits(1_000.006)
    assert not meter.admits(1_000.006)


def test_s24_a_refusal_costs_nothing():
    """S24: who asks too often is not punished, else two clients behind one address could lock each other out."""
    meter = Meter(1, 1)
    assert meter.admits(0.0)
    assert not any(meter.admits(0.9) for _ in range(100))
    assert meter.admits(1.0)


def test_s24_a_silence_is_worth_one_burst_however_long():
    """S24: tokens beyond the burst are not saved."""
    meter = Meter(10, 3)
    assert meter.admits(0.0)
    assert [meter.admits(86_400.0) for _ in range(4)] == [True, True, True, False]


def test_each_name_has_its_own():
    """Per address where there is no session."""
    meters = Meters(1, 1)
    assert meters.admits("a", 0.0)
    assert not meters.admits("a", 0.0)
    assert meters.admits("b", 0.0)


def test_names_are_forgotten_when_they_know_nothing():
    """The table is as large as the number of addresses that publish just now."""
    meters = Meters(1, 1)
    meters.admits("a", 0.0)
    meters.sweep(0.9)
    assert len(meters) == 1
    meters.sweep(1.0)
    assert len(meters) == 0


def test_newcomers_to_a_full_table_share_a_meter():
    """Made-up addresses cannot make the table grow, nor take the meter of one that is in it."""
    meters = Meters(1, 1, most=2)
    assert all(meters.admits(name, 0.0) for name in ("a", "b", "c"))
    assert not meters.admits("d", 0.0)
    assert len(meters) == 3
    meters.sweep(1.0)
    assert meters.admits("d", 1.0)


def test_0_is_no_limit():
    """Settings: `limits.publishes_per_s`."""
    meters = Meters(0, 1)
    assert all(meters.admits("a", 0.0) for _ in range(1_000))
    assert (meters.new(), len(meters)) == (None, 0)
