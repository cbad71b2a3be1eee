"""NetworkTables' topics over the wire: which clients get an announce or unannounce, and when."""

from __future__ import annotations

import msgpack
import pytest
from support.nt4 import RTT, Text, Value
from support.nt4_room import opened


@pytest.fixture
async def room():
    async with opened() as room:
        yield room


async def clients_shown_to(client):
    """Return the names in the next value of `$clients`."""
    return [each["id"] for each in msgpack.unpackb((await client.value("$clients")).value)]


async def test_names(room):
    """ND1: clients of one name get different ones, a name is free after its client left, RTT clients are not listed."""
    watcher = await room.enter("watcher")
    await watcher.subscribe("$clients")
    assert await clients_shown_to(watcher) == ["watcher"]
    await room.enter("test")
    assert sorted(await clients_shown_to(watcher)) == ["test", "watcher"]
    second = await room.enter("test")
    _, other, _ = sorted(await clients_shown_to(watcher))
    assert other.startswith("test@")
    await (await room.enter("rtt", RTT)).time()
    await second.close()
    assert sorted(await clients_shown_to(watcher)) == ["test", "watcher"]
    await room.enter("test")
    assert sorted(await clients_shown_to(watcher)) == ["test", other, "watcher"]


async def test_announced_once(room):
    """ND2: a subscriber to everything gets each topic's announce once, also older topics', but not meta topics'."""
    hearer, publisher = await room.two()
    await publisher.publish("/before", 1)
    await publisher.quiet()
    await hearer.subscribe("", prefix=True)
    await publisher.publish("/after", 2)
    await publisher.publish("/before", 3)
    await publisher.quiet()
    assert [each.params["name"] for each in await hearer.quiet()] == ["/before", "/after"]


async def test_topics_only(room):
    """ND3, NA55: with `topicsonly` there is no value and no second announce; without it, the last value follows."""
    hearer, publisher = await room.two()
    await publisher.publish("/x", 1)
    await publisher.put(1, 77, 1.5)
    await publisher.quiet()
    await hearer.subscribe("/x", topicsonly=True)
    (announced,) = await hearer.quiet()
    assert announced.method == "announce"
    await hearer.subscribe("/x", subuid=2)
    assert await hearer.value("/x") == Value("/x", 77, 1, 1.5)
    assert await hearer.quiet() == []


async def test_the_only_publisher_leaves(room):
    """ND4, NA34, NA35: subscribers get an unannounce, and the topic's meta topics end with it."""
    hearer, publisher = await room.two()
    await hearer.subscribe("/x", "$pub$/x", "$sub$/x")
    await publisher.publish("/x", 1)
    for name in ("/x", "$pub$/x", "$sub$/x"):
        await hearer.text("announce", name=name)
    await publisher.close()
    for name in ("/x", "$pub$/x", "$sub$/x"):
        await hearer.text("unannounce", name=name)
    assert hearer.names == {}


async def test_refused_names_and_ids(room):
    """ND7, NA13, NA19: a pubuid that is too large and a name of the server's own are ignored, without harm."""
    hearer, publisher = await room.two()
    await hearer.subscribe("/x", "$clients", "$mine")
    assert await clients_shown_to(hearer) == ["hearer", "publisher"]
    await hearer.quiet()
    await publisher.publish("/x", 2**31 - 1)
    await publisher.publish("$clients", 1)
    await publisher.publish("$mine", 2)
    await publisher.put(1, 7, 1.0)
    assert await publisher.quiet() == []
    assert await hearer.quiet() == []
    await publisher.publish("/x", 3)
    await publisher.text("announce", name="/x", pubuid=3)
    await hearer.text("announce", name="/x")


async def test_ids_are_each_connections_own(room):
    """ND14: another connection can use the same pubuid for another topic, and the same subuid for other options."""
    one, other = await room.two()
    await one.publish("/one", 1)
    await other.publish("/other", 1)
    for client in (one, other):
        await client.subscribe("/", subuid=1, prefix=True)
        await client.quiet()
    await one.put(1, 7, 1.0)
    assert await other.value("/one") == Value("/one", 7, 1, 1.0)
    await other.put(1, 7, 2.0)
    assert await one.value("/other") == Value("/other", 7, 1, 2.0)
    await one.unsubscribe(1)
    await one.quiet()
    await one.put(1, 8, 3.0)
    assert await other.value("/one") == Value("/one", 8, 1, 3.0)


async def test_every_publish_is_answered(room):
    """ND16, NF1, NA30: each publish gets an announce with its pubuid, also a second one, and without a subscription."""
    one, other = await room.two()
    for client, pubuid in ((one, 1), (one, 2), (other, 3)):
        await client.publish("/x", pubuid, "double" if pubuid < 3 else "string", {"of": pubuid})
        (announced,) = await client.quiet()
        assert isinstance(announced, Text)
        assert announced.params | {"id": 0} == {
            "name": "/x", "id": 0, "type": "double", "pubuid": pubuid, "properties": {"of": 1},
        }  # fmt: skip


async def test_publishers_are_told_of_the_end(room):
    """ND16, NA34: a client that got the announce gets the unannounce, even if it no longer publishes or subscribes."""
    one, other = await room.two()
    await one.publish("/x", 1)
    await other.publish("/x", 1)
    await other.unpublish(1)
    await other.quiet()
    await one.unpublish(1)
    for client in (one, other):
        await client.text("unannounce", name="/x")


async def test_acknowledged_properties(room):
    """ND16, NA46: the client that set them gets `ack` true; a client that got no announce of the topic gets nothing."""
    one, other = await room.two()
    stranger = await room.enter("stranger")
    await one.publish("/x", 1)
    await other.subscribe("/x")
    await other.text("announce", name="/x")
    await other.set_properties("/x", colour="red", retained=None)
    update = {"colour": "red", "retained": None}
    assert await other.text("properties") == {"name": "/x", "update": update, "ack": True}
    assert await one.text("properties") == {"name": "/x", "update": update, "ack": False}
    await stranger.set_properties("/x", colour="blue")
    assert await stranger.quiet() == []
    assert (await one.text("properties"))["update"] == {"colour": "blue"}


@pytest.mark.parametrize("first", ["subscribe", "publish"])
async def test_many_topics(first, room):
    """NF2, NA37: none of a thousand topics has a value before its announce, which the test's client checks."""
    hearer, publisher = await room.two()
    names = [f"/many/{number}" for number in range(1_000)]
    if first == "subscribe":
        await hearer.subscribe("/many/", prefix=True)
        await hearer.quiet()
    for pubuid, name in enumerate(names):
        await publisher.publish(name, pubuid)
        await publisher.put(pubuid, 7, float(pubuid))
    await publisher.quiet()
    if first == "publish":
        await hearer.subscribe("/many/", prefix=True)
    heard = [await hearer.value(name) for name in names]
    assert [each.value for each in heard] == [float(each) for each in range(1_000)]
