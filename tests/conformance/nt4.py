"""What a server of NetworkTables 4.1 must do (the NetworkTables 4.1 specification, revision of October 2023).

Sections are named as in the specification (github.com/wpilibsuite/allwpilib, ntcore/doc/networktables4.adoc). Names of
checks are random, so that a server can be tried while it is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from conformance.checks import Checks, Site
from support import nt4
from support.nt4 import ARRAY, BOOLEAN, DOUBLE, FLOAT, INT, RAW, RTT, STRING, TIME_ID, V40, V41, NtClient, Value

NT4 = Checks()

_T = TypeVar("_T")

KINDS: dict[str, tuple[int, Any]] = {
    "boolean": (BOOLEAN, True),
    "double": (DOUBLE, -2.5),
    "int": (INT, -(2**62)),
    "float": (FLOAT, 0.5),
    "string": (STRING, "é\0\U0001f916"),
    "json": (STRING, '{"a":1}'),
    "raw": (RAW, b"\x00\xff"),
    "struct:Pose2d": (RAW, bytes(24)),
    "boolean[]": (ARRAY + BOOLEAN, [True, False]),
    "double[]": (ARRAY + DOUBLE, [0.5, -1.5]),
    "int[]": (ARRAY + INT, [1, -1]),
    "float[]": (ARRAY + FLOAT, [0.5]),
    "string[]": (ARRAY + STRING, ["", "b"]),
}
"""The types, with the number by which each is sent and a value."""

T = 1_000_000
"""A time long ago, in microseconds."""


async def connected(site: Site, *subprotocols: str) -> NtClient:
    """Connect under a name of its own."""
    client = await nt4.connect(
        site.url, site.name("client"), *subprotocols, open_timeout=site.wait_s, answer_s=site.wait_s
    )
    site.closes(client.close)
    return client


async def within(site: Site, answering: Awaitable[_T]) -> _T:
    """Wait for what a client awaits, as long as an answer may take."""
    async with asyncio.timeout(site.wait_s):
        return await answering


async def publisher_of(site: Site, name: str, kind: str = "double", uid: int = 1, **properties: Any) -> NtClient:
    """Connect a client, and publish a topic by it; the server has it when this returns."""
    client = await connected(site)
    await client.publish(name, uid, kind, properties)
    await within(site, client.time())
    return client


@NT4.must("WebSockets Protocol Configuration")
async def both_versions(site: Site) -> None:
    """A client chooses version 4.0 or 4.1 by the WebSocket's subprotocol; of both the server takes 4.1."""
    for offered, chosen in (([V41], V41), ([V40], V40), ([V40, V41], V41)):
        client = await connected(site, *offered)
        assert client.socket.subprotocol == chosen, f"{client.socket.subprotocol} for {offered}"


@NT4.must("RTT Subprotocol")
async def the_time_alone(site: Site) -> None:
    """By the subprotocol for the time nothing but the time is answered."""
    client = await connected(site, RTT)
    await client.send_raw(nt4.packed(TIME_ID, 0, INT, 7))
    await within(site, client.time())
    assert client.times, "no answer"
    assert client.times[0][1:] == [INT, 7], f"another answer: {client.times[0]}"


@NT4.must("Timestamps")
async def the_time(site: Site) -> None:
    """A client's value with the id -1 comes back as it was, with the server's time."""
    client = await connected(site)
    for number, value in ((INT, 2**62), (INT, -1)):
        await client.send_raw(nt4.packed(TIME_ID, 0, number, value))
    await within(site, client.time())
    assert [each[2] for each in client.times] == [2**62, -1], f"other answers: {client.times}"
    assert 0 < client.times[0][0] <= client.times[1][0], f"a time that goes back: {client.times}"


@NT4.must("Publish Request Message; Topic Announcement Message")
async def a_publisher_is_answered(site: Site) -> None:
    """A publish is answered with the topic and the id of the request, also if the topic exists already."""
    name = site.name("told")
    for uid in (5, -6):
        client = await connected(site)
        await client.publish(name, uid, "int", {"unit": "m"})
        told = await within(site, client.text("announce", name=name))
        assert told.get("pubuid") == uid, f"it is told otherwise: {told}"
        assert told["type"] == "int", f"another type: {told}"


@NT4.must("Data Types")
async def every_type(site: Site) -> None:
    """Values of all types arrive as they were sent, with their times."""
    for uid, (kind, (number, value)) in enumerate(KINDS.items(), 1):
        name = site.name(f"type{uid}")
        publisher, client = await publisher_of(site, name, kind, uid), await connected(site)
        await client.subscribe(name)
        await publisher.put(uid, T, value, number)
        came = await within(site, client.value(name))
        assert (came.time_us, came.value) == (T, value), f"{kind}: {came}"


