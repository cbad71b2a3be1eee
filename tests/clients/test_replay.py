"""Salesforce's clients replay from Halley without changes: the extensions of jsforce (in Faye) and aiosfstream-ng."""

from __future__ import annotations

import pytest
from clients.foreign import OK, until
from clients.kinds import Kind, require
from clients.node import NodeClient
from clients.publisher import publish

pytestmark = pytest.mark.asyncio(loop_scope="session")

INVALID = "The replayId {{{}}} you provided was invalid.  Please provide a valid ID, -2 to replay all events, or -1"


def stored(tmp_path):
    """Settings of a server with a history in `tmp_path`."""
    return {"data_dir": str(tmp_path), "history": {"enabled": True}}


async def jsforce(server, channel, position):
    require("node")
    kind = Kind("jsforce", "node")
    return await NodeClient.start(f"http://127.0.0.1:{server.port}/cometd/42.0", kind, replay=[channel, position])


@pytest.mark.node
async def test_jsforce(site, tmp_path):
    """Faye with jsforce's replay extension gets all stored events, then new ones, with positions in the data."""
    server = await site.serve(**stored(tmp_path))
    await publish(server.port, ("/room", {"n": 1}), ("/room", {"n": 2}))
    client = await jsforce(server, "/room", -2)
    try:
        assert await client.subscribe("/room") == OK
        await until(lambda: len(client.events) == 2)
        await publish(server.port, ("/room", {"n": 3}))
        await until(lambda: len(client.events) == 3)
        assert [data["n"] for _, data in client.events] == [1, 2, 3]
        positions = [data["event"]["replayId"] for _, data in client.events]
        assert positions == sorted(set(positions))
    finally:
        await client.close()


@pytest.mark.node
async def test_jsforce_is_refused(site, tmp_path):
    """A position in the future is refused in Salesforce's words, which Faye shows (H6)."""
    server = await site.serve(**stored(tmp_path))
    client = await jsforce(server, "/room", 999_999)
    try:
        outcome = await client.subscribe("/room")
        assert not outcome.successful
        assert INVALID.format(999_999) in (outcome.error or "")
    finally:
        await client.close()


async def test_aiosfstream(site, tmp_path):
    """aiosfstream-ng's replay storages begin with all stored events, and resume after a stored position."""
    replay = pytest.importorskip("aiosfstream_ng.replay", reason="pip install -r tests/clients/requirements.txt")
    from aiocometd_ng import Client

    server = await site.serve(**stored(tmp_path))
    await publish(server.port, *(("/room", {"n": n}) for n in (1, 2, 3)))
    url = f"http://127.0.0.1:{server.port}/cometd/42.0"
    every = replay.ConstantReplayId(default_id=replay.ReplayOption.ALL_EVENTS)
    async with Client(url, connection_timeout=0, extensions=[every]) as client:
        await client.subscribe("/room")
        messages = [await client.receive() for _ in range(3)]
    assert [message["data"]["n"] for message in messages] == [1, 2, 3]
    kept = messages[0]["data"]["event"]
    storage = replay.MappingStorage(
        {"/room": replay.ReplayMarker(date=kept["createdDate"], replay_id=kept["replayId"])}
    )
    async with Client(url, connection_timeout=0, extensions=[storage]) as client:
        await client.subscribe("/room")
        assert [(await client.receive())["data"]["n"] for _ in range(2)] == [2, 3]
