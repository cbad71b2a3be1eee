"""The console behind the shipped nginx, in Chromium: pages by HTTP/2, events by a WebSocket or by polls."""

from __future__ import annotations

from contextlib import suppress

import pytest
from support.nginx import nginx

with suppress(ImportError):  # then the fixture `chromium` skips, or fails
    from playwright.async_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

BEHIND_NGINX = 'proxies = ["127.0.0.1"]\nopen = true\nbayeux.anonymous_publish = "on"\n[history]\nenabled = false\n'
PROTOCOLS = "() => [...new Set(performance.getEntries().map((each) => each.nextHopProtocol).filter(Boolean))]"


@pytest.mark.nightly
@pytest.mark.parametrize("server", [BEHIND_NGINX], indirect=True)
@pytest.mark.parametrize("transport", ["WebSocket", "long-polling"])
async def test_ten_tabs_are_connected_through_nginx(chromium, server, tmp_path, transport):
    """By HTTP/1.1 a browser has six connections to a host: the polls of six tabs would keep the others waiting."""
    async with nginx(tmp_path, server.port) as front:
        context = await chromium.new_context(ignore_https_errors=True)
        if transport != "WebSocket":
            await context.add_init_script("delete window.WebSocket")
        tabs = [await context.new_page() for _ in range(10)]
        for tab in tabs:
            await tab.goto(f"https://localhost:{front.https_port}/")
        for tab in tabs:
            await expect(tab.locator("#state")).to_have_text("Connected")
        await expect(tabs[0].locator("#detail")).to_contain_text(transport)
        await server.post({"channel": "/a", "data": "to all tabs"})
        for tab in tabs:
            await expect(tab.get_by_role("list", name="Events")).to_contain_text("to all tabs")
        assert await tabs[0].evaluate(PROTOCOLS) == ["h2"]
        await context.close()
