"""The console for everybody: axe finds nothing in any view, and a keyboard reader gets where they want."""

from __future__ import annotations

import json
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from browser.conftest import SPEAKING_NT4
from browser.test_console import events, open_console, state
from browser.test_history import go
from browser.test_identity import ADMIN
from browser.test_pipeline_view import NUMBERS, alert, expect_heard, jobs, rollup, told
from support import nt4
from support.programs import unavailable

with suppress(ImportError):  # then the fixture `chromium` skips, or fails
    from playwright.async_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

AXE = Path(__file__).parents[1] / "clients" / "node_modules" / "axe-core" / "axe.min.js"
VIEWS = ("Overview", "Channels", "Sessions", "History", "NetworkTables", "Pipeline")
RULES = """async () => {
    const rules = axe.getRules().filter(({ tags }) => !tags.includes("wcag2aaa"));
    const enabled = rules.map(({ ruleId }) => [ruleId, { enabled: true }]);
    const { violations } = await axe.run(document, { rules: Object.fromEntries(enabled), resultTypes: ["violations"] });
    return violations.flatMap(({ id, nodes }) => nodes.map(({ html }) => [id, html]));
}"""
"""All of axe's rules up to level AA, also those that are off unless a page asks for them."""
CLUSTER = {
    "time": "2026-01-01T00:00:00Z",
    "node": "a",
    "space": "halley",
    "settled_by": "keeper",
    "nodes": [{"node": "a", "behind": 0}, {"node": "b", "behind": 3}],
    "nats": {"server": "127.0.0.1:4222", "version": "2.10.0", "away_s": 0},
    "differs": [{"what": "bayeux.paths", "nodes": [["a"], ["b"]]}],
}
PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1280, "height": 800}


async def complaints(page):
    """What axe finds in a page, light on a phone and dark on a desktop; `test_page.py` has contrasts of all four."""
    if not AXE.exists():
        unavailable("axe-core is missing: npm ci --prefix tests/clients")
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(AXE.read_text())
    found = []
    for scheme, size in (("light", PHONE), ("dark", DESKTOP)):
        await page.set_viewport_size(size)
        await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        found += [(scheme, size["width"], *each) for each in await page.evaluate(RULES)]
    return found


async def fill(server):
    """Publish something for every view."""
    await server.post(
        *({"channel": f"/a/b{number}", "data": {"text": "x" * 200, "n": number}} for number in range(5)),
        *(alert("a", kind, second) for second, kind in enumerate(("spike", "silence", "recovered"))),
        rollup("a", 0, 5, numbers=NUMBERS),
        rollup("b", 0, 5, protocol="wamp"),
    )


@pytest.mark.nightly
@pytest.mark.parametrize("server", [SPEAKING_NT4], indirect=True)
async def test_axe_finds_nothing_in_an_empty_console(profile, server):
    page = await open_console(profile, server)
    for view in VIEWS:
        await go(page, view)
        assert await complaints(page) == [], view
    await page.get_by_role("button", name="Token", exact=True).click()
    assert await complaints(page) == [], "the dialog"


@pytest.mark.parametrize("server", [SPEAKING_NT4], indirect=True)
async def test_axe_finds_nothing_where_there_is_much_to_see(profile, server):
    """With rows of each kind, opened and selected ones, marks of a replay, and errors at fields."""
    async with await nt4.connect(server.url, "robot") as robot:
        page = await open_console(profile, server)
        for number, (type_name, wire_type, value) in enumerate(
            [
                ("double", nt4.DOUBLE, 2.5),
                ("boolean", nt4.BOOLEAN, True),
                ("raw", nt4.RAW, b"12345678"),
                ("int", nt4.INT, 3),
            ]
        ):
            await robot.publish(f"/robot/{type_name}", number, type_name)
            await robot.put(number, 1, value, wire_type)
        await fill(server)
        await events(page).first.locator("summary").click()
        await page.get_by_label("Data, as JSON").fill("{")
        assert await complaints(page) == [], "Overview"
        await go(page, "Channels")
        await page.locator("#channels tbody tr").nth(1).click()
        await page.locator("#channels-filter").fill("a")
        assert await complaints(page) == [], "Channels"
        await page.locator("#channels-filter").fill("nowhere")
        assert await complaints(page) == [], "Channels, filtered"
        await go(page, "Sessions")
        await expect(page.locator("#sessions tbody tr")).to_have_count(2)
        assert await complaints(page) == [], "Sessions"
        await go(page, "NetworkTables")
        await page.get_by_label("Value of /robot/int", exact=True).fill("1.5")
        await page.get_by_label("Value of /robot/int", exact=True).press("Enter")
        await expect(page.get_by_text("Cannot set this value")).to_be_visible()
        await expect(page.get_by_label("Value of /robot/raw", exact=True)).to_have_text("8 bytes")
        assert await complaints(page) == [], "NetworkTables"
        await go(page, "Pipeline")
        both = told(("ingest", 1, 0, 0.0, 1.0, {}), ("rollup", 1, 900, 40.0, 1.0, {"late": 2}))
        await expect_heard(server, both, jobs(page))
        assert await complaints(page) == [], "Pipeline"
        await go(page, "History")
        await page.locator("#history summary").first.click()
        assert await complaints(page) == [], "History"
        await page.get_by_role("button", name="Replay from here").nth(2).click()
        await expect(page.get_by_text("The replay of /** is complete")).to_be_visible()
        assert await complaints(page) == [], "Overview, with a replay"


