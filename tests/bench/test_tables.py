"""What entries of tables take in memory: each as much as the one before, and next to nothing when they are gone."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
from support.growing import GROWING

pytestmark = pytest.mark.slow

ENTRIES = 1_000
MOST_BYTES = 6_000
"""Of any entry; a Bayeux or WAMP connection has the most."""

STAYS = {"channels", "channels_in_use", "waiting_publishers", "hellos", "unrecorded"}
"""Tables whose entries stay when they are old, or are in caches as well, or are told to clients that keep that here."""

NOT_TABLES = {"visited": 200_000}
"""Bytes that others keep of what is gone, such as counts."""


def in_use():
    """Return the bytes that are allocated."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.fixture(autouse=True)
def traced():
    """Trace allocations during a test."""
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.parametrize("name", GROWING)
def test_memory_grows_by_the_same_for_each_entry_and_shrinks_with_them(name):
    """The first entries take no less than the last ones, at the bound nothing grows, and old entries leave nothing."""
    table = GROWING[name](2 * ENTRIES)
    for number in range(100):
        table.add(number)
    began = in_use()
    for number in range(100, ENTRIES):
        table.add(number)
    half = in_use() - began
    for number in range(ENTRIES, 2 * ENTRIES):
        table.add(number)
    full = in_use() - began
    assert full <= 2.5 * half  # a dict doubles its slots at times
    assert full <= 2 * ENTRIES * MOST_BYTES
    for number in range(2 * ENTRIES, 3 * ENTRIES):
        table.add(number)
    assert in_use() - began <= 2 * full  # as above
    if table.turn is None or name in STAYS:
        return
    while table.turn():
        pass
    assert in_use() - began <= 0.5 * full + NOT_TABLES.get(name, 50_000)  # a dict keeps its slots
