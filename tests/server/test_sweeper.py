"""The sweeper: nobody waits for all that is swept, and whoever has much to do keeps no other sweep from its turn."""

import asyncio
import time
from contextlib import suppress
from itertools import pairwise

import pytest
from structlog.testing import capture_logs
from support.messages import publish
from support.server import brisk, serving
from support.wire import DEADLINE_S

from halley.broker.aging import BATCH
from halley.broker.broker import Broker
from halley.server.sweeper import Sweeper, Swept
from halley.settings import Limits

EVERY_S = 0.02


@pytest.fixture
async def swept():
    """Returns a function that runs a sweeper with these sweeps until the event that it returns is set."""
    tasks = []

    def start(*sweeps):
        sweeper = Sweeper(EVERY_S, Broker(Limits()), [*map(Swept, sweeps)], [])
        tasks.append(asyncio.create_task(sweeper.run()))

    yield start
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_what_is_more_than_a_part_is_done_in_later_turns_with_the_same_time(swept):
    """Each part has a turn of the loop of its own, and so has each sweep."""
    done, turns = asyncio.Event(), 0
    parts, after = [], []

    def count_turn():
        nonlocal turns
        turns += 1
        asyncio.get_running_loop().call_soon(count_turn)

    def in_parts(now):
        parts.append((now, turns))
        return len(parts) < 5

    def next_one(_now):
        after.append(turns)
        done.set()

    count_turn()
    swept(in_parts, next_one)
    async with asyncio.timeout(DEADLINE_S):
        await done.wait()
    assert len({now for now, _ in parts[:5]}) == 1
    assert len({turn for _, turn in parts[:5]} | {after[0]}) == 6


async def test_keys_that_expire_together_keep_nobody_waiting():
    """However many idempotency keys expire in the same moment, a turn of the event loop removes only some of them."""
    many, seen = 3 * BATCH, []
    async with serving(brisk(history={"key_age_s": 1})) as served:
        keys = served.house.broker.commits.keys
        wire = await served.wire()
        for first in range(0, many, BATCH):
            batch = [publish("/a", 1, ext={"idempotency_key": str(first + each)}) for each in range(BATCH)]
            assert all(reply["successful"] for reply in (await wire.post(*batch)).messages)
        assert len(keys) == many

        def look():
            seen.append(len(keys))
            if seen[-1]:
                asyncio.get_running_loop().call_soon(look)

        look()
        time.sleep(1.2)  # noqa: ASYNC251 - so that all of them are over when the sweeper has its turn
        await served.until(lambda: not seen[-1])
    assert max(before - after for before, after in pairwise(seen)) == BATCH


async def test_a_sweep_that_never_ends_or_fails_does_not_keep_the_others_from_theirs(swept):
    """F5: what is left is done in the next sweep. A fault is logged."""
    done, rounds = asyncio.Event(), []

    def fail(_now):
        raise ArithmeticError

    def go_on_for_ever(now):
        rounds.append(now)
        return True

    with capture_logs() as log:
        swept(fail, go_on_for_ever, lambda _now: done.set())
        async with asyncio.timeout(DEADLINE_S):
            for _ in range(2):
                await done.wait()
                done.clear()
    assert 2 <= len({*rounds}) < len(rounds)
    assert {line["event"] for line in log} == {"fault"}
