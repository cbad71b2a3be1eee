"""CometD's extensions `binary` and `reload` with Halley, in cometd.js, also in Chromium, and in its Java client."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from clients.foreign import OK
from clients.kinds import BINARY, KINDS, clients
from clients.publisher import publish
from support import wamp
from support.wamp import PUBLISH, PUBLISHED

pytestmark = pytest.mark.asyncio(loop_scope="session")

every_binary_client = clients(*BINARY)

LENGTHS = (0, 1, 2, 3, 4, 5, 999)
CHUNKS = [[(7 * at) % 256 for at in range(length)] for length in LENGTHS]


@every_binary_client
async def test_bytes_go_from_client_to_client(kind, site):
    """The subscriber has what the publisher sent, with its `last` and `meta`."""
    server = await site.serve()
    sender, hearer = [await site.join(kind, server.port) for _ in range(2)]
    assert await hearer.subscribe("/file") == OK
    for chunk in CHUNKS:
        assert (await sender.call("publishBytes", "/file", chunk))["successful"]
    assert (await sender.call("publishBytes", "/file", CHUNKS[-1], False, {"name": "f"}))["successful"]
    await hearer.hears(
        *(("/file", {"data": chunk, "last": True}) for chunk in CHUNKS),
        ("/file", {"data": CHUNKS[-1], "last": False, "meta": {"name": "f"}}),
    )


@every_binary_client
async def test_bytes_are_bytes_for_wamp_in_both_directions(kind, site):
    """With `bayeux.bytes` = "z85" the extension decodes WAMP's bytes, and WAMP has those of the extension."""
    server = await site.serve(bayeux={"bytes": "z85"})
    client = await site.join(kind, server.port)
    assert await client.subscribe("/file") == OK
    router = await wamp.join(f"http://127.0.0.1:{server.port}", "wamp.2.msgpack")
    await router.subscribe("file")
    for number, chunk in enumerate(CHUNKS, 1):
        await router.send([PUBLISH, number, {"acknowledge": True}, "file", [bytes(chunk)]])
        assert (await router.receive())[:2] == [PUBLISHED, number]
        assert (await client.call("publishBytes", "/file", chunk))["successful"]
        assert (await router.receive())[4:] == [[bytes(chunk)]]
    await client.hears(*(("/file", {"data": chunk, "last": True}) for chunk in CHUNKS for _ in range(2)))
    await router.close()


@clients(*(kind for kind in BINARY if "reload" in KINDS[kind].extensions))
async def test_a_page_that_is_loaded_again_keeps_its_session_and_misses_nothing(kind, site):
    """The extension goes on with the session of before; what was published meanwhile comes with the first connect."""
    server = await site.serve()
    client = await site.join(kind, server.port)
    assert await client.subscribe("/room") == OK
    count = itertools.count()
    sent = []

    async def say():
        sent.append(("/room", next(count)))
        await publish(server.port, sent[-1])

    await say()
    await client.hears(*sent)
    before = client.id
    for _ in range(3):
        await client.until(lambda: server.house.engine.sessions.holds == 1)
        await client.call("reload")
        await say()
        await say()
        await client.call("restart", {"subscriptions": ["/room"]})
        async with asyncio.timeout(5):  # the first connect of a page is answered soon, though the session is not new
            assert await client.open() == OK
        await say()
        await client.hears(*sent)
    assert (client.id, len(server.house.broker.sessions)) == (before, 1)
