"""A real server in its own thread, which a test can stop and start again on the same port.

It runs in a thread because the clients' own tasks outlive a restart, and because a client that blocks the test's loop
must not stop the server too. Tests may read its objects, and never change them.
"""

from __future__ import annotations

import asyncio
import mimetypes
import threading
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from clients.foreign import DEADLINE_S
from clients.kinds import HERE
from support.server import Served, brisk, serving

from halley.transports.exchange import Endpoint
from halley.transports.head import Headers
from halley.transports.routes import Route

if TYPE_CHECKING:
    from collections.abc import Callable

    from halley.embed import Halley
    from halley.server.composition import Server


class ServerThread:
    """A server with the settings `brisk(**changed)`."""

    def __init__(self, **changed: Any) -> None:
        self.settings = brisk(**changed)
        self._thread = threading.Thread()
        self._served = Future[Served]()
        self._leave: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    @property
    def port(self) -> int:
        """Its port, which stays the same when it is started again."""
        return self.settings.port

    @property
    def house(self) -> Server:
        """The server's objects, for reading."""
        return self._served.result().house

    async def start(self) -> None:
        """Start, and wait until it serves."""
        self._served = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        served = await asyncio.wait_for(asyncio.wrap_future(self._served), DEADLINE_S)
        self.settings = replace(self.settings, port=served.port)

    async def stop(self) -> None:
        """Stop as on SIGTERM: held polls are answered first."""
        assert self._leave is not None
        loop, event = self._leave
        loop.call_soon_threadsafe(event.set)
        await asyncio.to_thread(self._thread.join, DEADLINE_S)
        assert not self._thread.is_alive()

    def call(self, function: Callable[[], object]) -> None:
        """Have the server's loop call a function."""
        assert self._leave is not None
        self._leave[0].call_soon_threadsafe(function)

    async def _serve(self) -> None:
        leave = asyncio.Event()
        self._leave = (asyncio.get_running_loop(), leave)
        try:
            async with serving(self.settings, register=_mount_pages) as served:
                self._served.set_result(served)
                await leave.wait()
        except BaseException as error:
            if self._served.done():
                raise  # pytest reports what a thread raises
            self._served.set_exception(error)


class Files(Endpoint):
    """Serves the files of a folder."""

    def serve(self, exchange: Any, prepared: Any, body: bytes, head: Any) -> None:
        """Respond with a file."""
        file = HERE / head().path.lstrip("/")
        if file.is_file() and HERE in file.resolve().parents:
            kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
            exchange.respond(200, Headers((b"content-type", kind.encode())), file.read_bytes())
        else:
            exchange.respond(404, Headers())


def _mount_pages(halley: Halley) -> None:
    """Serve the clients' pages where Halley has its own, for clients of the same origin."""
    halley.server.routes._default = Route("", Files(), halley.server.guard)
