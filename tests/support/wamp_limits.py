"""The limits of WAMP, each provoked by a client: with which settings, and what the client sees."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from websockets.exceptions import ConnectionClosed

from halley.protocols.wamp import errors
from support import wamp
from support.frames import last_frame, shake, text
from support.wire import request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from support.server import Served
    from support.wamp import WampClient

    Case = tuple[dict[str, Any], Callable[[Served], Awaitable[None]]]


async def _closed(client: WampClient) -> int:
    """Return the code with which the connection is closed, and skip all messages before it."""
    with suppress(ConnectionClosed):
        while True:
            await client.receive()
    return client.socket.close_code or 0


async def _refused(client: WampClient, *messages: list[Any]) -> None:
    """Send requests, of which the last must be refused."""
    for number, message in enumerate(messages, 1):
        await client.send([message[0], number, *message[1:]])
    answers = [await client.receive() for _ in messages]
    assert [each[0] == wamp.ERROR for each in answers] == [*[False] * (len(messages) - 1), True]
    assert answers[-1][4] == errors.UNAVAILABLE


async def hello(served: Served) -> None:
    """A client that sends nothing is aborted."""
    client = await wamp.connect(served.url)
    abort = await client.receive()
    assert (abort[0], abort[2]) == (wamp.ABORT, errors.PROTOCOL_VIOLATION)
    assert await _closed(client) == 1002


async def message(served: Served) -> None:
    """A message that is too large ends the connection."""
    client = await wamp.join(served.url)
    await client.send_raw(b" " * 1_025)
    assert await _closed(client) == 1009


async def pings(served: Served) -> None:
    """A client that sends too many pings is disconnected."""
    client = await wamp.join(served.url)
    for _ in range(3):
        await client.socket.ping()
    assert await _closed(client) == 1008


async def pong(served: Served) -> None:
    """A client that does not respond to a ping is disconnected."""
    wire = await served.wire()
    await shake(wire)
    assert (await last_frame(wire)).code == 1011


async def kill(served: Served) -> None:
    """The connection of a client that does not complete the close is cut."""
    wire = await served.wire()
    await shake(wire, text(b"[]"))
    assert (await last_frame(wire)).code == 1002
    assert await wire.is_closed()


async def polls(served: Served) -> None:
    """A second connection by long-polling is refused."""
    body = json.dumps({"protocols": ["wamp.2.json"]}).encode()
    opened = request("POST", "/ws/open", body, content_type="application/json")
    for status in (200, 503):
        assert (await (await served.wire()).request(opened)).status == status


async def waiting_calls(served: Served) -> None:
    """While one call waits for a page of the history, the next one is refused."""
    client = await wamp.join(served.url, "wamp.2.json.batched")
    await client.send([wamp.CALL, 1, {}, "wamp.subscription.lookup", ["a"]])
    (number,) = (await client.receive())[3]
    procedure = "wamp.subscription.get_events"
    await client.send(*([wamp.CALL, request_id, {}, procedure, [number]] for request_id in (2, 3)))
    answers = {(answer := await client.receive())[0]: answer for _ in range(2)}
    assert answers[wamp.ERROR][4] == errors.UNAVAILABLE
    assert answers[wamp.RESULT][1] == 2


async def wildcard_forms(served: Served) -> None:
    """A wildcard whose empty components are in other places than those of the existing one is refused."""
    client = await wamp.join(served.url)
    wildcard = {"match": "wildcard"}
    await _refused(client, *([wamp.SUBSCRIBE, wildcard, topic] for topic in ("a.", "b.", ".a")))


async def testaments(served: Served) -> None:
    """The second testament is refused."""
    client = await wamp.join(served.url)
    testament = [wamp.CALL, {}, "wamp.session.add_testament", ["a", [], {}]]
    await _refused(client, testament, testament)


CASES: dict[str, Case] = {
    "hello_s": ({"hello_s": 0.1}, hello),
    "message_bytes": ({"message_bytes": 1_024}, message),
    "pings_per_s": ({"pings_per_s": 1}, pings),
    "pong_s": ({"ping_s": 0.1, "pong_s": 0.1}, pong),
    "kill_s": ({"kill_s": 0.1}, kill),
    "polls": ({"polls": 1}, polls),
    "waiting_calls": ({"waiting_calls": 1}, waiting_calls),
    "wildcard_forms": ({"wildcard_forms": 1}, wildcard_forms),
    "testaments": ({"testaments": 1}, testaments),
}
