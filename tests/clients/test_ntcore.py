"""ntcore's own client with Halley, and with ntcore, which must pass the same tests to show that they are fair."""

from __future__ import annotations

import asyncio
import json
import time

import msgpack
import pytest
import pytest_asyncio
from clients.foreign import until
from clients.nt4_servers import SERVERS, Place, require_ntcore
from clients.ntcore_client import NtcoreClient
from support.tcp_proxy import relaying

pytestmark = pytest.mark.asyncio(loop_scope="session")

VALUES = {
    "boolean": [True, False],
    "double": [2.5, -1e300, 0.1],
    "int": [0, -(2**63), 2**63 - 1],
    "float": [2.5, -0.25],
    "string": ["", "h\0é\U0001f916"],
    "json": ['{"a": [1, null]}', "7"],
    "raw": [b"", bytes(range(256)) * 20],
    "struct:Pose2d": [bytes(24), b"\x01" * 24],
    "msgpack": [b"\x93\x01\x02\x03"],
    "boolean[]": [[True, False], []],
    "double[]": [[1.5, -2.5], []],
    "int[]": [[1, -(2**62)], []],
    "float[]": [[1.5], []],
    "string[]": [["a", ""], []],
}


class NtcorePlace(Place):
    """A server and clients of pyntcore."""

    def client(self, name, port=None):
        client = NtcoreClient(name, port or self.server.port)
        self.stack.push_async_callback(client.close)
        return client

    async def joined(self, name, port=None):
        client = self.client(name, port)
        client.start()
        await client.connected()
        return client

    async def proxy(self):
        return await self.stack.enter_async_context(relaying(self.server.port))


@pytest_asyncio.fixture(loop_scope="session", params=SERVERS)
async def place(request, tmp_path):
    require_ntcore()
    async with NtcorePlace.at(request.param, tmp_path) as place:
        yield place


@pytest.mark.parametrize("kind", VALUES)
async def test_values_both_ways(kind, place):
    """ND15, NA22, NA29, NA50: values of every type arrive as they were sent, also at a later subscriber."""
    one, other = await place.joined("one"), await place.joined("other")
    kept = []  # a publisher or subscriber ends when Python frees it
    for publisher, hearer, name in ((one, other, "/there"), (other, one, "/back")):
        heard, published = hearer.subscribe(name, kind), publisher.publish(name, kind)
        kept += [heard, published]
        await hearer.until(heard.exists)
        for value in VALUES[kind]:
            published.set(value)
        times = [each.serverTime for each in await hearer.hears(heard, *VALUES[kind])]
        assert times == sorted(times)
        assert abs(times[-1] / 1e6 - time.time()) < 60
        await hearer.hears((await place.joined("late")).subscribe(name, kind), VALUES[kind][-1])
        assert hearer.topic(name, kind).getTypeString() == kind


async def test_prefixes(place):
    """NA49: a prefix matches names as strings, also those of later topics."""
    one, other = await place.joined("one"), await place.joined("other")
    published = [one.publish(name) for name in ("/robot/arm", "/robots", "/other")]
    multi = one.ntcore.MultiSubscriber(other.instance, ["/robot"], other.options())
    await other.until(lambda: len(other.instance.getTopics()) == 2)
    published.append(one.publish("/robot/leg"))
    await other.until(lambda: len(other.instance.getTopics()) == 3)
    assert sorted(topic.getName() for topic in other.instance.getTopics()) == ["/robot/arm", "/robot/leg", "/robots"]
    del multi, published


async def test_properties(place):
    """NA44 to NA46: properties that one client sets or deletes are set or deleted at the other one."""
    one, other = await place.joined("one"), await place.joined("other")
    published = one.publish("/x")
    heard = other.subscribe("/x")
    await other.until(heard.exists)
    mine, theirs = heard.getTopic(), published.getTopic()
    kept = one.subscribe("/x")  # ntcore sends nothing to clients that only publish (NF1)
    mine.setRetained(True)
    mine.setProperty("colour", '{"rgb": [1, 2, 3]}')
    await one.until(lambda: theirs.isRetained() and "rgb" in str(theirs.getProperty("colour")))
    theirs.setCached(False)  # not also persistent: two ntcore clients would change that back and forth forever
    await other.until(lambda: not mine.isCached())
    theirs.deleteProperty("colour")
    await other.until(lambda: "colour" not in json.dumps(mine.getProperties()))
    assert mine.isRetained()
    del kept


