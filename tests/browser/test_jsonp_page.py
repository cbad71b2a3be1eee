"""The JSONP page in Chromium: a Bayeux client that uses script elements only, served from another origin."""

from __future__ import annotations

import re
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from support.folder_server import files

with suppress(ImportError):  # then the fixture `chromium` skips, or fails
    from playwright.async_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

STATIC = Path(__file__).parents[2] / "static"


def address(base, server):
    """The URL of the page, with the server that it uses."""
    return f"{base}/jsonp.html?server={server.bayeux}"


async def connect(page):
    """Connect to the server in the page's form."""
    await page.get_by_role("button", name="Connect", exact=True).click()
    await expect(page.locator("#state")).to_have_text("Connected")


async def subscribe(page, pattern):
    await page.get_by_label("Channel or pattern").fill(pattern)
    await page.get_by_role("button", name="Subscribe", exact=True).click()
    await expect(page.get_by_role("button", name=f"Unsubscribe from {pattern}")).to_be_visible()


async def publish(page, channel, data):
    await page.get_by_label("Channel", exact=True).fill(channel)
    await page.get_by_label("Data: JSON, or text, which is sent as a string").fill(data)
    await page.get_by_role("button", name="Publish", exact=True).click()


def events(page):
    """The received events."""
    return page.get_by_role("list", name="Events").get_by_role("listitem")


def requests(page, channel):
    """The requests on a channel that got a response."""
    return page.locator("#requests li").filter(has=page.get_by_text(channel, exact=True))


async def go_through_it_all(page, server):
    """Handshake, subscribe, publish with reply, receive, unsubscribe, disconnect."""
    await connect(page)
    await expect(page.locator("#detail")).to_have_text(re.compile("^callback-polling, session [0-9a-f]{8}$"))
    await subscribe(page, "/demo/*")
    await subscribe(page, "/other")
    await publish(page, "/demo/hello", '{"text": "Hello"}')
    await expect(requests(page, "/demo/hello")).to_contain_text('"successful":true')
    await expect(events(page)).to_have_count(1)
    await expect(events(page)).to_contain_text('{"text":"Hello"}')
    await server.post({"channel": "/demo/elsewhere", "data": "from elsewhere"})
    await expect(events(page)).to_have_count(2)
    await page.get_by_role("button", name="Unsubscribe from /demo/*").click()
    await expect(requests(page, "/meta/unsubscribe")).to_contain_text('"successful":true')
    await publish(page, "/demo/hello", "unheard")
    await publish(page, "/other", "plain text")
    await expect(events(page)).to_have_count(3)
    await expect(events(page).first).to_contain_text('/other"plain text"')
    await page.get_by_role("button", name="Disconnect").click()
    await expect(page.locator("#state")).to_have_text("Disconnected")
    await expect(requests(page, "/meta/disconnect")).to_contain_text('"successful":true')


async def test_from_another_origin_it_goes_through_it_all(profile, server):
    """E8: the full cycle from another origin, where every request to the server is a script."""
    kinds = set()
    profile.context.on(
        "request", lambda request: kinds.add((request.url.startswith(server.bayeux), request.resource_type))
    )
    with files(STATIC) as origin:
        page = await profile.open(address(origin, server))
        await go_through_it_all(page, server)
        await page.goto("about:blank")
    assert {kind for is_bayeux, kind in kinds if is_bayeux} == {"script"}


@pytest.mark.parametrize("server", ["[bayeux]\ncallback_polling_without_referer = true\n"], indirect=True)
async def test_opened_as_a_file_it_goes_through_it_all(profile, server):
    """The same from file://, which has no origin and sends no Referer, with the setting for such pages."""
    await go_through_it_all(await profile.open(address(STATIC.as_uri(), server)), server)


async def test_opened_as_a_file_it_is_refused_without_the_setting(profile, server):
    """S46: a file sends what any page of the web can send: Sec-Fetch-Site, and no Referer."""
    profile.expected = "status of 403"
    page = await profile.open(address(STATIC.as_uri(), server))
    await page.get_by_role("button", name="Connect", exact=True).click()
    await expect(page.locator("#state")).to_have_text("Reconnecting")
    assert await page.locator("#requests li").count() == 0


