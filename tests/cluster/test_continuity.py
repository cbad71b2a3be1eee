"""For whom a keeper waits before it goes on with a stream, on a real NATS server; the other nodes are only messages."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from nats.aio.client import Client as NatsClient
from support.nats import nats_servers

from halley.cluster.applied import StreamState
from halley.cluster.continuity import QuorumCheck
from halley.cluster.frames import KeeperAnnouncement, pack
from halley.cluster.stream import CannotJoin, describe, stream_config
from halley.history import checksummed_json
from halley.history.folder import Identity
from halley.nats.jetstream import Connection
from halley.settings import Cluster, Settings

pytestmark = pytest.mark.slow

KEEPERS = "a", "b", "c", "own"


@asynccontextmanager
async def stream_with_keepers(folder):
    """Yield settings with a NATS server, whose stream knows the keepers, and the id of the stream."""
    async with nats_servers(folder) as servers:
        options = Cluster(urls=(servers.urls,), node="own", settled_by="keeper", join_s=1.5)
        settings = Settings(cluster=options)
        nats = Connection(options)
        await nats.open()
        described = describe(settings, Identity.new(), 0)
        await nats.ask(f"STREAM.CREATE.{options.space}", stream_config(settings, described))
        for each in KEEPERS:
            await nats.request(f"{options.space}.f.{each}", pack(f"{each}-1", 1, [], KeeperAnnouncement(each)))
        yield settings, nats, described["stream"]
        await nats.close()


async def outcome(settings, nats, stream, folder, messages, *, is_anyone_there=False):
    """Return why a node may not go on with the stream; "" if it may. Other nodes send the messages again and again."""
    applied = StreamState(100, 10**9)
    applied.stream = stream
    others = NatsClient()
    await others.connect(settings.cluster.urls[0])

    async def send():
        while True:
            for subject, message in messages:
                data = message if isinstance(message, bytes) else json.dumps(message).encode()
                await others.publish(f"{settings.cluster.space}.{subject}", data)
            await others.flush()
            await asyncio.sleep(0.1)

    sending = asyncio.create_task(send())
    continuity = QuorumCheck(nats, settings, applied, folder)
    try:
        async with continuity.announced():
            await continuity.proved(is_anyone_there=is_anyone_there)
    except CannotJoin as error:
        return str(error)
    else:
        return ""
    finally:
        sending.cancel()
        await others.close()


def starting(node, stream, *needs, sequence=0):
    return f"j.{node}", {"node": node, "stream": stream, "sequence": sequence, "needs": [*needs]}


def in_service(node, sequence, **more):
    return f"h.{node}", {"node": node, "id": "aaaa", "sequence": sequence, **more}


async def test_for_whom_a_keeper_waits(tmp_path):
    """For one node in service, or for all keepers that may have been in service last."""
    async with stream_with_keepers(tmp_path) as (settings, nats, stream):

        async def why(*messages, companions=None, **more):
            folder = tmp_path / "own"
            folder.mkdir(exist_ok=True)
            content = {"node": "own", "stream": stream, "companions": companions}
            checksummed_json.save(folder / "keepers.json", content)
            return await outcome(settings, nats, stream, folder, messages, **more)

        here = {node: starting(node, stream) for node in KEEPERS}
        away = "which may have more of the history"
        assert f"{away}: a, b, c;" in await why()
        assert f"{away}: b;" in await why(here["a"], here["c"])
        assert await why(here["a"], here["b"], here["c"]) == ""
        assert await why(companions=[]) == "", "it was left alone"
        assert await why(here["b"], companions=["b"]) == ""
        assert f"{away}: c;" in await why(starting("b", stream, "c"), companions=["b"]), "b waits for c in its turn"
        assert await why(starting("b", stream, "c"), here["c"], companions=["b"]) == ""
        assert await why(companions=["gone"]) == "", "the stream does not know it, or not any more"
        assert f"{away}: b;" in await why(starting("b", "another"), companions=["b"]), "of another stream"
        assert await why(in_service("front", 4), is_anyone_there=True) == ""
        replaced = "the stream ends before the last frame that the node"
        assert replaced in await why(in_service("front", 5, went_back=True), is_anyone_there=True)
        assert f"{replaced} b has applied" in await why(starting("b", stream, sequence=5), companions=["b"])
        unreadable = [("j.b", data) for data in (b"", b"[]", b'{"node":1}', b'{"node":"b","sequence":"1"}')]
        assert f"{away}: b;" in await why(*unreadable, ("j.b", {"node": "b", "sequence": 1}), companions=["b"])
