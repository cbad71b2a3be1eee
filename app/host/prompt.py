"""uvicorn's server, made prompt: it begins to shut down on request, and ends when its last connection is closed.

uvicorn polls instead: ten times a second whether to shut down, and ten times a second whether all connections are
closed. Here an idle server does nothing at all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import uvicorn

if TYPE_CHECKING:
    import socket

_log = logging.getLogger("uvicorn.error")


class _Members(set[Any]):
    """A set that calls `emptied` when its last member is removed with `discard`."""

    def __init__(self, emptied: Callable[[], None]) -> None:
        super().__init__()
        self._emptied = emptied

    def discard(self, member: Any) -> None:
        super().discard(member)
        if not self:
            self._emptied()


class PromptServer(uvicorn.Server):
    """A server that `serve` runs and `leave` ends.

    uvicorn's polling also serves a Date header, a limit of requests and a callback; Halley uses none of them.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._news = asyncio.Event()
        self.server_state.connections = _Members(self._news.set)
        self.server_state.tasks = _Members(self._news.set)

    def leave(self, *, is_forced: bool = False) -> None:
        """Begin to shut down; if `is_forced`, stop waiting for requests. Call it from the event loop."""
        self.should_exit = True
        self.force_exit = self.force_exit or is_forced
        self._news.set()

    async def main_loop(self) -> None:
        """Wait until the server is to shut down."""
        self.server_state.default_headers = self.config.encoded_headers
        await self._until(lambda: self.should_exit)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, wait for running requests until the grace period ends, and shut down the application."""
        await self._stop_accepting()
        for bound in sockets or ():
            bound.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                await self._until(lambda: self.force_exit or self._is_empty())
        except TimeoutError:
            _log.error("%d running requests are cancelled: the grace period has ended", len(self.server_state.tasks))
            for task in list(self.server_state.tasks):
                task.cancel()
        if not self.force_exit:
            await self.lifespan.shutdown()

    async def _stop_accepting(self) -> None:
        """Close the listeners. A connection that was just accepted is in `connections` when this returns.

        asyncio needs two turns to make one: the first makes the transport, which fails if the listener is closed by
        then, the second the connection. A connection made later would not be closed when the server shuts down.
        """
        loop = asyncio.get_running_loop()
        for listener in self.servers:
            for bound in listener.sockets:
                with suppress(NotImplementedError):  # Windows' loop has no readers
                    loop.remove_reader(bound.fileno())
        await asyncio.sleep(0)
        for listener in self.servers:
            listener.close()
        await asyncio.sleep(0)

    def _is_empty(self) -> bool:
        return not (self.server_state.connections or self.server_state.tasks)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._news.clear()
            await self._news.wait()
