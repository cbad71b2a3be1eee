"""A server shuts down promptly, even if clients connect at that moment."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings
from contextlib import suppress

import pytest
import uvicorn
import uvloop

from halley.host.listener import HttpServer, bind

DEADLINE_S = 5


async def _nothing(scope, receive, send):
    """Fail: no request is sent in these tests."""
    raise AssertionError(scope)


async def _connect_while_leaving(turns):
    listener = bind("127.0.0.1", 0, "--port")
    server = HttpServer(uvicorn.Config(_nothing, lifespan="off", log_config=None))
    running = asyncio.create_task(server.serve([listener]))
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(DEADLINE_S):
        while not server.started:
            await asyncio.sleep(0)
        with warnings.catch_warnings(record=True) as complaints, socket.socket() as client:
            warnings.simplefilter("always")
            client.setblocking(False)
            with suppress(BlockingIOError):  # on one machine the kernel connects immediately
                client.connect(listener.getsockname())
            for _ in range(turns):
                await asyncio.sleep(0)
            server.begin_shutdown()
            with suppress(ConnectionResetError):
                assert await loop.sock_recv(client, 1) == b""
            await running
            gc.collect()
    assert not complaints
    assert not server.server_state.connections


@pytest.mark.parametrize("new_loop", [asyncio.SelectorEventLoop, uvloop.new_event_loop])
@pytest.mark.parametrize("turns", range(6))
def test_who_connects_while_it_leaves_is_not_left_waiting(turns, new_loop):
    """E33: a connection that is accepted a few turns of the loop before the listener closes is closed too."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_connect_while_leaving(turns))
