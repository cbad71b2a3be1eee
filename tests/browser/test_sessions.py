"""The view Sessions in Chromium: the connected sessions, their queues, and the latest changes."""

from __future__ import annotations

import re
import signal
from contextlib import suppress

import httpx
import pytest
from browser.conftest import SPEAKING_NT4
from support import nt4, wamp
from support.messages import HANDSHAKE, connect, subscribe

with suppress(ImportError):  # then the fixture `chromium` skips, or fails
    from playwright.async_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

STILL = "[ticks]\nevery_s = 0\n"
"""The server publishes no ticks, so that a test can publish its own."""
PATIENT = "[bayeux]\nmax_interval_s = 60\n"
IMPATIENT = "[bayeux]\nhold_s = 1\nmax_interval_s = 3\n"
CLOSED = """
[[access]]
role = "*"
verb = "*"
pattern = "/open/**"
"""

NOBODY = "\u2013"
SESSION, PROTOCOL, WHO, ROLE, ADDRESS, AGE, QUEUE, HEARS = range(8)


async def open_sessions(profile, server):
    """Open the view in a new tab, and wait until it is connected."""
    page = await profile.open(f"{server.url}/#sessions")
    await expect(page.locator("#state")).to_have_text("Connected")
    return page


def rows(page):
    """The rows of the table, from top to bottom."""
    return page.locator("#sessions tbody tr")


def row_of(page, text):
    """The rows that contain a text."""
    return rows(page).filter(has_text=text)


def cell(row, column):
    return row.locator("th, td").nth(column)


def changes(page):
    """The latest changes, newest first."""
    return page.get_by_role("list", name="Latest changes").get_by_role("listitem")


def told(number, **changed):
    """One session of a tick that a test publishes."""
    return {
        "session": f"{number:016x}",
        "protocol": "bayeux",
        "authid": f"user-{number}",
        "role": "member",
        "address": "10.0.0.1",
        "age_s": float(number),
        "queued": 0,
        "queued_bytes": 0,
        "subscribed": 0,
        "subscriptions": [],
    } | changed


async def tell(server, *sessions, others=0):
    """Publish a tick once the page is subscribed."""
    await server.until_metric("halley_subscriptions", 4.0)
    data = {"time": "2026-01-01T00:00:00.000Z", "sessions": list(sessions), "others": others}
    await server.post({"channel": "/halley/queues", "data": data})


class Sleeper:
    """A Bayeux session that subscribes and then does not poll any more."""

    def __init__(self, server):
        self._url = server.bayeux
        self._cookies = httpx.Cookies()
        self._id = ""

    async def begin(self, *channels):
        self._id = (await self._post(HANDSHAKE))["clientId"]
        for message in (connect(self._id), subscribe(self._id, *channels)):
            await self._post(message)

    async def leave(self):
        await self._post({"channel": "/meta/disconnect", "clientId": self._id})

    async def _post(self, message):
        """Send a message; returns the reply."""
        async with httpx.AsyncClient(cookies=self._cookies, verify=False) as client:
            reply = (await client.post(self._url, json=[message])).json()[0]
            self._cookies = client.cookies
        assert reply["successful"], reply
        return reply


@pytest.mark.parametrize("server", [SPEAKING_NT4], indirect=True)
async def test_sessions_of_all_protocols_come_and_go(profile, server):
    """Each session is shown with its protocol, user and subscriptions; when it ends, the reason is in the changes."""
    page = await open_sessions(profile, server)
    await expect(rows(page)).to_have_count(1)
    await expect(rows(page)).to_contain_text("Bayeux")
    async with (
        await wamp.join(server.url) as router,
        await nt4.connect(server.url, "robot 7") as robot,
        httpx.AsyncClient() as reader,
        reader.stream("GET", f"{server.url}/events/orders"),
    ):
        await router.subscribe("com.myapp.orders")
        await robot.subscribe("/arm", subuid=1, prefix=True)
        await expect(rows(page)).to_have_count(4)
        await expect(cell(row_of(page, "SSE"), HEARS)).to_have_text("/orders")
        await expect(cell(row_of(page, "WAMP"), HEARS)).to_have_text("/com/myapp/orders")
        await expect(cell(row_of(page, "WAMP"), ROLE)).to_have_text("anonymous")
        await expect(cell(row_of(page, "NT4"), WHO)).to_have_text("robot 7")
        await expect(cell(row_of(page, "NT4"), HEARS)).to_have_text("/arm*")
        await expect(cell(row_of(page, "NT4"), ADDRESS)).to_have_text("127.0.0.1")
        await expect(cell(row_of(page, "NT4"), AGE)).to_have_text(re.compile(r"^\d+ s$"))
        await expect(changes(page).filter(has_text="/arm*")).to_contain_text("NT4")
        session = await cell(row_of(page, "NT4"), SESSION).get_attribute("title")
        assert re.fullmatch("[0-9a-f]{16}", session)
        await expect(cell(row_of(page, "NT4"), SESSION)).to_have_text(session[:8])
    await expect(rows(page)).to_have_count(1)
    for protocol in ("WAMP", "NT4", "SSE"):
        gone = changes(page).filter(has_text=protocol).filter(has_text="closed")
        await expect(gone).to_have_count(1)
        assert await gone.locator(".more").text_content()


