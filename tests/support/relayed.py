"""A cluster whose nodes serve each other's sessions: nodes, the proxy in front of them, and what its tests look at."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from nats.aio.client import Client as NatsClient

from support.messages import HANDSHAKE, connect, subscribe
from support.nats import nats_servers, node
from support.round_robin import round_robin
from support.wire import DEADLINE_S, Wire, post, request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from support.nats import NatsServers
    from support.process import Server

NAMES = ("a", "b", "c")
RELAYED = 6
SHARE = RELAYED // 2
"""Of each of the two other nodes."""

HITS = 'halley_limits_hit_total{limit="relayed"}'
WAITING = "halley_cluster_relayed_waiting"
POLL = {"advice": {"timeout": 0}}


@asynccontextmanager
async def running(folder: Path, names: tuple[str, ...] = NAMES, **more: Any) -> AsyncIterator[SimpleNamespace]:
    """Run nodes that know of each other, and the proxy in front of them, within the block."""
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(nats_servers(folder))
        options: dict[str, Any] = {
            "HALLEY_CLUSTER_RELAYED": str(RELAYED),
            "HALLEY_LIMITS_QUEUE_BYTES": "64000000",
            **more,
        }
        nodes = await asyncio.gather(
            *(stack.enter_async_context(node(folder, nats, name, **options)) for name in names)
        )
        for server in nodes:
            await server.until(partial(_knows, server, len(names) - 1))
        proxy = await stack.enter_async_context(round_robin(*nodes))
        yield SimpleNamespace(nats=nats, nodes=nodes, proxy=proxy, **dict(zip(names, nodes, strict=True)))


def _knows(server: Server, others: int) -> bool:
    return len(server.logged("cluster_member")) == others


async def session(server: Server, *channels: str) -> str:
    """Open a session at a node with subscriptions, by a client that keeps no cookies; return its id."""
    wire = await server.wire()
    client_id: str = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
    await wire.post(connect(client_id))
    for channel in channels:
        await wire.post(subscribe(client_id, channel))
    return client_id


async def metric(server: Server, name: str) -> float:
    """Return the value of one of a node's metrics."""
    wire = await Wire.open(server.operations_port)
    text = (await wire.request(request("GET", "/metrics"))).text
    await wire.close()
    return next(float(line.split()[1]) for line in text.splitlines() if line.split()[0] == name)


async def until_metric(server: Server, name: str, value: float) -> None:
    """Wait until a metric has a value."""
    async with asyncio.timeout(DEADLINE_S):
        while await metric(server, name) != value:
            await asyncio.sleep(0.01)


async def held(server: Server, client_id: str, **headers: str) -> Wire:
    """Return a connection to a node on which a connect of that session is held, at its node."""
    wire = await server.wire()
    await wire.send(post(json.dumps([connect(client_id)]).encode(), **headers))
    return wire


async def until_held(cluster: SimpleNamespace, count: int) -> None:
    """Wait until the nodes hold `count` connects together.

    A disconnect that overtakes the next poll of its client has that poll refused as one of an unknown session (402).
    Where this comes before the reply to the disconnect, which takes another connection, cometd.js and Faye give up
    waiting for the reply. So clients whose disconnect a test looks at are asked for it when their polls are held.
    """
    async with asyncio.timeout(DEADLINE_S):
        while sum([await metric(node, "halley_holds") for node in cluster.nodes]) != count:
            await asyncio.sleep(0.01)


@asynccontextmanager
async def listening(nats: NatsServers) -> AsyncIterator[tuple[NatsClient, dict[str, Any]]]:
    """Yield a connection to NATS, and what the nodes send each other, by their names, as soon as all have."""
    client, beats = NatsClient(), dict[str, Any]()
    await client.connect(nats.urls)

    async def take(message: Any) -> None:
        beat = json.loads(message.data)
        beats[beat["node"]] = beat

    await client.subscribe("halley.h.*", cb=take)
    async with asyncio.timeout(DEADLINE_S):
        while len(beats) < len(NAMES):
            await asyncio.sleep(0.01)
    yield client, beats
    await client.close()
