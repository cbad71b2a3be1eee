"""Readers of server-sent events that no one here wrote, each with the callback or the loop that its page shows."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any, Self

from clients.kinds import HERE
from support.programs import require_module, require_program

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext

LISTEN = """(url) => {
    const source = new EventSource(url);
    source.onmessage = ({data}) => heard(data);
    source.onerror = () => source.readyState === 2 && heard({gone: "closed"});
}"""

NODE = (
    "eventsource-1",
    "eventsource-2",
    "eventsource-4",
    "undici",
    "launchdarkly-eventsource",
    "event-source-plus",
    "eventsource-client",
    "event-source-polyfill",
    "reconnecting-eventsource",
    "fetch-event-source",
)
PYTHON = {"httpx-sse": "httpx_sse", "sseclient": "sseclient", "requests-sse": "requests_sse"}
"""Each with the module that it is."""

HAND_ON_EACH_BLOCK = ("fetch-event-source", "httpx-sse", "sseclient")
"""Those that take a block without data for an event; the page of streams has a parameter for them."""


class StreamReader:
    """A reader that runs. `heard` is what its callback was called with: data, or an object if it has given up."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def by_program(cls, name: str, url: str, **variables: str) -> Self:
        """Read by a library for Node.js or Python."""
        if name in PYTHON:
            require_module(PYTHON[name], "pip install -r tests/clients/requirements.txt")
            command = [sys.executable, str(HERE / "drivers" / "streams.py")]
        else:
            command = [require_program("node"), str(HERE / "drivers" / "streams.mjs")]
        reader = cls()
        reader._process = await asyncio.create_subprocess_exec(
            *(*command, name, url),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=variables or None,
        )
        reader._reading = asyncio.create_task(reader._read())
        return reader

    @classmethod
    async def by_page(cls, context: BrowserContext, origin: str, url: str) -> Self:
        """Read by Chromium, in a page of another origin."""
        reader = cls()

        def heard(data: Any) -> None:
            reader.heard.append(data)

        page = await context.new_page()
        await page.expose_function("heard", heard)
        await page.goto(origin)
        await page.evaluate(LISTEN, url)
        return reader

    @property
    def data(self) -> list[Any]:
        """What was published, of each event that it was handed; anything else as it came."""
        return [json.loads(each)["data"] if each and isinstance(each, str) else each for each in self.heard]

    async def close(self) -> None:
        """End the program, if it is one."""
        if self._process is not None and self._reading is not None:
            if self._process.returncode is None:
                self._process.kill()
            await asyncio.gather(self._process.wait(), self._reading)

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.heard.append(json.loads(line))