async def test_the_server_restarts(place):
    """ND13, NF8: after a restart clients reconnect, publish their values again, and get others' values."""
    one, other = await place.joined("one"), await place.joined("other")
    published, heard = one.publish("/x"), other.subscribe("/x")
    published.set(1.0)
    await other.hears(heard, 1.0)
    await place.server.stop()
    await one.until(lambda: not one.instance.isConnected() and not other.instance.isConnected())
    published.set(2.0)
    await place.server.start()
    await one.connected()
    await other.connected()
    await other.until(lambda: heard.get() == 2.0)
    late = await place.joined("late")
    await late.hears(late.subscribe("/x"), 2.0)


@pytest.mark.parametrize("first", ["dashboard", "coprocessor"])
async def test_whoever_comes_back_first(first, place):
    """ND13: after a restart the user's value replaces the coprocessor's default, in either order of reconnecting."""
    ways = {name: await place.proxy() for name in ("dashboard", "coprocessor")}
    clients = {name: await place.joined(name, way.port) for name, way in ways.items()}
    default = clients["coprocessor"].publish("/speed")
    default.setDefault(1.0)
    heard = clients["coprocessor"].subscribe("/speed")
    choice = clients["dashboard"].publish("/speed")
    choice.set(2.0)
    await clients["coprocessor"].until(lambda: heard.get() == 2.0)
    for way in ways.values():
        way.cut()
    await place.server.stop()
    await place.server.start()
    for name in (first, *(ways.keys() - {first})):
        ways[name].mend()
        await clients[name].connected()
        observer = await place.raw(f"after {name}")
        await observer.subscribe("/speed")
        await observer.text("announce", name="/speed")
        last = await observer.value("/speed")
    while last.value != 2.0:  # who is connected may not yet have published again
        last = await observer.value("/speed")


async def test_two_of_one_name(place):
    """NA11, NA12, ND1: two clients of one name are accepted, and have different names in `$clients`."""
    one, other = await place.joined("test"), await place.joined("test")
    heard, published = other.subscribe("/x"), one.publish("/x")
    published.set(1.0)
    await other.hears(heard, 1.0)
    clients = other.subscribe("$clients", "msgpack")
    await other.until(clients.get)
    present = [each["id"] for each in msgpack.unpackb(clients.get())]
    assert len(present) == len(set(present)) == 2
    assert all(name.startswith("test") for name in present)


async def test_topics_only(place):
    """NA55, ND3: a `topicsOnly` subscription brings no value; a later one for values brings the last value."""
    one, other = await place.joined("one"), await place.joined("other")
    published = one.publish("/x")
    published.set(1.0)
    silent = other.subscribe("/x", topicsOnly=True)
    await other.until(silent.exists)
    observer = await place.raw()
    await observer.subscribe("/x")
    await observer.value("/x")
    assert silent.readQueue() == []
    await other.hears(other.subscribe("/x"), 1.0)


async def test_all_or_the_newest(place):
    """NA56: with `sendAll` each value arrives, in order; without it fewer values and the last one."""
    one, other, third = [await place.joined(name) for name in ("one", "other", "third")]
    published = one.publish("/x")
    every, newest = other.subscribe("/x"), third.subscribe("/x", sendAll=False, periodic=0.2)
    await other.until(lambda: every.exists() and newest.exists())
    numbers = [float(each) for each in range(300)]
    for number in numbers:
        published.set(number)
        await asyncio.sleep(0)
    await other.hears(every, *numbers)
    await third.until(lambda: newest.get() == numbers[-1])
    heard = [each.value for each in newest.readQueue()]
    assert heard == sorted(heard)
    assert len(heard) < len(numbers) / 2


