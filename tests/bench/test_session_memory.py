"""The memory of sessions at the limits of their subscriptions, and that of old ones, measured as the README says."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE

import pytest
from bench.rounds import side_command, side_environment
from bench.session_memory import CASES, measure

from halley.settings import Limits

pytestmark = pytest.mark.nightly

MOST_BYTES = 2 * Limits().subscription_bytes
"""More than a session takes, caches and buffers included; without the limit some took 15 MB, others 2 GB."""

MOST_BLOCKS = 300
"""Of memory, for caches that are filled in the first hours; 120 sessions that are kept would take ten times as many."""


@pytest.mark.parametrize("name", CASES)
async def test_a_session_takes_about_what_its_subscriptions_may(name):
    """With the default limits, no client makes the server keep much more for its subscriptions than is allowed."""
    nbytes, accepted = await measure(CASES[name], sessions=3)
    assert accepted > 0
    assert nbytes < MOST_BYTES


async def test_age_costs_nothing():
    """In the fifth hour a delivery takes as many calls as in the first, and no more memory than two hours before.

    In the first hours counts become larger than the integers that Python has once, at random a few hundred blocks.
    """
    command = [*side_command("day"), "--hours", "5"]
    process = await asyncio.create_subprocess_exec(*command, env=side_environment(), stdout=PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0
    first, _, third, _, fifth = (line.replace(",", "").split() for line in output.decode().splitlines()[1:])
    assert first[:3] == ["1", "1800", "60"]
    assert fifth[:3] == ["5", "9000", "300"]
    assert float(fifth[3]) == pytest.approx(float(first[3]), rel=0.01)
    assert int(fifth[4]) <= int(third[4]) + MOST_BLOCKS
