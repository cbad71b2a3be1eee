"""A keeper and fronts that are one server to their clients, on a real NATS server."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack

import pytest
from support.messages import publish
from support.nats import nats_servers, node
from support.wire import DEADLINE_S

from app.client import ALL, Client, Keyed
from app.cluster.applied import Applied
from app.cluster.asker import state_of
from app.cluster.nats import Connection
from app.cluster.requests import NobodyAnswers
from app.settings import Cluster

pytestmark = pytest.mark.slow


def url_of(server):
    return f"http://127.0.0.1:{server.port}"


async def taken(client, count):
    """Return the next `count` events of a client."""
    async with asyncio.timeout(DEADLINE_S):
        return [await anext(client) for _ in range(count)]


async def published(server, channel, data, **fields):
    """Publish without a session; return the reply."""
    wire = await server.wire()
    return (await wire.post(publish(channel, data, **fields))).messages[0]


async def test_a_keeper_says_how_far_its_folder_has_come(tmp_path):
    """Its state is never ahead of its rows, however large, and who begins with it has what the keeper has."""
    async with nats_servers(tmp_path) as nats:
        asking = Connection(Cluster(urls=(nats.urls,), node="z"))
        await asking.open()
        with pytest.raises(NobodyAnswers):
            await state_of(asking, "halley", DEADLINE_S)
        async with node(tmp_path, nats, "a", HALLEY_LIMITS_PUBLISH_BURST="10000") as a:
            channel, end = f"/chat/{'room' * 50}", "k" * 120
            async with Client(f"http://127.0.0.1:{a.port}") as client:
                keyed = [Keyed(channel, number, f"{number}{end}") for number in range(3_000)]
                assert set(await client.publish_keyed(keyed)) == {None}
            a.send_signal(signal.SIGTERM)
            await a.exit_code()
        async with node(tmp_path, nats, "a") as a:
            await published(a, "/chat/room", 1)
            state = await state_of(asking, "halley", DEADLINE_S, "a")
            assert state.log_id == (await state_of(asking, "halley", DEADLINE_S)).log_id
            assert len(str(state)) > 2**20, "it was one piece"
            applied = Applied(100_000, 10**12)
            applied.restore(state.applied)
            assert (state.first, len(applied.saved()["keys"])) == (1, 3_000)
            assert applied.offset >= 3_000
        await asking.close()


async def test_fronts_are_one_server_with_their_keeper(tmp_path):
    """Heard at all, at the same positions; what a front reads is what the keeper has; a front has no files."""
    async with (
        nats_servers(tmp_path) as nats,
        node(tmp_path, nats, "k") as k,
        node(tmp_path, nats, "f", keeps=False, HALLEY_HISTORY_TAIL_BYTES="2000") as f,
        node(tmp_path, nats, "g", keeps=False) as g,
        AsyncExitStack() as stack,
    ):
        clients = [await stack.enter_async_context(Client(url_of(each))) for each in (k, f, g)]
        for client in clients:
            await client.subscribe("/chat/**")
        for number in range(0, 100, 10):
            await clients[1].publish_many("/chat/f", range(number, number + 10))
            await clients[2].publish_many("/chat/g", range(number, number + 10))
        heard = [await taken(client, 200) for client in clients]
        assert heard[0] == heard[1] == heard[2]
        late = await stack.enter_async_context(Client(url_of(f)))
        await late.subscribe("/chat/**", after=ALL)
        assert await taken(late, 200) == heard[0]
