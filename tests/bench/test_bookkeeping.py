"""The bench reports exactly the faults that a faulty server has."""

from __future__ import annotations

import asyncio

import pytest
from bench.faulty_server import faulty

from halley.bench.load import BenchFailed, Load
from halley.bench.measurement import measure
from halley.bench.target import attached

pytestmark = pytest.mark.nightly

LOST = {"grace_s": 1}
"""Options for tests in which events are lost, because the bench waits for them during the whole grace."""


async def measured(server, verb="fanout", **options):
    """Return the result of a short measurement of a server."""
    load = Load(verb, **{"receivers": 3, "seconds": 0.5, "warm_up_s": 0, "rate": 40, **options})
    async with asyncio.timeout(30):
        return await measure(load, attached(server.url))


def faults(result):
    """Describe the faults in a result, for messages; a whole `Result` would be too long."""
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
    """Events published before the measurement are not counted in it, and not mistaken for its own."""
    async with faulty() as server:
        result = await measured(server, warm_up_s=0.3)
    assert result.is_clean, faults(result)
    assert 0 < result.published < server.published
    assert result.deliveries == 3 * result.published


async def test_receivers_are_aged_first():
    """Each receiver gets this number of events before the measurement, which are not counted in it."""
    async with faulty() as server:
        result = await measured(server, rate=0, age=50, warm_up_s=10)
    assert result.is_clean, faults(result)
    assert result.published <= server.published - 50


@pytest.mark.parametrize("rate", [40, 0], ids=["open", "closed"])
async def test_lost_events_are_counted(rate):
    """If the second event reaches none of three receivers, three are lost; a closed loop continues without them."""
    async with faulty(spoil=lambda number, data: [] if number == 2 else [data]) as server:
        result = await measured(server, rate=rate, seconds=0.5 if rate else 3, **LOST)
    assert not result.is_clean
    assert (result.lost, result.repeated, result.errors) == (3, 0, {})
    assert result.published > 2
    assert result.deliveries == 3 * (result.published - 1)


async def test_repeated_events_are_counted_once():
    """An event that each receiver gets twice counts as one delivery, and does not hide the loss of another."""

    def spoil(number, data):
        return [data] * (2 if number == 2 else 0 if number == 3 else 1)

    async with faulty(spoil=spoil) as server:
        result = await measured(server, **LOST)
    assert (result.lost, result.repeated, result.errors) == (3, 3, {})
    assert result.deliveries == 3 * (result.published - 1)


async def test_events_in_another_order_are_all_there():
    """Events that arrive in another order, each even one before the odd one before it, do not count as lost."""
    kept = {}

    def spoil(number, data):
        if number % 2:
            kept[number] = data
            return []
        return [data, kept[number - 1]]

    async with faulty(spoil=spoil) as server:
        result = await measured(server, **LOST)
    assert result.repeated == 0
    assert result.lost == 3 * (result.published % 2)  # if their number is odd, the server keeps the last one
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
    """An event for others, one that is unreadable, and one never sent are errors, and do not count as delivered."""

    def spoil(number, data):
        return [data, {**data, "mark": change(data["mark"])}] if number == 2 else [data]

    async with faulty(spoil=spoil) as server:
        result = await measured(server)
    assert result.errors == {error: 3}
    assert result.lost == 0


async def test_refused_publishes_are_errors():
    """A refused publish is an error, does not count as acknowledged, and its deliveries count as lost."""
    async with faulty(refuses=lambda number: number == 2) as server:
        result = await measured(server, **LOST)
    assert result.errors == {"publish refused": 1}
    assert result.acknowledged == result.published - 1
    assert result.lost == 3


async def test_each_receiver_of_one_to_one_is_accounted_for():
    """With two of six channels for each of three receivers, a lost event is missing at one of them only."""
    async with faulty(spoil=lambda number, data: [] if number == 2 else [data]) as server:
        result = await measured(server, "one-to-one", channels=6, publishers=2, **LOST)
    assert (result.lost, result.repeated, result.errors) == (1, 0, {})
    assert result.deliveries == result.published - 1


@pytest.mark.parametrize(("verb", "receivers", "hearers"), [("publish", 0, 0), ("fanout", 7, 7), ("one-to-one", 7, 1)])
@pytest.mark.parametrize("rate", [40, 0], ids=["open", "closed"])
async def test_several_processes_add_up(rate, verb, receivers, hearers):
    """Receivers in three processes get all events meant for them, and the sums over the processes are right."""
    async with faulty() as server:
        result = await measured(
            server, verb, rate=rate, receivers=receivers, channels=max(receivers, 1), publishers=3, processes=3
        )
    assert result.is_clean, faults(result)
    assert len(result.load_cpu_shares) == 3
    assert result.published == server.published
    assert result.deliveries == server.published * hearers


async def test_latency_counts_from_the_time_that_was_due():
    """An open loop has no coordinated omission: while one reply takes 0.4 s, events due meanwhile count as waiting."""
    async with faulty(delays_s={2: 0.4}) as server:
        result = await measured(server, receivers=1, rate=50, seconds=1)
    assert result.is_clean, faults(result)
    # Of 50 events, 20 were due in these 0.4 s; a quarter of all were at least 0.1 s late, though one publish was slow.
    assert result.latency_ms["p90"] > 100


async def test_a_server_that_leaves_ends_the_measurement():
    """If every connection is lost, the measurement fails with a message."""
    async with faulty(leaves_at=3) as server:
        with pytest.raises(BenchFailed, match="the server has closed every connection"):
            await measured(server, seconds=20)


async def test_a_server_that_writes_no_length_cannot_be_measured():
    """A response without a length is an error; the bench does not wait for its end."""
    async with faulty(style="endless") as server:
        with pytest.raises(BenchFailed, match="closed a connection while it was being opened"):
            await measured(server)