async def test_served_by_halley_it_knows_its_server(profile, server):
    """Without `?server=` the page uses the server that served it, whose content security policy allows that."""
    page = await profile.open(server.url)
    await page.get_by_role("link", name="JSONP demo").click()
    await expect(page.get_by_label("Server", exact=True)).to_have_value(server.bayeux)
    await go_through_it_all(page, server)
    await page.get_by_role("link", name="Console").click()
    await expect(page.locator("#state")).to_have_text("Connected")


async def test_markup_in_events_is_shown_and_never_obeyed(profile, server):
    """S36: data that could end a script or create an element is shown as text."""
    markup = "</script><img src=x onerror='window.attacked = true'>\u2028<b>bold</b>"
    with files(STATIC) as origin:
        page = await profile.open(address(origin, server))
        await connect(page)
        await subscribe(page, "/a")
        await server.post({"channel": "/a", "data": markup})
        await expect(events(page)).to_contain_text("<img src=x onerror='window.attacked = true'>")
        assert await page.locator("main").locator("img, b").count() == 0
        assert await page.evaluate("window.attacked") is None
        await page.goto("about:blank")


async def test_refusals_are_shown_in_the_servers_words(profile, server):
    """A68: the form that sent the request shows the Bayeux error text."""
    page = await profile.open(address(server.url, server))
    await connect(page)
    await page.get_by_label("Channel or pattern").fill("/meta/connect")
    await page.get_by_role("button", name="Subscribe", exact=True).click()
    await expect(page.get_by_text("403:denied_by_security_policy:subscribe_denied", exact=True)).to_be_visible()
    await publish(page, "/a", f'"{"x" * 2000}"')
    await expect(page.get_by_text("too long for JSONP")).to_be_visible()


async def test_a_server_that_comes_back_is_found_again(profile, server):
    """B30: the page makes a new session after the server was killed and started again, and subscribes again."""
    profile.expected = "net::ERR_"
    page = await profile.open(address(server.url, server))
    await connect(page)
    await subscribe(page, "/a")
    await server.stop(signal.SIGKILL)
    await expect(page.locator("#state")).to_have_text("Reconnecting")
    await server.start()
    await expect(page.locator("#state")).to_have_text("Connected")
    await expect(requests(page, "/meta/subscribe")).to_have_count(2)
    await server.post({"channel": "/a", "data": "after the restart"})
    await expect(events(page)).to_contain_text("after the restart")


async def test_a_script_without_a_session_publishes_nothing(profile, server):
    """Any page can make a browser load a script; without a session such a publish is refused."""
    page = await profile.open(server.url)
    await expect(page.locator("#state")).to_have_text("Connected")
    forged = {"channel": "/a", "data": "forged"}
    replies = await page.evaluate(
        """async ([url, message]) => {
          const answer = new Promise((resolve) => (window.forged = resolve));
          const query = new URLSearchParams({ message: JSON.stringify(message), jsonp: "forged" });
          document.head.append(Object.assign(document.createElement("script"), { src: `${url}?${query}` }));
          return answer;
        }""",
        [server.bayeux, forged],
    )
    assert [(reply["channel"], reply["successful"]) for reply in replies] == [("/a", False)]
    await server.post({"channel": "/a", "data": "genuine"})
    rows = page.get_by_role("list", name="Events").get_by_role("listitem")
    await expect(rows).to_have_count(1)
    await expect(rows).to_contain_text("genuine")


async def test_it_fits_its_window(profile, server):
    """At widths of at least 360 pixels the page never scrolls sideways, however long channels and data are."""
    page = await profile.open(address(server.url, server))
    await connect(page)
    long = "/" + "long" * 50
    await subscribe(page, long)
    await publish(page, long, "w" * 300)
    await expect(events(page)).to_have_count(1)
    for width in (360, 400, 640, 960, 1280):
        await page.set_viewport_size({"width": width, "height": 740})
        assert await page.evaluate("document.scrollingElement.scrollWidth") <= width


async def test_the_list_keeps_the_newest_100(profile, server):
    """The page keeps the newest 100 events, and shows the number of older ones."""
    page = await profile.open(address(server.url, server))
    await connect(page)
    await subscribe(page, "/n")
    await server.post(*({"channel": "/n", "data": number} for number in range(130)))
    await expect(page.locator("#counts")).to_have_text("100 shown, 30 older")
    await expect(events(page)).to_have_count(100)
    await expect(events(page).first.locator("code")).to_have_text("129")
