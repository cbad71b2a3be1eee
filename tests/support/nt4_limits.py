"""The limits of NetworkTables, each provoked by a client: with which settings, and what the client sees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import ANY

from support.frames import BINARY, CLOSE, PING, last_frame, opening, sent, text
from support.nt4 import ARRAY, BOOLEAN, RAW, Text, Value
from support.tables import CLOSE as TOLD_TO_CLOSE
from support.tables import NEW

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from support.nt4 import NtClient
    from support.nt4_doors import Doors
    from support.server import Served

    EngineCase = tuple[dict[str, Any], Callable[[NtClient, Served], Awaitable[None]]]
    Case = tuple[dict[str, Any], Callable[[Doors], Awaitable[None]]]


async def name(doors: Doors) -> None:
    """A client whose name is too long is refused."""
    answer = await (await doors.wire()).request(opening("/nt/ninechars", NEW))
    assert (answer.status, answer.text) == (414, "the name in the path is too long")


async def message(doors: Doors) -> None:
    """A message that is too large ends the connection."""
    wire = await doors.shaken()
    await wire.send(sent(BINARY, b" " * 1_025))
    assert (await last_frame(wire)).code == 1009
    await wire.close()


async def pings(doors: Doors) -> None:
    """A client that sends too many pings is disconnected."""
    wire = await doors.shaken()
    await wire.send(sent(PING) * 3)
    farewell = await last_frame(wire)
    assert farewell.code == 1008
    await wire.send(sent(CLOSE, farewell.data))


async def pong(doors: Doors) -> None:
    """A client that does not respond to pings is disconnected."""
    wire = await doors.shaken()
    farewell = await last_frame(wire)
    assert (farewell.code, farewell.reason) == (1001, "connection timed out")
    await wire.send(sent(CLOSE, farewell.data))


async def kill(doors: Doors) -> None:
    """The connection of a client that does not complete the close is cut."""
    wire = await doors.shaken()
    await wire.send(text(TOLD_TO_CLOSE))
    assert (await last_frame(wire)).code == 1008
    assert await wire.is_closed()


CASES: dict[str, Case] = {
    "name_bytes": ({"name_bytes": 8}, name),
    "message_bytes": ({"message_bytes": 1_024}, message),
    "pings_per_s": ({"pings_per_s": 1}, pings),
    "pong_s": ({"ping_s": 0.05, "pong_s": 0.1}, pong),
    "kill_s": ({"kill_s": 0.1}, kill),
}
"""Limits of the transport, provoked on engines that only echo and accept any message."""


async def topics(client: NtClient, _: Served) -> None:
    """A topic over the limit is not announced."""
    await client.publish("/one", 1)
    await client.publish("/two", 2)
    assert await client.quiet() == [Text("announce", ANY)]


async def publishers(client: NtClient, served: Served) -> None:
    """A topic is not announced to a client that has the maximum of publishers."""
    await topics(client, served)


async def properties(client: NtClient, _: Served) -> None:
    """Properties that are too large are not set, and the topic stays as it is."""
    await client.publish("/one", 1)
    await client.set_properties("/one", text="a" * 64)
    await client.set_properties("/one", text="a")
    assert (await client.text("properties"))["update"] == {"text": "a"}


async def values(client: NtClient, _: Served) -> None:
    """A client that is too fast loses values, but not its connection."""
    await client.publish("/one", 1)
    await client.subscribe("/other")
    await client.put(1, 1, 1.0)
    await client.put(1, 2, 2.0)
    assert await client.time()


async def elements(client: NtClient, _: Served) -> None:
    """An array that is too long is dropped, and its publisher stays connected."""
    await client.publish("/one", 1, "boolean[]")
    await client.put(1, 1, [True] * 65_536, ARRAY + BOOLEAN)
    await client.subscribe("/one")
    assert [each for each in await client.quiet() if isinstance(each, Value)] == []


async def last(client: NtClient, _: Served) -> None:
    """A topic whose value is over the memory limit keeps no value."""
    await client.publish("/one", 1, "raw")
    await client.put(1, 1, b"a" * 1_024, RAW)
    await client.subscribe("/one")
    assert [each for each in await client.quiet() if isinstance(each, Value)] == []


async def control(client: NtClient, served: Served) -> None:
    """A client that does not read its messages is disconnected, and the others are not."""
    deaf = await served.wire(port=served.nt4_port, receive_buffer_bytes=4_096)
    assert (await deaf.request(opening("/nt/deaf", NEW))).status == 101
    await deaf.send(text(b'[{"method":"subscribe","params":{"topics":["/one"],"subuid":1}}]'))
    await client.publish("/one", 1)
    while not served.house.broker.closed["slow_consumer"]:
        await client.set_properties("/one", text="a" * 60_000)
        assert (await client.text("properties"))["update"]
    deaf.reset()


ENGINE_CASES: dict[str, EngineCase] = {
    "topics": ({"topics": 1}, topics),
    "publishers": ({"publishers": 1}, publishers),
    "properties_bytes": ({"properties_bytes": 64}, properties),
    "values_per_s": ({"values_per_s": 0.001, "value_burst": 1}, values),
    "elements": ({"elements": 65_535}, elements),
    "last_bytes": ({"last_bytes": 1_024}, last),
    "control_bytes": ({"control_bytes": 65_536, "properties_bytes": 100_000}, control),
}
"""Limits of the engines, provoked by a client of NetworkTables."""
