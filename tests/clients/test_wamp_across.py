"""Clients of several libraries, serializers and protocols on one server: an event is the same for all of them."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from clients.foreign import OK
from clients.publisher import AWKWARD, publish
from clients.wamp_kinds import WAMP_KINDS, join
from support import wamp

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.node]

MANY = [name for name, kind in WAMP_KINDS.items() if kind.runtime != "browser"]
PAYLOAD = ([1, AWKWARD, {"deep": [True, None, -0.5]}], {"key": [2**53 - 1, "", {}]})


async def test_what_one_publishes_reaches_all_others(site):
    """W25, W34: each library publishes once in each serializer, and all others get exactly that."""
    server = await site.serve()
    clients = {name: await join(site, name, server.port) for name in MANY}
    for client in clients.values():
        assert (await client.subscribe("com.room")).error is None
    for name, publisher in clients.items():
        args, kwargs = PAYLOAD
        assert (await publisher.publish("com.room", [name, *args], kwargs)).error is None
        for listener in clients.values():
            if listener is not publisher:
                await listener.hears(([name, *args], kwargs))
        assert publisher.heard == []


@pytest.mark.parametrize("kind", ["autobahn-python-cbor", "autobahn-js-msgpack", "wampy-json"])
async def test_from_bayeux(kind, site):
    """Bayeux' /chat/demo is WAMP's chat.demo, and any data is its only argument."""
    server = await site.serve()
    client = await join(site, kind, server.port)
    await client.subscribe("chat.demo")
    values = [{"text": AWKWARD}, ["a", "list"], "text", 0, {"args": [1], "kwargs": {}}]
    await publish(server.port, *(("/chat/demo", value) for value in values))
    await client.hears(*(([value], {}) for value in values))


@pytest.mark.parametrize("kind", ["autobahn-python-cbor", "autobahn-js-msgpack", "wampy-json"])
async def test_to_bayeux(kind, site):
    """In Bayeux one argument is the data; anything else is an object with args and kwargs."""
    server = await site.serve()
    listener = await site.join("aiocometd", server.port)
    assert await listener.subscribe("/chat/demo") == OK
    client = await join(site, kind, server.port)
    for payload in (([{"text": AWKWARD}], None), (["a", "b"], None), (["a"], {"b": 1}), ([7], None)):
        assert (await client.publish("chat.demo", *payload)).error is None
    await listener.hears(
        ("/chat/demo", {"text": AWKWARD}),
        ("/chat/demo", {"args": ["a", "b"], "kwargs": {}}),
        ("/chat/demo", {"args": ["a"], "kwargs": {"b": 1}}),
        ("/chat/demo", 7),
    )


async def test_a_pattern_hears_both_protocols(site):
    """A WAMP prefix subscription gets Bayeux' events below it, with their topics."""
    server = await site.serve()
    client = await join(site, "autobahn-js-json", server.port)
    await client.subscribe("chat.", match="prefix")
    await publish(server.port, ("/chat/demo", 1), ("/chatter", 2), ("/chat/a/b", 3))
    heard = await client.hears(([1], {}), ([3], {}))
    assert [each.topic for each in heard] == ["chat.demo", "chat.a.b"]


async def test_history_of_all_protocols(site, tmp_path):
    """Events of Bayeux and WAMP are in one log, which get_events and /history both read."""
    server = await site.serve(history={"enabled": True, "free_bytes": 0}, data_dir=str(tmp_path))
    client = await join(site, "wampy-cbor", server.port)
    await publish(server.port, ("/chat/demo", {"from": "bayeux"}))
    await client.publish("chat.demo", [{"from": "wamp"}])
    subscription = (await client.call("wamp.subscription.lookup", "chat.demo")).value.args[0]
    events = (await client.call("wamp.subscription.get_events", subscription)).value.args
    assert [event["args"] for event in events] == [[{"from": "bayeux"}], [{"from": "wamp"}]]
    async with httpx.AsyncClient(verify=False) as http:
        found = (await http.get(f"http://127.0.0.1:{server.port}/history/chat/demo")).json()["events"]
    assert [event["data"] for event in found] == [{"from": "bayeux"}, {"from": "wamp"}]


async def test_publishing_at_once_keeps_each_publishers_order(site):
    """W31: while several clients publish, a subscriber gets each publisher's events in order, and none twice."""
    server = await site.serve()
    clients = [
        await join(site, name, server.port) for name in ("autobahn-python-msgpack", "autobahn-js-cbor", "wampy-json")
    ]
    async with await wamp.join(f"http://127.0.0.1:{server.port}", "wamp.2.json.batched") as listener:
        await listener.subscribe("com.room")

        async def talk(number, client):
            for count in range(50):
                await client.publish("com.room", [number, count])

        await asyncio.gather(*(talk(number, client) for number, client in enumerate(clients)))
        heard = [(await listener.receive())[4] for _ in range(150)]
    for number in range(3):
        assert [count for who, count in heard if who == number] == list(range(50))