@pytest.mark.nightly
async def test_axe_finds_nothing_after_the_server_is_lost(profile, server):
    """Every view then shows that its figures are old."""
    profile.expected = "net::ERR_"
    page = await open_console(profile, server)
    await fill(server)
    for view, figures in {
        "Channels": page.locator('#channels th[title="/a/b0"]'),
        "Sessions": page.locator("#sessions tbody tr"),
        "Overview": page.locator("#numbers dd").first.filter(has_text="1"),
    }.items():
        await go(page, view)
        await expect(figures).to_be_visible()
    await page.evaluate("location.hash = '#cluster'")
    nodes = page.get_by_role("table", name="Nodes").locator("tbody tr")
    await expect_heard(server, {"channel": "/halley/cluster", "data": CLUSTER}, nodes)
    await expect(nodes).to_have_count(2)
    await server.stop(signal.SIGKILL)
    await expect(state(page)).to_have_text("Reconnecting")
    await expect(page.locator("#cluster.is-away")).to_be_visible()
    assert await complaints(page) == [], "Cluster"
    for view in VIEWS:
        await go(page, view)
        if view == "Overview":
            await expect(page.get_by_text("no data from the server").first).to_be_visible()
        assert await complaints(page) == [], view


@pytest.mark.nightly
@pytest.mark.parametrize("server", [ADMIN], indirect=True)
async def test_axe_finds_nothing_in_what_is_refused(profile, server):
    profile.expected = "status of 40"
    page = await profile.open(server.url)
    await expect(page.get_by_text("not allowed")).to_be_visible()
    for view in VIEWS:
        await go(page, view)
        await expect(page.locator(".view:visible").get_by_text("Sign in").first).to_be_visible()
        assert await complaints(page) == [], view
    await page.get_by_role("button", name="Token", exact=True).click()
    await page.get_by_label("Token", exact=True).fill("wrong")
    await page.get_by_role("button", name="Use", exact=True).click()
    await expect(page.locator("#token-trouble")).not_to_be_empty()
    assert await complaints(page) == [], "the dialog"


async def test_axe_finds_nothing_in_the_jsonp_page(profile, server):
    page = await profile.open(f"{server.url}/jsonp.html")
    await page.get_by_role("button", name="Connect", exact=True).click()
    await expect(state(page)).to_have_text("Connected")
    assert await complaints(page) == []


async def test_the_first_tab_stop_skips_the_header(profile, server):
    """It moves the focus to the view, which stays the current one; the next stop is in it."""
    page = await open_console(profile, server)
    await page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to the view")
    await expect(skip).to_be_focused()
    await expect(skip).to_be_in_viewport(ratio=1)
    await go(page, "History")
    await skip.focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("main")).to_be_focused()
    assert await page.evaluate("location.hash") == "#history"
    await page.keyboard.press("Tab")
    await expect(page.get_by_label("Read the history of")).to_be_focused()
    await page.get_by_label("Read the history of").blur()
    await expect(skip).not_to_be_in_viewport()


async def test_the_focus_does_not_stay_on_the_link_of_another_view(profile, server):
    page = await open_console(profile, server)
    await go(page, "Channels")
    await expect(page.get_by_role("link", name="Channels")).to_be_focused()
    await page.evaluate(f"location.hash = {json.dumps('#history?channel=/a')}")
    await expect(page.get_by_role("link", name="History", exact=True).first).to_be_focused()
