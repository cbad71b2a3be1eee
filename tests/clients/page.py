"""Clients in a page of a real browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clients.foreign import Foreign

if TYPE_CHECKING:
    from clients.kinds import Kind
    from playwright.async_api import BrowserContext, Page


class PageClient(Foreign):
    """A client in its own tab; create it with `start`."""

    def __init__(self, page: Page, options: dict[str, Any]) -> None:
        super().__init__("a page in Chromium")
        self.page = page
        self._options = options
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    @classmethod
    async def start(cls, context: BrowserContext, origin: str, url: str, kind: Kind, **more: Any) -> PageClient:
        """Load the page of that kind from that origin and create its client for the server at `url`, not opened yet.

        `more` are options of its driver.
        """
        page = await context.new_page()
        client = cls(page, {"url": url, "without": kind.without, "extensions": kind.extensions, **more})
        await page.expose_function("observe", lambda seen: client.note(seen))  # noqa: PLW0108 - tests may replace it
        await page.goto(f"{origin}/pages/{kind.library}.html")
        await client._begin()
        return client

    async def restart(self) -> None:
        """Reload the page, which creates a new client, not opened yet."""
        await self.page.reload()
        await self._begin()

    async def _begin(self) -> None:
        await self.page.evaluate("(options) => begin(options)", self._options)

    async def call(self, command: str, *arguments: Any) -> Any:
        return await self.page.evaluate("([command, args]) => commands[command](...args)", [command, arguments])

    async def close(self) -> None:
        await self.page.close()
