"""What a refused request must get: a fixed text, safe headers, and no change of state."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from support.messages import publish
from support.wire import post

if TYPE_CHECKING:
    from support.server import Served
    from support.wire import Response

CANARY = "c4n4ry"
"""A string in what tests send, which must not be in the response."""

PUBLISH = post(json.dumps(publish("/canary", CANARY)).encode())


async def refusal(served: Served, data: bytes, status: int, text: str, *, closes: bool = False) -> Response:
    """Send a request that must be refused, and check everything that each refusal promises; return the response.

    A refusal either keeps the connection usable or, with `closes`, announces that it closes it, and closes it. In
    either case the server still serves others.
    """
    before = served.books()
    wire = await served.wire()
    answer = await wire.request(data)
    assert (answer.status, answer.text) == (status, text)
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert "server" not in answer.headers
    assert CANARY.encode() not in answer.head + answer.body
    assert served.books() == before
    if closes:
        assert answer.headers["connection"] == "close"
        assert await wire.is_closed()
        assert served.books() == before
        wire = await served.wire()
    else:
        assert "connection" not in answer.headers
    assert (await wire.request(PUBLISH)).messages == [{"channel": "/canary", "successful": True}]
    await wire.close()
    return answer
