"""The view Cluster in Chromium: two nodes on a real NATS server."""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress

import pytest
import pytest_asyncio
from browser.conftest import keep
from browser.test_accessibility import complaints
from browser.test_console import open_console
from browser.test_history import go
from support.nats import SETTINGS, nats_servers, node

from halley import __version__

with suppress(ImportError):  # then the fixture `chromium` skips, or fails
    from playwright.async_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


class Node:
    """A node, as `profile` and `open_console` use a server; `second` starts another one."""

    def __init__(self, stack, folder, nats, url):
        self._stack, self._folder, self._nats = stack, folder, nats
        self.url = url

    async def second(self):
        (self._folder / "halley.toml").write_text(SETTINGS + '\n[bayeux]\npaths = ["/rt"]\n')
        await self._stack.enter_async_context(node(self._folder, self._nats, "two"))


@pytest_asyncio.fixture(loop_scope="session")
async def server(tmp_path):
    """The first node of a cluster, in place of the server alone."""
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(nats_servers(tmp_path))
        first = await stack.enter_async_context(node(tmp_path, nats, "one"))
        yield Node(stack, tmp_path, nats, f"http://127.0.0.1:{first.port}")


async def test_the_nodes_and_what_differs(profile, server):
    """A node that joins gets a row; what differs is named, at the node and above the table."""
    page = await open_console(profile, server)
    await go(page, "Cluster")
    rows = page.get_by_role("table", name="Nodes").locator("tbody tr")
    await expect(rows).to_have_count(1)
    await expect(rows).to_contain_text(f"one{__version__}")
    await expect(rows).to_contain_text("nothing")
    await expect(page.locator("#cluster dl")).to_contain_text("Spacehalley")
    await server.second()
    await expect(rows).to_have_count(2)
    await expect(rows.nth(1)).to_contain_text("bayeux.paths")
    await expect(page.locator("#cluster .notice")).to_have_text("The nodes differ in bayeux.paths (one, unlike two).")
    assert await complaints(page) == []
    await keep(page, "cluster")
