"""A server with a listener for NetworkTables, and raw clients that are closed when the test ends."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from support import nt4
from support.server import brisk, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.nt4 import NtClient
    from support.server import Served


class Room:
    """A running server for NetworkTables; make it with `opened`."""

    def __init__(self, served: Served, stack: AsyncExitStack) -> None:
        self.served = served
        self.url = f"http://127.0.0.1:{served.nt4_port}"
        self._stack = stack

    async def enter(self, name: str = "test", *subprotocols: str) -> NtClient:
        """Return a client that has connected."""
        return await self._stack.enter_async_context(await nt4.connect(self.url, name, *subprotocols))

    async def two(self) -> tuple[NtClient, NtClient]:
        """Return two clients, one to subscribe and one to publish."""
        return await self.enter("hearer"), await self.enter("publisher")


@asynccontextmanager
async def opened(**changed: Any) -> AsyncIterator[Room]:
    """Serve within the block, with the settings `brisk(nt4=changed)`."""
    async with serving(brisk(nt4={"enabled": True, "port": 0, **changed})) as served, AsyncExitStack() as stack:
        yield Room(served, stack)
