"""A program with a node in it opens and closes that several times, as the tests of most programs do."""

from __future__ import annotations

import asyncio

import pytest
from support.nats import nats_servers
from support.wire import DEADLINE_S

from halley.broker.names import Match, Pattern
from halley.broker.ports import Erasure
from halley.embed import Halley
from halley.settings import Cluster, Drain, History, Nt4, Settings

pytestmark = pytest.mark.slow


async def test_what_takes_part_in_erasing_does_not_grow_with_each_lifespan(tmp_path):
    """Else nodes of earlier ones stay in memory, and no erasure ends, since they would clean what NATS has for them."""
    async with nats_servers(tmp_path) as nats:
        cluster = Cluster(urls=(nats.urls,), node="a", settled_by="keeper", nt4_lease_s=1.0)
        halley = Halley(
            Settings(
                data_dir=str(tmp_path / "a"),
                cluster=cluster,
                drain=Drain(spread_s=0, grace_s=2),
                history=History(free_bytes=0),
                nt4=Nt4(enabled=True),
            )
        )
        counts = set()
        for number in range(3):
            async with halley.lifespan(None):
                counts.add(len(halley.server.broker.holders))
                assert (await halley.publish("/chat/room", f"said {number}"))["successful"]
        async with halley.lifespan(None):
            counts.add(len(halley.server.broker.holders))
            room = Erasure(Pattern(Match.EXACT, "chat/room"), None)
            async with asyncio.timeout(DEADLINE_S):
                assert await halley.server.history.archive.purge(room, lambda _done, _of: None) == 3
        assert len(counts) == 1