async def test_time(place):
    """NA26 to NA28: the client gets the server's time, which is the machine's."""
    one = await place.joined("one")
    assert abs(one.instance.getServerTimeOffset()) < 1_000_000  # microseconds; both use this machine's clock


async def test_last_values(place):
    """NA39, NA41, ND5: any value replaces a default, even one of a negative time; a default replaces no value."""
    one, other = await place.joined("one"), await place.joined("other")
    default, chosen = one.publish("/x"), other.publish("/x")
    default.setDefault(1.0)
    late = await place.joined("late")
    heard = late.subscribe("/x")
    await late.hears(heard, 1.0)
    raw = await place.raw()
    await raw.publish("/x", 1)
    await raw.put(1, -10, 2.0)
    await late.until(lambda: heard.get() == 2.0)
    again = await place.joined("again")
    await again.hears(again.subscribe("/x"), 2.0)
    chosen.set(3.0)
    await late.until(lambda: heard.get() == 3.0)
    default.close()
    default = one.publish("/x")
    default.setDefault(4.0)
    once_more = await place.joined("once more")
    assert [each.value for each in await once_more.hears(once_more.subscribe("/x"), 3.0)] == [3.0]


async def test_unpublished(place):
    """NA34, NA35, ND4: a topic ends when its last publisher is closed or disconnected."""
    one, other = await place.joined("one"), await place.joined("other")
    heard = {name: other.subscribe(name) for name in ("/x", "/y")}
    first, _second = one.publish("/x"), one.publish("/y")
    await other.until(lambda: heard["/x"].exists() and heard["/y"].exists())
    first.close()
    await other.until(lambda: not heard["/x"].exists())
    assert heard["/y"].exists()
    one.instance.stopClient()
    await other.until(lambda: not heard["/y"].exists())


async def test_persistent(place, tmp_path):
    """NA48: a persistent topic exists again after a restart, with its value, without a publisher."""
    one = await place.joined("one")
    published = one.publish("/kept")
    published.getTopic().setPersistent(True)
    published.set(5.0)
    await until(lambda: any(b"/kept" in path.read_bytes() and b"5" in path.read_bytes() for path in saved(tmp_path)))
    one.instance.stopClient()
    await place.server.stop()
    await place.server.start()
    late = await place.joined("late")
    heard = late.subscribe("/kept")
    await late.hears(heard, 5.0)
    assert heard.getTopic().isPersistent()


def saved(folder):
    """The files of persistent topics."""
    return [path for path in folder.rglob("*.json") if path.is_file()]


async def test_meta_topics(place):
    """NA58: an ntcore client can read connected clients, subscribers and publishers from meta topics."""
    one, other = await place.joined("one"), await place.joined("other")
    metas = {name: other.subscribe(name, "msgpack") for name in ("$clients", "$sub$/x", "$pub$/x")}
    published, heard = one.publish("/x"), other.subscribe("/x")

    def rows(name):
        """The rows of a meta topic, without the server's own."""
        return [row for row in msgpack.unpackb(metas[name].get() or b"\x90") if row.get("client") != ""]

    await other.until(lambda: rows("$sub$/x") and rows("$pub$/x"))
    assert sorted(row["id"].partition("@")[0] for row in rows("$clients")) == ["one", "other"]
    assert [row["client"].partition("@")[0] for row in rows("$pub$/x")] == ["one"]
    assert [row["client"].partition("@")[0] for row in rows("$sub$/x")] == ["other"]
    assert rows("$sub$/x")[0]["options"]["all"] is True
    heard.close()
    await other.until(lambda: rows("$sub$/x") == [])
    published.close()
    await other.until(lambda: not metas["$pub$/x"].exists())


async def test_an_unknown_type_is_bytes(place):
    """NA22: a struct's schema, as WPILib's programs publish it, arrives as bytes."""
    one, other = await place.joined("one"), await place.joined("other")
    one.instance.addSchema("struct:Twist", "structschema", "double dx; double dy")
    schema = other.subscribe("/.schema/struct:Twist", "structschema")
    await other.hears(schema, b"double dx; double dy")
