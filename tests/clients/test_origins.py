"""Pages of other sites in a real browser (S19 to S21, A62): only those in the settings can use the server."""

from __future__ import annotations

import asyncio

import pytest
from clients.foreign import OK
from clients.kinds import Kind
from clients.page import PageClient

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.browser, pytest.mark.node]


LONG_POLLING = Kind("cometd", "browser", without=("websocket", "callback-polling"))


async def page(site, origin, port):
    """A cometd.js client in a page at that origin, for the server at that port."""
    return await PageClient.start(await site.profile(), origin, f"http://127.0.0.1:{port}/bayeux", LONG_POLLING)


async def test_a_listed_origin_may_use_long_polling_with_cookies(site):
    """S21, A62: Chromium accepts the preflight, credentials and replies."""
    origin = f"http://app.example:{site.pages_port}"
    server = await site.serve(cors={"origins": [origin]})
    client = await page(site, origin, server.port)
    assert await client.open() == OK
    assert await client.subscribe("/room") == OK
    assert await client.publish("/room", "from a listed origin") == OK
    await client.hears(("/room", "from a listed origin"))
    assert client.transport == "long-polling"


async def test_an_unlisted_origin_gets_nowhere_by_long_polling(site):
    """S19, S20: a page of an unlisted origin gets no reply, and no session is created."""
    server = await site.serve(cors={"origins": ["http://app.example"]})
    client = await page(site, f"http://evil.example:{site.pages_port}", server.port)
    opening = asyncio.create_task(client.call("open"))
    await client.until(lambda: any("CORS policy" in text for text in client.complaints))
    await client.until(lambda: any("Could not negotiate transport" in text for text in client.complaints))
    assert client.incoming == []
    assert not server.house.broker.sessions
    opening.cancel()


async def test_a_name_that_was_made_to_point_here_is_no_host_of_ours(site):
    """A request to a foreign name that resolves to this machine (DNS rebinding) is refused by its Host."""
    server = await site.serve()
    tab = await (await site.profile()).new_page()
    answer = await tab.goto(f"http://evil.example:{server.port}/bayeux")
    assert answer is not None
    assert answer.status == 400
    assert "<" not in await answer.text()
