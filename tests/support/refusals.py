"""What a refused request must look like: fixed text, safe headers, and nothing changed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from support.messages import publish
from support.wire import post

if TYPE_CHECKING:
    from support.server import Served
    from support.wire import Response

CANARY = "c4n4ry"
"""Hidden in what tests send, where it can be: it must not come back."""

PUBLISH = post(json.dumps(publish("/canary", CANARY)).encode())


async def refusal(served: Served, data: bytes, status: int, text: str, *, closes: bool = False) -> Response:
    """Send what must be refused, and look at all that every refusal promises; returns the answer.

    A refusal either keeps the connection usable or, with `closes`, says that it closes it and does. In either case
    others are served on.
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
