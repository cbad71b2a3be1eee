"""ntcore-ts-client, which dashboards in JavaScript use, with Halley, and with ntcore where that works."""

from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio
from clients.foreign import DEADLINE_S
from clients.kinds import Kind, require
from clients.node import NodeClient
from clients.nt4_servers import HALLEY, SERVERS, Place
from support import nt4

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.node]

VALUES = {
    "boolean": (nt4.BOOLEAN, [True, False]),
    "double": (nt4.DOUBLE, [2.5, -1e300, 5]),
    "int": (nt4.INT, [7, -(2**31)]),
    "string": (nt4.STRING, ["", "h\u00e9\U0001f916"]),
    "boolean[]": (nt4.ARRAY + nt4.BOOLEAN, [[True, False]]),
    "double[]": (nt4.ARRAY + nt4.DOUBLE, [[1.5, -2.5]]),
    "int[]": (nt4.ARRAY + nt4.INT, [[1, -2]]),
    "string[]": (nt4.ARRAY + nt4.STRING, [["a", ""]]),
}

"""Bytes are left out: the library sends them as a map, for which servers close it, and crashes on receiving some."""


class NodePlace(Place):
    """A server and clients of ntcore-ts-client."""

    async def joined(self):
        client = await NodeClient.start(self.server.url, Kind("ntcore", "node"), port=self.server.port)
        self.stack.push_async_callback(client.close)
        assert (await client.open()).successful
        return client


async def told(client, command, *arguments):
    """Send a command to the client and return its reply."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            return await client.call(command, *arguments)
    except TimeoutError:
        raise AssertionError(f"no reply to {command}: {client.lately()}") from None


@pytest_asyncio.fixture(loop_scope="session", params=SERVERS)
async def place(request, tmp_path):
    require("node")
    async with NodePlace.at(request.param, tmp_path) as place:
        yield place


@pytest.mark.parametrize("kind", VALUES)
async def test_values_both_ways(kind, place):
    """ND15, NA23, NA30: its publish gets an announce, its values have the topic's type, and it gets others' values."""
    number, values = VALUES[kind]
    client, raw = await place.joined(), await place.raw()
    await raw.heed_marks()
    await raw.subscribe("/there", all=True)
    announced = await told(client, "publish", "/there", kind)
    assert (announced["name"], announced["type"], announced["properties"]) == ("/there", kind, {})
    assert (await raw.text("announce", name="/there"))["type"] == kind
    for value in values:
        await told(client, "set", "/there", value)
        heard = await raw.value("/there")
        assert (heard.number, heard.value) == (number, value)
    await told(client, "subscribe", "/back", kind, {"all": True, "periodic": 0.01})
    await raw.publish("/back", 1, kind)
    expected = []
    for value in values:
        await raw.put(1, await raw.time(), value, number)
        expected.append(("/back", value))
        await client.until(lambda: len(client.events) >= len(expected))
    assert client.events == expected


async def test_announces(place):
    """NA29, NA34: a prefix brings the client topics, their last values, and their end."""
    raw = await place.raw()
    await raw.heed_marks()
    await raw.publish("/robot/arm", 1)
    await raw.put(1, 7, 1.5)
    await raw.quiet()
    client = await place.joined()
    await told(client, "subscribePrefix", "/robot/", {"all": True, "periodic": 0.01})
    await client.hears(("/robot/arm", 1.5))
    await raw.publish("/robot/leg", 2, "string")
    await raw.put(2, 7, "left", nt4.STRING)
    await client.hears(("/robot/arm", 1.5), ("/robot/leg", "left"))
    await told(client, "subscribe", "/alone", "double", {"periodic": 0.01})
    await raw.publish("/alone", 3)
    await is_announced(client, "/alone", wanted=True)
    await raw.unpublish(3)
    await is_announced(client, "/alone", wanted=False)


async def is_announced(client, name, *, wanted):
    """Wait until the client shows a topic as announced, or as not announced."""
    async with asyncio.timeout(DEADLINE_S):
        while (await told(client, "about", name))["announced"] != wanted:
            await asyncio.sleep(0.005)


async def test_a_topic_that_is_there_already(place):
    """NA30, NF1: a second publisher gets an announce; without it the library's promise fails after three seconds."""
    raw = await place.raw()
    await raw.publish("/x", 1, "double", {"retained": True})
    await raw.quiet()
    announced = await told(await place.joined(), "publish", "/x", "double")
    assert announced["properties"] == {"retained": True}


@pytest.mark.parametrize("place", [HALLEY], indirect=True)
async def test_properties_with_ack(place):
    """NA46: the library, which needs a boolean `ack` that ntcore never sends, still publishes after `properties`."""
    client, raw = await place.joined(), await place.raw()
    await told(client, "publish", "/x", "double")
    await told(client, "subscribe", "/x", "double", {})
    await raw.subscribe("/x")
    await raw.text("announce", name="/x")
    await raw.set_properties("/x", persistent=True)
    assert (await raw.text("properties"))["ack"] is True
    await told(client, "set", "/x", 2.5)
    assert (await raw.value("/x")).value == 2.5
    assert [each for each in client.complaints if "onnected" not in each] == []
