"""The bounds that all accounts share: one account takes all that it can, and the others are served as before.

The list is the last part of `tables.txt`. A stranger fills each bound, shortened by settings, from one address; who is
served then is another address, and an honest client at the stranger's own that was there before.
"""

from __future__ import annotations

import json

import pytest
from support import nt4, wamp
from support.messages import HANDSHAKE, connect, publish, subscribe
from support.server import brisk, serving
from support.streams import StreamReader
from support.wire import request

from halley.broker.errors import HistoryUnavailable

OTHER = "127.0.0.2"
MOST = 6
"""What the bounds here are shortened to; an address may have half of it where it has a part of its own."""


class Client:
    """A Bayeux client, with a session, at one address."""

    def __init__(self, wire, client_id):
        self.wire = wire
        self.client_id = client_id

    @classmethod
    async def begin(cls, served, source=""):
        wire = await served.wire(source=source)
        client_id = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
        await wire.post(connect(client_id))
        assert (await wire.post(subscribe(client_id, "/room"))).messages[0]["successful"]
        return cls(wire, client_id)

    async def is_served(self):
        """Assert that it can publish and gets the event, and that it may subscribe."""
        told = await self.wire.post(publish("/room", self.client_id, clientId=self.client_id))
        assert told.replies[0]["successful"]
        answer = await self.wire.post(connect(self.client_id, advice={"timeout": 0}))
        assert answer.replies[0]["successful"]
        assert self.client_id in told.data + answer.data
        assert (await self.wire.post(subscribe(self.client_id, "/other"))).messages[0]["successful"]


async def sessions(served):
    """Handshakes, until the stranger's address may have no more."""
    wire = await served.wire()
    answers = [(await wire.post(HANDSHAKE)).status for _ in range(2 * MOST)]
    assert answers[-1] == 503


async def streams(served):
    """Streams, until the stranger's address may have no more: then 503."""
    for _ in range(2 * MOST):
        reader = await StreamReader.open(served, "/events/room")
    assert reader.response.status == 503


async def polls(served):
    """WAMP by long-polling, until the stranger's address may have no more."""
    opening = json.dumps({"protocols": ["wamp.2.json"]}).encode()
    asked = request("POST", "/ws/open", opening, content_type="application/json")
    for _ in range(2 * MOST):
        answer = await (await served.wire()).request(asked)
    assert answer.status == 503
    assert (await (await served.wire(source=OTHER)).request(asked)).status == 200


async def channels(served):
    """Publishes to channels that the stranger makes up."""
    wire = await served.wire()
    await wire.post(*(publish(f"/made/up/{number}", 1) for number in range(10 * MOST)))
    assert served.house.broker.hits["channels"] or not served.house.engine.hooks.channel_created


async def topics_of_networktables(served):
    """As many topics as there may be: new ones of others are ignored, and values go on."""
    before = await nt4.connect(served.url, "before")
    await before.publish("/before", 1, "int")
    await before.quiet()
    async with await nt4.connect(served.url, "stranger") as stranger:
        for number in range(2 * MOST):
            await stranger.publish(f"/made/up/{number}", number, "int")
        await stranger.quiet()
        assert served.house.broker.hits["topics"] > 0
        async with await nt4.connect(served.url, "ear") as ear:
            await ear.subscribe("/before")
            await before.put(1, 7, 7, nt4.INT)
            assert (await ear.value("/before")).value == 7
    await before.close()


async def wildcards(served):
    """Wildcards with empty components at as many different places as there may be; others' of such a form go on."""
    async with await wamp.join(served.url) as stranger:
        for at in range(2 * MOST):
            names = ["a"] * (2 * MOST + 1)
            names[at] = ""
            await stranger.send([wamp.SUBSCRIBE, at + 1, {"match": "wildcard"}, ".".join(names)])
            last = await stranger.receive()
        assert last[0] == wamp.ERROR
        async with await wamp.join(served.url) as other:
            await other.send([wamp.SUBSCRIBE, 1, {"match": "wildcard"}, ".".join(["", *["b"] * (2 * MOST)])])
            assert (await other.receive())[0] == wamp.SUBSCRIBED


PART = {"exempt": [], "sessions_per_address": MOST // 2}
FILLS = {
    "limits.sessions": (sessions, {"limits": {**PART, "sessions": MOST}}),
    "events.streams": (streams, {"events": {"streams": MOST, "streams_per_address": MOST // 2}}),
    "wamp.polls": (polls, {"wamp": {"polls": MOST}, "limits": PART}),
    "limits.channels": (channels, {"limits": {"channels": MOST}}),
    "ticks.remembered_topics": (channels, {"ticks": {"remembered_topics": MOST}}),
    "nt4.topics": (topics_of_networktables, {"nt4": {"enabled": True, "port": 0, "topics": MOST}}),
    "wamp.wildcard_forms": (wildcards, {"wamp": {"wildcard_forms": MOST}}),
}
"""How one account fills a bound, and the settings that make it short; the others have tests of their own."""


@pytest.mark.parametrize("bound", FILLS)
async def test_others_are_served_where_one_account_has_filled_a_bound(bound):
    """Another address is, also one that comes later, and an honest client at the stranger's own."""
    fill, changed = FILLS[bound]
    changed["limits"] = {"exempt": [], **changed.get("limits", {})}
    async with serving(brisk(**changed)) as served:
        honest, other = await Client.begin(served), await Client.begin(served, OTHER)
        await fill(served)
        for client in (honest, other, await Client.begin(served, OTHER)):
            await client.is_served()


async def test_an_inbox_that_one_has_filled_refuses_all_until_the_disk_goes_on(tmp_path, monkeypatch):
    """Durable events are refused at every address; those of topics that are not durable are delivered."""
    settings = brisk(data_dir=str(tmp_path), history={"enabled": True, "free_bytes": 0}, limits={"exempt": []})
    async with serving(settings) as served:
        other = await Client.begin(served, OTHER)

        def is_full(*_):
            raise HistoryUnavailable

        with monkeypatch.context() as patch:
            patch.setattr(served.house.broker.commits.log, "append", is_full)
            answer = (await other.wire.post(publish("/room", 1, clientId=other.client_id))).replies[0]
            assert (answer["successful"], answer["error"]) == (False, "503::history_unavailable")
            assert (await other.wire.post(subscribe(other.client_id, "/c"))).messages[0]["successful"]
        await other.is_served()
