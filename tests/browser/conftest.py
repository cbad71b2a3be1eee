"""What the browser tests share: Debian's Chromium, a profile that notes every complaint, and a server to restart.

Set `TESTS_NO_SKIP=1` where nothing may be skipped: then a missing Chromium is a failure.
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


SPEAKING_NT4 = "[nt4]\nenabled = true\nport = 0\n"
"""A parameter of `server`: one that robots find too."""


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    """Debian's Chromium, one for all tests, because it takes a second to start."""
    program = require_browser()
    expect.set_options(timeout=DEADLINE_S * 1000)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=CHROMIUM_FLAGS)
        yield browser
        await browser.close()


class RestartableServer:
    """`halley serve` as a user starts it, on a port that it keeps when it is started again.

    `configuration` is the text of its configuration file, if it has one.
    """

    def __init__(self, folder: Path, configuration: str = "") -> None:
        self._folder = folder
        self._options: tuple[str, ...] = ()
        if configuration:
            (folder / "halley.toml").write_text(configuration)
            self._options = ("--config", "halley.toml")
        self._port = 0
        self._process: Process | None = None
        self._life = AsyncExitStack()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def bayeux(self) -> str:
        """Where it speaks Bayeux."""
        return f"{self.url}/bayeux"

    async def start(self) -> None:
        """Start it, and wait until it says that it listens."""
        ports = ("--port", str(self._port), "--operations-port", "0")
        self._process = await self._life.enter_async_context(launched(*ports, *self._options, cwd=self._folder))
        self._port = self._process.port

    async def stop(self, by: signal.Signals = signal.SIGTERM) -> None:
        """End it, and wait until it is gone."""
        assert self._process is not None
        self._process.send_signal(by)
        await self._process.exit_code()
        await self.close()

    async def close(self) -> None:
        """Let go of it, dead or alive."""
        await self._life.aclose()

    async def until_metric(self, name: str, value: float) -> None:
        """Wait until a metric has a value."""
        assert self._process is not None
        url = f"http://127.0.0.1:{self._process.operations_port}/metrics"
        async with asyncio.timeout(DEADLINE_S), httpx.AsyncClient() as client:
            while f"\n{name} {value}\n" not in (await client.get(url)).text:
                await asyncio.sleep(0.05)

    async def post(self, *messages: dict[str, object]) -> None:
        """Publish from elsewhere, by one request."""
        async with httpx.AsyncClient() as client:
            response = await client.post(self.bayeux, json=messages)
        assert all(reply["successful"] for reply in response.json())


@pytest_asyncio.fixture(loop_scope="session")
async def server(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[RestartableServer]:
    """A running server of its own for each test, with the configuration that is its parameter, if it has one."""
    running = RestartableServer(tmp_path, getattr(request, "param", ""))
    await running.start()
    yield running
    await running.close()


async def keep(page: Page, name: str) -> None:
    """Write screenshots of a page as `NAME-light.png` and `NAME-dark.png`, for people to look at.

    Convention: one test of each view calls this once, when the view shows something, with the view's name. They go to
    the folder that the environment variable `HALLEY_SCREENSHOTS` names, else to `.screenshots/` of the repository.
    """
    folder = Path(os.environ.get("HALLEY_SCREENSHOTS") or Path(__file__).parents[2] / ".screenshots")
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=scheme)
        await page.screenshot(path=folder / f"{name}-{scheme}.png")
    await page.emulate_media(color_scheme="null")


class Profile:
    """One browser profile: its pages share cookies. Notes what its pages complain about and which URLs they load."""

    def __init__(self, context: BrowserContext) -> None:
        self.context = context
        self.complaints: list[str] = []
        self.requested: list[str] = []
        self.expected = ""  # what complaints may contain
        context.on("console", self._console)
        context.on("weberror", lambda error: self.complaints.append(str(error.error)))
        context.on("request", lambda request: self.requested.append(request.url))

    async def open(self, url: str) -> Page:
        """A new tab."""
        page = await self.context.new_page()
        await page.goto(url)
        return page

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def unexpected(self) -> list[str]:
        """The complaints that no test has announced."""
        return [text for text in self.complaints if not self.expected or self.expected not in text]


@pytest_asyncio.fixture(loop_scope="session")
async def profile(chromium: Browser, server: RestartableServer) -> AsyncIterator[Profile]:
    """A fresh browser profile, in which nothing may go wrong unnoticed: no error, no warning, no violated policy.

    It names the server so as to be closed before that goes.
    """
    context = await chromium.new_context(viewport={"width": 1280, "height": 800})
    profile = Profile(context)
    yield profile
    await context.close()
    assert profile.unexpected() == []
