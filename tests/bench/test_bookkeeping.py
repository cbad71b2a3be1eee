"""What the bench says of a server that does wrong is what that server did."""

from __future__ import annotations

import asyncio

import pytest
from bench.faulty_server import faulty

from app.bench import BenchFailed, Load, attached, measure

pytestmark = pytest.mark.slow

LOST = {"grace_s": 1}
"""Where events are lost, all the grace is waited for them."""


async def measured(server, verb="fanout", **options):
    """A short measurement of a server."""
    load = Load(verb, **{"receivers": 3, "seconds": 0.5, "warm_up_s": 0, "rate": 40, **options})
    async with asyncio.timeout(30):
        return await measure(load, attached(server.url))


def faults(result):
    """What keeps a result from being clean; all of a `Result` is too long to be shown."""
    return f"{result.lost} lost, {result.repeated} repeated, {result.errors}"


@pytest.mark.parametrize("style", ["plain", "spaced", "chunked"])
@pytest.mark.parametrize("rate", [40, 0], ids=["open", "closed"])
async def test_all_is_well_with_a_server_that_does_nothing_wrong(rate, style):
    """Every publish is acknowledged and delivered to each receiver, however the server writes its responses."""
    async with faulty(style=style) as server:
        result = await measured(server, rate=rate)
    assert result.is_clean, faults(result)
    assert result.published == result.acknowledged == server.published > 0
    assert result.deliveries == 3 * server.published == server.delivered


async def test_a_warm_up_is_not_counted():
    """What is published before the measurement begins is neither in it nor confused with it."""
    async with faulty() as server:
        result = await measured(server, warm_up_s=0.3)
    assert result.is_clean, faults(result)
    assert 0 < result.published < server.published
    assert result.deliveries == 3 * result.published


@pytest.mark.parametrize("rate", [40, 0], ids=["open", "closed"])
async def test_lost_events_are_counted(rate):
    """The second event reaches nobody: three are lost; a closed loop goes on without them."""
    async with faulty(spoil=lambda number, data: [] if number == 2 else [data]) as server:
        result = await measured(server, rate=rate, seconds=0.5 if rate else 3, **LOST)
    assert not result.is_clean
    assert (result.lost, result.repeated, result.errors) == (3, 0, {})
    assert result.published > 2
    assert result.deliveries == 3 * (result.published - 1)


async def test_repeated_events_are_counted_once():
    """The second event comes twice to each receiver; that is no delivery, and hides no loss."""

    def spoil(number, data):
        return [data] * (2 if number == 2 else 0 if number == 3 else 1)

    async with faulty(spoil=spoil) as server:
        result = await measured(server, **LOST)
    assert (result.lost, result.repeated, result.errors) == (3, 3, {})
    assert result.deliveries == 3 * (result.published - 1)


async def test_events_in_another_order_are_all_there():
    """Each second event comes after the one that follows it; nothing is lost by that."""
    kept = {}

    def spoil(number, data):
        if number % 2:
            kept[number] = data
            return []
        return [data, kept[number - 1]]

    async with faulty(spoil=spoil) as server:
        result = await measured(server, **LOST)
    assert result.repeated == 0
    assert result.lost == 3 * (result.published % 2)  # of an odd number, the last one stays with the server
    assert not result.errors


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda mark: mark.replace(":000000:", ":000001:"), "event for somebody else"),
        (lambda mark: "@" + "x" * 19 + mark[20:], "mangled event"),
        (lambda mark: mark[:-12] + f"{int(mark[-12:]) + 1_000:012d}", "event never published"),
    ],
    ids=["other group", "mangled", "invented"],
)
async def test_wrong_events_are_errors(change, error):
    """What was meant for others, is unreadable or was never sent is named, and does not count as delivered."""

    def spoil(number, data):
        return [data, {**data, "mark": change(data["mark"])}] if number == 2 else [data]

    async with faulty(spoil=spoil) as server:
        result = await measured(server)
    assert result.errors == {error: 3}
    assert result.lost == 0


async def test_refused_publishes_are_errors():
    """A publish that is refused is not acknowledged, and its deliveries are missing."""
    async with faulty(refuses=lambda number: number == 2) as server:
        result = await measured(server, **LOST)
    assert result.errors == {"publish refused": 1}
    assert result.acknowledged == result.published - 1
    assert result.lost == 3


async def test_each_receiver_of_one_to_one_is_accounted_for():
    """Six channels, three receivers with two each: the lost event is missed by the one who should have got it."""
    async with faulty(spoil=lambda number, data: [] if number == 4 else [data]) as server:
        result = await measured(server, "one-to-one", channels=6, publishers=2, **LOST)
    assert (result.lost, result.repeated, result.errors) == (1, 0, {})
    assert result.deliveries == result.published - 1


@pytest.mark.parametrize(("verb", "receivers", "hearers"), [("publish", 0, 0), ("fanout", 7, 7), ("one-to-one", 7, 1)])
@pytest.mark.parametrize("rate", [40, 0], ids=["open", "closed"])
async def test_several_processes_add_up(rate, verb, receivers, hearers):
    """Receivers in three processes get every event that is theirs, and the sums are right."""
    async with faulty() as server:
        result = await measured(
            server, verb, rate=rate, receivers=receivers, channels=max(receivers, 1), publishers=3, processes=3
        )
    assert result.is_clean, faults(result)
    assert len(result.load_cpu_shares) == 3
    assert result.published == server.published
    assert result.deliveries == server.published * hearers


async def test_latency_counts_from_the_time_that_was_due():
    """An open loop has no coordinated omission: while one answer takes 0.4 s, what was due meanwhile waits too."""
    async with faulty(delays_s={2: 0.4}) as server:
        result = await measured(server, receivers=1, rate=50, seconds=1)
    assert result.is_clean, faults(result)
    # Of 50 events, 20 were due in the 0.4 s; a quarter of all was at least 0.1 s late, though one publish was slow.
    assert result.latency_ms["p90"] > 100


async def test_a_server_that_leaves_ends_the_measurement():
    """When every connection is gone there is no result, but a sentence."""
    async with faulty(leaves_at=3) as server:
        with pytest.raises(BenchFailed, match="the server has closed every connection"):
            await measured(server, seconds=20)


async def test_a_server_that_writes_no_length_cannot_be_measured():
    """A response without an end is not waited for."""
    async with faulty(style="endless") as server:
        with pytest.raises(BenchFailed, match="closed a connection while it was being opened"):
            await measured(server)
