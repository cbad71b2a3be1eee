"""Fixtures of the browser tests: Debian's Chromium, a profile that records errors, and a server that can be restarted.

With `TESTS_NO_SKIP=1` a missing Chromium is a failure; otherwise the tests are skipped.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest_asyncio
from support.process import launched
from support.programs import CHROMIUM_FLAGS, require_browser
from support.wire import DEADLINE_S

try:
    from playwright.async_api import async_playwright, expect
except ImportError:
    async_playwright = None

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest
    from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page
    from support.process import Process


SPEAKING_NT4 = "[nt4]\nenabled = true\nport = 0\npong_s = 60\n"
"""A parameter of `server`: the configuration of one that also serves NetworkTables.

It is patient, because a busy machine may stop a test and its client for longer than a second.
"""


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    """Debian's Chromium, shared by all tests, because it takes a second to start."""
    program = require_browser()
    expect.set_options(timeout=DEADLINE_S * 1000)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=CHROMIUM_FLAGS)
        yield browser
        await browser.close()


class RestartableServer:
    """A `halley serve` process, which keeps its port when it is started again.

    `configuration` is the content of its configuration file; without one if it is empty.
    """

    def __init__(self, folder: Path, configuration: str = "") -> None:
        self._folder = folder
        # One client for all requests, because it takes 25 ms to make; each request has a connection of its own.
        self._http = httpx.AsyncClient(limits=httpx.Limits(max_keepalive_connections=0), verify=False)
        self._options: tuple[str, ...] = ()
        if configuration:
            (folder / "halley.toml").write_text(configuration)
            self._options = ("--config", "halley.toml")
        self._port = 0
        self._process: Process | None = None
        self._life = AsyncExitStack()

    @property
    def url(self) -> str:
        """The server's URL."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        """The server's port."""
        return self._port

    @property
    def bayeux(self) -> str:
        """The URL of the server's Bayeux endpoint."""
        return f"{self.url}/bayeux"

    async def start(self) -> None:
        """Start the server, and wait until it reports that it listens."""
        ports = ("--port", str(self._port), "--operations-port", "0")
        self._process = await self._life.enter_async_context(launched(*ports, *self._options, cwd=self._folder))
        self._port = self._process.port

    async def stop(self, by: signal.Signals = signal.SIGTERM) -> None:
        """End the server with a signal, and wait until the process has ended."""
        assert self._process is not None
        self._process.send_signal(by)
        await self._process.exit_code()
        await self._life.aclose()

    async def reload(self, configuration: str) -> None:
        """Have the server read another configuration, and wait until it has."""
        assert self._process is not None
        (self._folder / "halley.toml").write_text(configuration)
        self._process.send_signal(signal.SIGHUP)
        await self._process.until_logged('"reloaded"')

    async def close(self) -> None:
        """End the process if it is still running."""
        await self._life.aclose()
        await self._http.aclose()

    async def until_metric(self, name: str, value: float) -> None:
        """Wait until a metric has a value."""
        assert self._process is not None
        url = f"http://127.0.0.1:{self._process.operations_port}/metrics"
        async with asyncio.timeout(DEADLINE_S):
            while f"\n{name} {value}\n" not in (await self._http.get(url)).text:
                await asyncio.sleep(0.05)

    async def post(self, *messages: dict[str, object]) -> None:
        """Publish messages from outside the browser, in one request."""
        response = await self._http.post(self.bayeux, json=messages)
        assert all(reply["successful"] for reply in response.json())


@pytest_asyncio.fixture(loop_scope="session")
async def server(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[RestartableServer]:
    """A separate running server for each test; the fixture's parameter, if any, is its configuration."""
    running = RestartableServer(tmp_path, getattr(request, "param", ""))
    await running.start()
    yield running
    await running.close()


async def keep(page: Page, name: str) -> None:
    """Write screenshots of a page as `NAME-light.png` and `NAME-dark.png`, for people to look at.

    By convention, one test of each view calls this once, with the view's name, when the view has content. The folder is
    the one that the environment variable `HALLEY_SCREENSHOTS` names; without it there are none.
    """
    if not (folder := os.environ.get("HALLEY_SCREENSHOTS")):
        return
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=scheme)
        await page.screenshot(path=Path(folder, f"{name}-{scheme}.png"))
    await page.emulate_media(color_scheme="null")


class Profile:
    """One browser profile, whose pages share cookies. Records the pages' errors and warnings, and loaded URLs."""

    def __init__(self, context: BrowserContext) -> None:
        self.context = context
        self.complaints: list[str] = []
        self.requested: list[str] = []
        self.expected = ""  # a part of complaints that are allowed
        context.on("console", self._console)
        context.on("weberror", lambda error: self.complaints.append(str(error.error)))
        context.on("request", lambda request: self.requested.append(request.url))

    async def open(self, url: str) -> Page:
        """Open a URL in a new tab."""
        page = await self.context.new_page()
        page.on("websocket", lambda socket: self.requested.append(socket.url.replace("ws", "http", 1)))
        await page.goto(url)
        return page

    async def poll(self) -> None:
        """Let pages have no WebSockets, as in a browser that has none."""
        await self.context.add_init_script("delete window.WebSocket")

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def unexpected(self) -> list[str]:
        """The complaints that do not contain `expected`; where requests may fail, WebSockets may."""
        sockets = "WebSocket connection to" if self.expected == "net::ERR_" else self.expected
        return [text for text in self.complaints if not self.expected or not (self.expected in text or sockets in text)]


@pytest_asyncio.fixture(loop_scope="session")
async def profile(chromium: Browser, server: RestartableServer) -> AsyncIterator[Profile]:
    """A new browser profile; an unexpected error, warning or violated policy in it fails the test.

    It requests `server` so that it is closed before the server is.
    """
    context = await chromium.new_context(viewport={"width": 1280, "height": 800})
    profile = Profile(context)
    yield profile
    await context.close()
    assert profile.unexpected() == []
