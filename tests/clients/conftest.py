"""Fixtures of the tests with foreign clients: a server that can restart, any number of clients, a bad network."""

from __future__ import annotations

import functools
import http.server
import threading
from contextlib import AsyncExitStack
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from clients.curl import CurlClient
from clients.java import JavaClient
from clients.kinds import HERE, KINDS, require
from clients.node import NodeClient
from clients.page import PageClient
from clients.peers import PeerServer
from clients.python import AiocometdClient
from clients.server_thread import ServerThread
from support.programs import CHROMIUM_FLAGS, require_browser
from support.tcp_proxy import TcpProxy, relaying

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from clients.foreign import Foreign
    from playwright.async_api import Browser, BrowserContext


class Site:
    """A server and its clients, all closed when the test ends, the clients first."""

    def __init__(self, pages_port: int, chromium: Chromium, folder: Path, stack: AsyncExitStack) -> None:
        self.pages_port = pages_port
        self._chromium = chromium
        self._folder = folder
        self._stack = stack
        self._numbers = count(1)
        self._profile: BrowserContext | None = None

    async def serve(self, **changed: Any) -> ServerThread:
        """A running server with the settings `brisk(**changed)`."""
        server = ServerThread(**changed)
        await server.start()
        self._stack.push_async_callback(server.stop)
        return server

    async def serve_by(self, name: str, **changed: Any) -> ServerThread | PeerServer:
        """A running server, by name: "halley" with the settings `brisk(**changed)`, or one of `PEERS`."""
        if name == "halley":
            return await self.serve(**changed)
        server = await PeerServer.start(name)
        self._stack.push_async_callback(server.stop)
        return server

    async def relay(self, server: ServerThread | PeerServer) -> TcpProxy:
        """A bad network in front of a server."""
        return await self._stack.enter_async_context(relaying(server.port))

    async def start(self, kind: str, port: int, **more: Any) -> Foreign:
        """A client of that kind, not opened yet, for the server at that port. Pages are tabs of one browser profile.

        `more` are options of the drivers in JavaScript and Java.
        """
        wanted = KINDS[kind]
        require(wanted.runtime)
        url = f"http://127.0.0.1:{port}/bayeux"
        client: Foreign
        match wanted.runtime:
            case "python":
                client = AiocometdClient(url, wanted.without)
            case "curl":
                client = CurlClient(url, self._folder / f"jar-{next(self._numbers)}")
            case "node":
                client = await NodeClient.start(url, wanted, **more)
            case "java":
                client = await JavaClient.start(url, wanted, **more)
            case "browser":
                origin = (
                    f"http://127.0.0.1:{port}" if wanted.origin == "same" else f"http://localhost:{self.pages_port}"
                )
                client = await PageClient.start(await self.profile(), origin, url, wanted, **more)
        self._stack.push_async_callback(client.close)
        return client

    async def join(self, kind: str, port: int, **more: Any) -> Foreign:
        """A client as from `start` that has opened its session with the server at that port."""
        client = await self.start(kind, port, **more)
        assert (await client.open()).successful
        return client

    def closes(self, client: Any) -> None:
        """Close this client too when the test ends."""
        self._stack.push_async_callback(client.close)

    async def profile(self) -> BrowserContext:
        """The browser profile of this test."""
        if self._profile is None:
            require("browser")
            self._profile = await (await self._chromium.browser()).new_context()
            self._stack.push_async_callback(self._profile.close)
        return self._profile


class Chromium:
    """Debian's Chromium, started by the first test that needs it."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._browser: Browser | None = None

    async def browser(self) -> Browser:
        """The running browser."""
        if self._browser is None:
            from playwright.async_api import async_playwright

            playwright = await self._stack.enter_async_context(async_playwright())
            self._browser = await playwright.chromium.launch(executable_path=require_browser(), args=CHROMIUM_FLAGS)
            self._stack.push_async_callback(self._browser.close)
        return self._browser


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Chromium]:
    """One browser for all tests, because it takes a second to start; each test has a profile of its own."""
    async with AsyncExitStack() as stack:
        yield Chromium(stack)


@pytest.fixture(scope="session")
def pages_port() -> Iterator[int]:
    """The port that serves the clients' pages and scripts, from another origin than the server's.

    Playwright could make up such pages without a server, but once it intercepts requests it answers preflights itself.
    """
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_QuietFiles, directory=HERE))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


class _QuietFiles(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest_asyncio.fixture(loop_scope="session")
async def site(pages_port: int, chromium: Chromium, tmp_path: Path) -> AsyncIterator[Site]:
    """A place for one server and its clients."""
    async with AsyncExitStack() as stack:
        yield Site(pages_port, chromium, tmp_path, stack)
