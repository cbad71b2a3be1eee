"""NetworkTables' values over the wire: which are sent, as which bytes, which are kept, and which are invalid."""

from __future__ import annotations

import asyncio

import pytest
from support.nt4 import ARRAY, BOOLEAN, DOUBLE, FLOAT, INT, RAW, STRING, Value
from support.nt4_malformed import BAD_TEXTS, BAD_VALUES
from support.nt4_room import opened
from support.wire import DEADLINE_S

GOLDEN = {
    "boolean": (BOOLEAN, True, "0600c3"),
    "int": (INT, 7, "060207"),
    "float": (FLOAT, 2.5, "0603ca40200000"),
    "double": (DOUBLE, 2.5, "0601cb4004000000000000"),
    "a double sent as an int": (DOUBLE, 5, "0601cb4014000000000000"),
    "string": (STRING, "hello", "0604a568656c6c6f"),
    "raw": (RAW, b"hello", "0605c40568656c6c6f"),
    "boolean[]": (ARRAY + BOOLEAN, [True, False, True], "061093c3c2c3"),
    "int[]": (ARRAY + INT, [1, 2, 4], "061293010204"),
    "double[]": (ARRAY + DOUBLE, [1], "061191cb3ff0000000000000"),
}
"""Behind the topic's id: the time 6, the type's number, the value."""


@pytest.fixture
async def room():
    async with opened() as room:
        yield room


@pytest.mark.parametrize("name", GOLDEN)
async def test_bytes(name, room):
    """ND9, NA22, NA23: a subscriber gets these bytes; ints and 32-bit floats are converted to the topic's type."""
    number, value, expected = GOLDEN[name]
    hearer, publisher = await room.two()
    await hearer.subscribe("/x")
    await publisher.publish("/x", 1, "double" if name.startswith("a double") else name)
    topic_id = (await hearer.text("announce", name="/x"))["id"]
    await publisher.put(1, 6, value, number)
    await hearer.value("/x")
    assert topic_id < 128
    assert hearer.frames[-1].hex() == f"94{topic_id:02x}{expected}"


async def test_a_default_gives_way(room):
    """ND5, NA41: a value of another client replaces a default, even if its time is before the server's time began."""
    one, other = await room.two()
    for client in (one, other):
        await client.publish("/x", 1)
    await one.put(1, 0, 1.0)
    await one.quiet()
    await other.put(1, -10, 2.0)
    await other.quiet()
    await one.put(1, 0, 3.0)
    await one.quiet()
    late = await room.enter("late")
    await late.subscribe("/x")
    assert await late.value("/x") == Value("/x", -10, DOUBLE, 2.0)


@pytest.mark.parametrize("first", ["dashboard", "coprocessor"])
async def test_whoever_comes_first(first, room):
    """ND13: the user's value stays, whether it arrives before or after another client's default."""
    clients = {"dashboard": await room.enter("dashboard"), "coprocessor": await room.enter("coprocessor")}
    said = {"dashboard": (1_000_000, 2.0), "coprocessor": (0, 1.0)}
    for name in (first, *(clients.keys() - {first})):
        await clients[name].publish("/speed", 1)
        await clients[name].put(1, *said[name])
        await clients[name].quiet()
    late = await room.enter("late")
    await late.subscribe("/speed")
    assert (await late.value("/speed")).value == 2.0


async def test_a_shorter_period(room):
    """ND6: the same subuid with a shorter period takes effect immediately, not after the longer period."""
    hearer, publisher = await room.two()
    await hearer.subscribe("/x", periodic=30.0, all=True)
    await publisher.publish("/x", 1)
    for number in range(3):
        await publisher.put(1, number + 1, float(number))
    await publisher.quiet()
    await hearer.subscribe("/x", periodic=0.01, all=True)
    async with asyncio.timeout(DEADLINE_S):
        while (await hearer.value("/x")).value != 2.0:  # values before it
            pass
        await publisher.put(1, 9, 9.0)
        while (await hearer.value("/x")).value != 9.0:
            pass


@pytest.mark.parametrize("how", ["unsubscribe", "replace", "topicsonly"])
async def test_no_longer(how, room):
    """ND16, NF7, NA54: a client that no longer subscribes gets no more values from that moment on."""
    hearer, publisher = await room.two()
    await hearer.heed_marks()
    await hearer.subscribe("/x", all=True)
    await publisher.publish("/x", 1)
    await publisher.put(1, 1, 1.0)
    await hearer.value("/x")
    if how == "unsubscribe":
        await hearer.unsubscribe(1)
    elif how == "replace":
        await hearer.subscribe("/y", all=True)
    else:
        await hearer.subscribe("/x", all=True, topicsonly=True)
    await hearer.quiet()
    await publisher.put(1, 2, 2.0)
    assert await hearer.marked(await publisher.mark()) == []
    await hearer.subscribe("/x", all=True)
    assert await hearer.value("/x") == Value("/x", 2, DOUBLE, 2.0)


async def test_of_another_type(room):
    """ND16, S31, NA32: the value is not delivered and not kept, and its sender stays connected."""
    hearer, publisher = await room.two()
    await hearer.heed_marks()
    await hearer.subscribe("/x")
    await publisher.publish("/x", 1)
    await publisher.put(1, 1, 1.0)
    await hearer.value("/x")
    await hearer.quiet()
    other = await room.enter("other")
    await other.publish("/x", 1, "string")
    await other.put(1, 2, "text", STRING)
    await other.put(1, 3, 3.0)
    await other.put(77, 4, 4.0)
    assert await hearer.marked(await other.mark()) == []
    late = await room.enter("late")
    await late.subscribe("/x")
    assert await late.value("/x") == Value("/x", 1, DOUBLE, 1.0)


@pytest.mark.parametrize("name", BAD_TEXTS)
async def test_a_malformed_text(name, room):
    """ND8, NA14 to NA20: a malformed text changes nothing, and all clients stay connected."""
    hearer, publisher = await room.two()
    await hearer.subscribe("", prefix=True)
    await publisher.publish("/x", 1)
    await publisher.text("announce", name="/x")
    await hearer.text("announce", name="/x")
    await publisher.send_raw(BAD_TEXTS[name])
    assert await publisher.quiet() == []
    assert await hearer.quiet() == []
    await publisher.put(1, 7, 1.5)
    assert await hearer.value("/x") == Value("/x", 7, DOUBLE, 1.5)


@pytest.mark.parametrize("name", [*BAD_VALUES, "an array that claims four billion"])
async def test_a_malformed_value(name, room):
    """ND8, ND14, NA24, S29, S31: values before it count; its sender is disconnected with the reason, others are not."""
    data = BAD_VALUES.get(name, b"\xdd\xff\xff\xff\xff\x01\x07\x01\x01")
    hearer, publisher = await room.two()
    other = await room.enter("other")
    await hearer.subscribe("/x")
    for client in (publisher, other):
        await client.publish("/x", 1)
        await client.text("announce", name="/x")
    await publisher.send_raw(bytes.fromhex("94010701cb3ff8000000000000") + data)
    assert await hearer.value("/x") == Value("/x", 7, DOUBLE, 1.5)
    code, reason = await publisher.closed()
    assert code == 1001
    assert reason.startswith("binary decode error")
    await other.put(1, 8, 2.5)
    assert await hearer.value("/x") == Value("/x", 8, DOUBLE, 2.5)
