"""NetworkTables' topics over the wire: who is told of which, when, and of their end."""

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
    """Who is there, as `$clients` says next."""
    return [each["id"] for each in msgpack.unpackb((await client.value("$clients")).value)]


async def test_names(room):
    """ND1: clients of one name are told apart, a name is free again when its client is gone, round trips are nobody."""
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
    """ND2: who subscribes to everything is told of each topic once, those of before and those to come; none is meta."""
    hearer, publisher = await room.two()
    await publisher.publish("/before", 1)
    await publisher.quiet()
    await hearer.subscribe("", prefix=True)
    await publisher.publish("/after", 2)
    await publisher.publish("/before", 3)
    await publisher.quiet()
    assert [each.params["name"] for each in await hearer.quiet()] == ["/before", "/after"]


async def test_topics_only(room):
    """ND3, NA55: no value and no second announce; then the last value, with the time it was given."""
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
    """ND4, NA34, NA35: subscribers are told of the end, and the topic's own meta topics end with it."""
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
    """ND7, NA13, NA19: a pubuid too large and a name of the server's are no publishers, and do no harm."""
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
    """ND14: the same pubuid stands for another topic on another connection, and the same subuid for other wishes."""
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
    """ND16, NF1, NA30: also who hears nothing, who comes second, and who publishes it already, each with its pubuid."""
    one, other = await room.two()
    for client, pubuid in ((one, 1), (one, 2), (other, 3)):
        await client.publish("/x", pubuid, "double" if pubuid < 3 else "string", {"of": pubuid})
        (announced,) = await client.quiet()
        assert isinstance(announced, Text)
        assert announced.params | {"id": 0} == {
            "name": "/x", "id": 0, "type": "double", "pubuid": pubuid, "properties": {"of": 1},
        }  # fmt: skip


async def test_publishers_are_told_of_the_end(room):
    """ND16, NA34: whoever was told of a topic is, though it does not subscribe, and has ended to publish before."""
    one, other = await room.two()
    await one.publish("/x", 1)
    await other.publish("/x", 1)
    await other.unpublish(1)
    await other.quiet()
    await one.unpublish(1)
    for client in (one, other):
        await client.text("unannounce", name="/x")


async def test_acknowledged_properties(room):
    """ND16, NA46: `ack` is a boolean, true for who has set them; who was never told of the topic hears nothing."""
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
    """NF2, NA37: of a thousand topics none has a value before its announce; the client of this test insists on that."""
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
