"""Other Bayeux servers, to see that a test of foreign clients asks of Halley what their own servers do."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from bench import servers
from clients.foreign import DEADLINE_S
from support.programs import unavailable

from halley.processes import child_process, free_port, module_environment

if TYPE_CHECKING:
    from collections.abc import Callable

PEERS: dict[str, Callable[[], servers.Server]] = {"faye": servers.faye, "cometd-java": servers.cometd_java}


class PeerServer:
    """A server as `tests/bench` starts it; create it with `start`."""

    def __init__(self, port: int, stack: AsyncExitStack) -> None:
        self.port = port
        self._stack = stack

    @classmethod
    async def start(cls, name: str) -> PeerServer:
        """Start one of `PEERS` on a free port, and wait until it listens; the test is skipped without it."""
        try:
            server = await asyncio.to_thread(PEERS[name])
        except servers.Missing as missing:
            unavailable(f"{name}: {missing}")
        port = free_port()
        stack = AsyncExitStack()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="halley-test-")))
        server.prepare(port, folder)
        words = [word.replace("{port}", str(port)) for word in server.command]
        await stack.enter_async_context(child_process(words, environment=module_environment(), end_within_s=0))
        async with asyncio.timeout(DEADLINE_S):
            while not await _listens(port):
                await asyncio.sleep(0.05)
        return cls(port, stack)

    async def stop(self) -> None:
        """Kill it."""
        await self._stack.aclose()


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
