"""The memory of sessions at the limits of their subscriptions, measured as the README's figures were."""

from __future__ import annotations

import pytest
from bench.session_memory import CASES, measure

from app.settings import Limits

pytestmark = pytest.mark.slow

MOST_BYTES = 2 * Limits().subscription_bytes
"""More than a session takes, caches and buffers included; without the limit some took 15 MB, others 2 GB."""


@pytest.mark.parametrize("name", CASES)
async def test_a_session_takes_about_what_its_subscriptions_may(name):
    """With the default limits, no client makes the server keep much more for its subscriptions than is allowed."""
    nbytes, accepted = await measure(CASES[name], sessions=3)
    assert accepted > 0
    assert nbytes < MOST_BYTES