@NT4.must("Subscribe Message")
async def all_values(site: Site) -> None:
    """A subscriber of all values gets each, in their order."""
    name = site.name("all")
    publisher, client = await publisher_of(site, name), await connected(site)
    await client.subscribe(name, all=True)
    await within(site, client.text("announce", name=name))
    for number in range(50):
        await publisher.put(1, T + number, float(number), DOUBLE)
    came = [(await within(site, client.value(name))).value for _ in range(50)]
    assert came == [*map(float, range(50))], f"other values: {came}"


@NT4.must("Retained and Persistent Topics; cached")
async def the_last_value(site: Site) -> None:
    """A new subscriber gets the last value of a topic at once."""
    name = site.name("last")
    publisher = await publisher_of(site, name)
    await publisher.put(1, T, 1.5, DOUBLE)
    await publisher.put(1, T + 1, 2.5, DOUBLE)
    await within(site, publisher.time())
    client = await connected(site)
    await client.subscribe(name)
    assert (await within(site, client.value(name))).value == 2.5, "another value"


@NT4.must("Timestamps; Value messages")
async def an_older_value(site: Site) -> None:
    """A value that is older than the last one does not take its place."""
    name = site.name("older")
    publisher, other = await publisher_of(site, name), await publisher_of(site, name)
    await publisher.put(1, T + 10, 10.0, DOUBLE)
    await within(site, publisher.time())
    await other.put(1, T, 1.0, DOUBLE)
    await within(site, other.time())
    client = await connected(site)
    await client.subscribe(name)
    assert (await within(site, client.value(name))).value == 10.0, "the older one"


@NT4.must("Properties: cached")
async def not_cached(site: Site) -> None:
    """Of a topic that is not cached, a new subscriber gets no value."""
    name, mark = site.name("uncached"), site.name("uncachedmark")
    publisher = await publisher_of(site, name, cached=False)
    await publisher.publish(mark, 2, "int")
    await publisher.put(1, T, 1.5, DOUBLE)
    await publisher.put(2, T, 1, INT)
    await within(site, publisher.time())
    client = await connected(site)
    await client.subscribe(name, mark)
    await within(site, client.value(mark))
    early = [each for each in client.left() if isinstance(each, Value) and each.name == name]
    await within(site, client.time())
    late = [each for each in client.left() if isinstance(each, Value) and each.name == name]
    assert early + late == [], "there is one"


@NT4.must("Subscribe Message: prefix")
async def prefixes(site: Site) -> None:
    """A subscriber of a prefix learns of all topics that begin with it, also of later ones."""
    name = site.name("prefix")
    client = await connected(site)
    await publisher_of(site, f"{name}/a")
    await client.subscribe(name, prefix=True)
    await within(site, client.text("announce", name=f"{name}/a"))
    await publisher_of(site, f"{name}b")
    await within(site, client.text("announce", name=f"{name}b"))


@NT4.must("Subscribe Message: topicsonly")
async def topics_only(site: Site) -> None:
    """A subscriber of topics only learns of the topics and gets no values."""
    name = site.name("topics")
    publisher, client = await publisher_of(site, name), await connected(site)
    await client.subscribe(name, topicsonly=True)
    await within(site, client.text("announce", name=name))
    await publisher.put(1, T, 1.5, DOUBLE)
    await within(site, publisher.time())
    mark = site.name("topicsmark")
    other = await publisher_of(site, mark, "int")
    await client.subscribe(mark, subuid=2)
    await other.put(1, T, 1, INT)
    await within(site, client.value(mark))
    assert not [each for each in client.left() if isinstance(each, Value)], "there is a value"


@NT4.must("Unsubscribe Message")
async def unsubscribe(site: Site) -> None:
    """After an unsubscribe there are no values."""
    name, mark, later = site.name("over"), site.name("overmark"), site.name("overlater")
    publisher, client = await publisher_of(site, name), await connected(site)
    await publisher.publish(mark, 2, "int")
    await publisher.publish(later, 3, "int")
    await client.subscribe(name, mark)
    await within(site, client.text("announce", name=mark))
    await client.subscribe(mark, subuid=2)
    await client.unsubscribe(1)
    await client.subscribe(later, subuid=3)
    await within(site, client.text("announce", name=later))  # so it has read what was sent before
    client.left()
    await publisher.put(1, T, 1.5, DOUBLE)
    await publisher.put(2, T, 1, INT)
    await within(site, client.value(mark))
    assert not [each for each in client.left() if isinstance(each, Value)], "there is a value"