@pytest.mark.parametrize("server", [PATIENT], indirect=True)
async def test_a_session_that_does_not_poll_has_a_growing_queue(profile, server):
    """Queued events are counted with their bytes, and the session with the longest queue is on top."""
    page = await open_sessions(profile, server)
    sleeper = Sleeper(server)
    await sleeper.begin("/slow/**")
    slow = row_of(page, "/slow/**")
    await expect(cell(slow, QUEUE)).to_have_text("0")
    await server.post(*({"channel": "/slow/a", "data": number} for number in range(3)))
    await expect(cell(slow, QUEUE)).to_have_text(re.compile(r"^3 · \d+ B$"))
    await server.post(*({"channel": "/slow/a", "data": "x" * 100} for _ in range(97)))
    await expect(cell(slow, QUEUE)).to_have_text(re.compile(r"^100 · \d+\.\d kB$"))
    await expect(cell(rows(page).first, HEARS)).to_have_text("/slow/**")
    part = "document.querySelector('#sessions tbody tr .bar').style.getPropertyValue('--part')"
    assert await page.evaluate(part) == "10%"
    await sleeper.leave()
    await expect(slow).to_have_count(0)
    await expect(changes(page).filter(has_text="closed")).to_contain_text("disconnected")


@pytest.mark.parametrize("server", [IMPATIENT], indirect=True)
async def test_why_a_session_ended_is_shown(profile, server):
    """A session that does not poll expires, and the view shows the reason, also on a page that is opened later."""
    page = await open_sessions(profile, server)
    await Sleeper(server).begin("/slow")
    await expect(row_of(page, "/slow")).to_have_count(1)
    await expect(row_of(page, "/slow")).to_have_count(0)
    closed = changes(page).filter(has_text="closed")
    await expect(closed).to_have_count(1)
    reason = await closed.locator(".more").text_content()
    assert reason not in {"", "disconnected"}
    later = await open_sessions(profile, server)
    await expect(changes(later).filter(has_text="closed")).to_contain_text(reason)


@pytest.mark.parametrize("server", [STILL], indirect=True)
async def test_the_table_is_sorted_by_any_column_and_filtered(profile, server):
    """Also by keyboard: a second press reverses the order; filters select by text and protocol."""
    page = await open_sessions(profile, server)
    await tell(
        server,
        told(1, authid="ada", queued=5, queued_bytes=500),
        told(2, authid="bob", protocol="wamp", subscribed=12, subscriptions=[f"/x/{n}" for n in range(10)]),
        told(10, authid=None, protocol="nt4", role="nt4", queued=70),
    )
    await expect(rows(page)).to_have_count(3)
    who = page.locator("#sessions tbody .who")
    assert await who.all_text_contents() == [NOBODY, "ada", "bob"]
    await expect(cell(row_of(page, "bob"), HEARS)).to_have_text("/x/0, /x/1, /x/2, and 9 more")
    await page.get_by_role("button", name="Age").press("Enter")
    assert await who.all_text_contents() == [NOBODY, "bob", "ada"]
    await page.keyboard.press("Enter")
    assert await who.all_text_contents() == ["ada", "bob", NOBODY]
    await expect(page.get_by_role("columnheader", name="Age")).to_have_attribute("aria-sort", "ascending")
    await page.get_by_role("button", name="Protocol").press("Space")
    assert await page.locator("#sessions tbody .badge").all_text_contents() == ["Bayeux", "NT4", "WAMP"]
    field = page.get_by_label("Filter sessions by id, user, role, address or subscription")
    for text, count in (("BOB", 1), ("/x/9", 1), ("10.0.0", 3), ("00000000000a", 1)):
        await field.fill(text)
        await expect(rows(page)).to_have_count(count)
    await field.fill("")
    await page.get_by_label("Protocol", exact=True).select_option("WAMP")
    assert await who.all_text_contents() == ["bob"]
    await expect(page.locator("#sessions-counts")).to_have_text("1 of 3 sessions")
    await field.fill("ada")
    await expect(page.get_by_text("No session matches the filter.")).to_be_visible()
    await tell(server, told(1), others=1_200)
    await expect(
        page.get_by_text("None of the 1 sessions listed matches; 1,200 others are not listed.")
    ).to_be_visible()


