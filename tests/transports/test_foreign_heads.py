"""Heads that proxies and servers read differently, under uvicorn, as far as it passes them on (S4, S7, S19)."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
import uvicorn
from support.messages import publish
from support.server import brisk
from support.wire import DEADLINE_S, Wire, chunked, head, post, until

from halley.embed import Halley

BODY = json.dumps(publish("/a", 1)).encode()
POST, HOST, LENGTH = "POST /bayeux HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(BODY)}"
TWO_ORIGINS = ("Origin: http://127.0.0.1", "Origin: http://evil.example")


@asynccontextmanager
async def connected(http):
    """Serve within the block by uvicorn, with one of its two parsers; gives a connection."""
    halley = Halley(brisk())
    server = uvicorn.Server(uvicorn.Config(halley.app, port=0, http=http, log_config=None))
    running = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    wire = await Wire.open(server.servers[0].sockets[0].getsockname()[1])
    try:
        yield wire
        await wire.close()
        assert halley.server.broker.published == 0
    finally:
        server.should_exit = True
        async with asyncio.timeout(DEADLINE_S):
            await running


REFUSED = {
    "two-origins": (head(POST, HOST, *TWO_ORIGINS, LENGTH, body=BODY), 403, "origin not allowed"),
    "two-for-a-page": (head("GET / HTTP/1.1", HOST, *TWO_ORIGINS), 403, "origin not allowed"),
    "chunks-in-1.0": (chunked(BODY).replace(b"HTTP/1.1", b"HTTP/1.0"), 400, "transfer encoding not supported"),
    "absolute-target": (
        post(BODY).replace(b" /bayeux", b" http://evil.example/bayeux"),
        400,
        "this Host is not served here",
    ),
}


@pytest.mark.parametrize(
    ("http", "refused"),
    [
        (http, each)
        for http in ("h11", "httptools")
        for each in REFUSED
        if (http, each) != ("httptools", "absolute-target")
    ],
)
async def test_what_uvicorn_passes_on_gets_the_same_answer(http, refused):
    """The answers are those of Halley's own host; uvicorn with httptools drops the host of an absolute target."""
    data, status, text = REFUSED[refused]
    async with connected(http) as wire:
        answer = await wire.request(data)
        assert (answer.status, answer.text) == (status, text)
