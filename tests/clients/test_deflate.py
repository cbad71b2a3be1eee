"""`ws`, the usual WebSocket library of Node.js, and compressed messages in both directions."""

from __future__ import annotations

import asyncio
import json

import pytest
from clients.kinds import HERE, require
from support.switchboard import speaking
from support.wire import DEADLINE_S

pytestmark = pytest.mark.node

NUMBERS = [{"x": number} for number in range(5_000)]
MESSAGES = [json.dumps(message) for message in ([1], ["é" * 500], NUMBERS, ["x" * 300])]


async def conversation(served, *messages):
    """Return what `drivers/deflate.mjs` reports."""
    require("node")
    program = await asyncio.create_subprocess_exec(
        "node",
        HERE / "drivers" / "deflate.mjs",
        f"ws://127.0.0.1:{served.port}/wamp",
        *messages,
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(DEADLINE_S):
        told, _ = await program.communicate()
    return json.loads(told)


@pytest.mark.parametrize("deflates", [True, False], ids=["compressed", "plain"])
async def test_messages_come_and_go(deflates):
    """RFC 7692: the library finds each compressed message of Halley's as it was, and Halley each of the library's."""
    async with speaking(permessage_deflate=deflates) as served:
        told = await conversation(served, *MESSAGES)
    assert told == {
        "extensions": "permessage-deflate" if deflates else "",
        "heard": [message for each in MESSAGES for message in (each, each)],
        "code": 1000,
    }