@pytest.mark.parametrize("server", [CLOSED], indirect=True)
async def test_who_may_not_see_is_told_so(profile, server):
    """Without the right to see sessions the view names the right that is missing, and shows no sessions."""
    profile.expected = "403"
    page = await open_sessions(profile, server)
    notice = page.locator("#sessions .notice")
    await expect(notice).to_have_text("Sign in with a token that may subscribe to /halley/** to see the sessions.")
    past = page.locator("#sessions-past")
    await expect(past).to_have_text("Sign in with a token that may subscribe to /halley/** to see the latest changes.")
    await expect(rows(page)).to_have_count(0)
    await expect(page.get_by_text("Nothing to show.")).to_be_visible()


async def test_after_a_restart_it_is_live_again(profile, server):
    """After a restart the old sessions disappear, and the new ones are shown, without a reload."""
    profile.expected = "net::ERR_"
    page = await open_sessions(profile, server)
    await Sleeper(server).begin("/before")
    await expect(row_of(page, "/before")).to_have_count(1)
    await server.stop(signal.SIGKILL)
    await expect(page.locator("#state")).to_have_text("Reconnecting")
    await server.start()
    await Sleeper(server).begin("/after")
    await expect(row_of(page, "/after")).to_have_count(1)
    await expect(row_of(page, "/before")).to_have_count(0)


@pytest.mark.parametrize("server", [STILL + "[limits]\ndata_bytes = 200_000\n"], indirect=True)
async def test_500_sessions_keep_their_rows(profile, server):
    """A tick updates rows and does not recreate them; missing sessions' rows are removed; the page does not scroll."""
    page = await open_sessions(profile, server)
    await tell(server, *(told(number) for number in range(500)), others=20)
    await expect(rows(page)).to_have_count(500)
    counts = page.locator("#sessions-counts")
    await expect(counts).to_have_text("520 sessions, of which the 500 with the longest queues are listed")
    await page.evaluate("for (const row of document.querySelectorAll('#sessions tbody tr')) row.isKept = true")
    await page.locator("#sessions .scroll").first.evaluate("(region) => region.scrollTo(0, 4_000)")
    await tell(server, *(told(number, queued=number) for number in range(1, 500)), told(501))
    await expect(cell(row_of(page, "user-499"), QUEUE)).to_contain_text("499 ·")
    kept = "[...document.querySelectorAll('#sessions tbody tr')].filter((row) => row.isKept).length"
    assert await page.evaluate(kept) == 499
    assert await page.locator("#sessions .scroll").first.evaluate("(region) => region.scrollTop") == 4_000
    assert await page.locator("#sessions tbody .who").first.text_content() == "user-499"


@pytest.mark.parametrize("server", [STILL], indirect=True)
async def test_the_latest_200_are_kept_and_markup_is_text(profile, server):
    """The latest 200 changes are shown, newest first; markup in names is text."""
    page = await open_sessions(profile, server)
    await server.until_metric("halley_subscriptions", 4.0)
    opened = {"event": "opened", "protocol": "wamp", "authid": "<b>x</b>", "role": "user", "address": "::1"}
    messages = [{"channel": "/halley/sessions", "data": opened | {"session": f"{n:016x}"}} for n in range(250)]
    await server.post(*messages)
    await expect(changes(page)).to_have_count(200)
    await expect(changes(page).first).to_contain_text("<b>x</b> as user from ::1")
    await expect(changes(page).first.locator("code")).to_have_attribute("title", f"{249:016x}")


@pytest.mark.parametrize("server", [STILL], indirect=True)
async def test_it_fits_a_phone(profile, server):
    """At 360 pixels the page does not scroll sideways, and every column is visible."""
    page = await open_sessions(profile, server)
    subscriptions = [f"/{'long' * 20}/{n}" for n in range(10)]
    await tell(
        server, told(1, authid="w" * 100, queued=999, queued_bytes=9**9, subscribed=10, subscriptions=subscriptions)
    )
    await expect(rows(page)).to_have_count(1)
    for width in (360, 640, 960, 1280):
        await page.set_viewport_size({"width": width, "height": 740})
        assert await page.evaluate("document.scrollingElement.scrollWidth") <= width
    await page.set_viewport_size({"width": 360, "height": 740})
    outside = """() => [...document.querySelectorAll("#sessions :is(th, td, button, input, select)")]
        .filter((box) => !box.checkVisibility() || box.getBoundingClientRect().right > innerWidth)
        .map((box) => box.outerHTML)"""
    assert await page.evaluate(outside) == []
