"""uvicorn's server, made prompt: it leaves when it is told to, and has left when its last connection has.

uvicorn looks at a clock instead: ten times a second whether to leave, a tenth of a second for connections to close, and
ten times a second whether they have. An idle server here does nothing at all.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import uvicorn

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

_log = logging.getLogger("uvicorn.error")


class _Members(set[Any]):
    """A set that tells when its last member has gone; members leave by `discard`."""

    def __init__(self, emptied: Callable[[], None]) -> None:
        super().__init__()
        self._emptied = emptied

    def discard(self, member: Any) -> None:
        super().discard(member)
        if not self:
            self._emptied()


class PromptServer(uvicorn.Server):
    """Served by `serve`, ended by `leave`. What uvicorn does on its ticks beside (a Date header, a limit of requests,
    a callback) Halley has not turned on.
    """  # noqa: D205 - two sentences that belong together

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._news = asyncio.Event()
        self.server_state.connections = _Members(self._news.set)
        self.server_state.tasks = _Members(self._news.set)

    def leave(self, *, is_forced: bool = False) -> None:
        """Begin to leave, or if `is_forced` leave without waiting for anyone any more. Belongs to the event loop."""
        self.should_exit = True
        self.force_exit = self.force_exit or is_forced
        self._news.set()

    async def main_loop(self) -> None:
        """Returns when it is time to leave."""
        self.server_state.default_headers = self.config.encoded_headers
        await self._until(lambda: self.should_exit)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nobody any more, let requests under way end within the grace, and close the application."""
        await self._stop_accepting()
        for bound in sockets or ():
            bound.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                await self._until(lambda: self.force_exit or self._is_empty())
        except TimeoutError:
            _log.error("%d requests under way are cut: their grace is over", len(self.server_state.tasks))
            for task in list(self.server_state.tasks):
                task.cancel()
        if not self.force_exit:
            await self.lifespan.shutdown()

    async def _stop_accepting(self) -> None:
        """Close the listeners. Whoever they have just accepted is among the connections when this returns.

        asyncio takes two turns for that, one to make the transport, which fails if the listener has closed meanwhile,
        and one to make the connection. Nobody would tell a connection that comes later that the server leaves.
        """
        loop = asyncio.get_running_loop()
        for listener in self.servers:
            for bound in listener.sockets:
                with suppress(NotImplementedError):  # Windows' loop accepts by another way
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