@NT4.must("Unpublish Message; Topic Removed Message")
async def a_topic_without_publishers(site: Site) -> None:
    """A topic whose last publisher has gone is taken back from its subscribers."""
    name = site.name("gone")
    publisher, client = await publisher_of(site, name), await connected(site)
    await client.subscribe(name)
    told = await within(site, client.text("announce", name=name))
    await publisher.close()
    gone = await within(site, client.text("unannounce", name=name))
    assert gone["id"] == told["id"], f"another id: {gone}"


@NT4.must("Properties: retained")
async def retained(site: Site) -> None:
    """A retained topic outlives its publishers."""
    name = site.name("retained")
    publisher = await publisher_of(site, name, retained=True)
    await publisher.put(1, T, 1.5, DOUBLE)
    await within(site, publisher.time())
    await publisher.close()
    client = await connected(site)
    await client.subscribe(name)
    assert (await within(site, client.value(name))).value == 1.5, "another value"
    await client.set_properties(name, retained=None)


@NT4.must("Set Properties Message; Properties Update Message")
async def properties(site: Site) -> None:
    """A change of properties reaches all who know the topic; null takes one away."""
    name = site.name("properties")
    publisher, client = await publisher_of(site, name, unit="m"), await connected(site)
    await client.subscribe(name)
    told = await within(site, client.text("announce", name=name))
    assert told["properties"].get("unit") == "m", f"the properties {told['properties']}"
    await publisher.set_properties(name, unit=None, more={"a": [1]})
    update = (await within(site, client.text("properties", name=name)))["update"]
    assert update == {"unit": None, "more": {"a": [1]}}, f"the update {update}"


@NT4.must("Publish Request Message: a topic has one type")
async def another_type(site: Site) -> None:
    """A publisher of another type gets the type of the topic, and its values are not delivered."""
    name = site.name("types")
    publisher, client = await publisher_of(site, name), await connected(site)
    await client.subscribe(name)
    await within(site, client.text("announce", name=name))
    other = await connected(site)
    await other.subscribe(name)
    await other.publish(name, 1, "string")
    told = await within(site, other.text("announce", name=name))
    assert told["type"] == "double", f"it is told {told}"
    await other.put(1, T, "no number", STRING)
    await within(site, other.time())
    await publisher.put(1, T + 1, 1.5, DOUBLE)
    assert (await within(site, client.value(name))).value == 1.5, "another value"


@NT4.must("Topic Names")
async def any_name(site: Site) -> None:
    """A topic may have any name, with spaces, percent signs and emoji too."""
    for each in (" a b ", "/%20/%d.x", "//", "\U0001f916é"):
        name = site.name("name") + each
        publisher, client = await publisher_of(site, name), await connected(site)
        await client.subscribe(name)
        await publisher.put(1, T, 1.5, DOUBLE)
        assert (await within(site, client.value(name))).value == 1.5, "another value"


@NT4.must("Text Data Frames")
async def what_is_no_message(site: Site) -> None:
    """Text that is not a message is passed over, and what comes with it and after it counts."""
    client, publisher = await connected(site), await connected(site)
    name = site.name("bad")
    await client.subscribe(name, prefix=True)
    for bad in ("no JSON", "{}", "[1]", '[{"method":"nothing","params":{}}]', '[{"method":1}]'):
        await publisher.send_raw(bad)
    await publisher.send(0, nt4.text("publish", name=f"{name}1", pubuid=1, type="int", properties={}))
    await publisher.send(nt4.text("publish", name=f"{name}2", pubuid=2, type="int", properties={}))
    for number in (1, 2):
        await within(site, client.text("announce", name=f"{name}{number}"))


@NT4.must("Binary Data Frames")
async def an_unknown_publisher(site: Site) -> None:
    """A value of an unknown publisher is passed over."""
    name = site.name("unknown")
    client = await publisher_of(site, name)
    await client.put(99, T, 1.5, DOUBLE)
    await within(site, client.time())


@NT4.may("Server-Published Meta Topics")
async def clients_are_listed(site: Site) -> None:
    """The topic `$clients` lists the clients, and this one among them."""
    client = await connected(site)
    await client.subscribe("$clients")
    async with asyncio.timeout(site.wait_s):
        while site.name("client").encode() not in bytes((await client.value("$clients")).value):
            pass


@NT4.must("Client Names")
async def one_name_twice(site: Site) -> None:
    """A second client with a name does not end the first."""
    name = site.name("twice")
    first = await publisher_of(site, name)
    await connected(site)
    await first.put(1, T, 1.5, DOUBLE)
    await within(site, first.time())
