"""Rules for every view of the console, with real content: names, contrast, keyboard, no layout shift, no overflow."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack, suppress

import pytest
import pytest_asyncio
from browser.conftest import SPEAKING_NT4, RestartableServer, keep
from browser.test_console import state
from browser.test_pipeline_view import alert, rollup, told
from support import nt4, wamp

with suppress(ImportError):  # then the fixture `chromium` skips, or fails
    from playwright.async_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

BUSY = SPEAKING_NT4 + "[ticks]\nevery_s = 0.25\n"
ROUND_S = 0.25  # between new events
PAGE_EVENTS = 25  # of the history
SESSIONS = 3  # of the page, of a WAMP client and of a robot
ANSWERS = 8  # responses to polls, each with new numbers, during which nothing may move
READABLE = 4.5  # of WCAG 2.2, level AA
PRESSES = 600
WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 360, "height": 740}

FULL = {
    "overview": ("#numbers dd", re.compile("^[1-9]"), "#events .event"),
    "channels": ("#channels tbody td.numbers", re.compile("^[0-9]"), "#channels tbody tr.is-channel"),
    "sessions": ("#sessions .badge", "NT4", "#sessions .changes li"),
    "history": ("#history .badge", "WAMP", "#history .event"),
    "tables": ("#tables .topics li", re.compile("/robot/speed"), "#tables .topics li"),
    "pipeline": ("#pipeline .jobs li", re.compile("ingest"), "#pipeline tbody tr"),
}
"""For each view: an element that it has once it has content, the element's text, and its rows."""

NAMELESS = """() => [...document.querySelectorAll("input, select, textarea, button, a, summary")]
    .filter((control) => !control.labels?.length && !control.ariaLabel && !control.textContent.trim())
    .map((control) => control.outerHTML)"""

FAINT = """(least) => {
    const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
    const context = canvas.getContext("2d", { willReadFrequently: true });
    const over = (below, ...colours) => { // the colour that is seen, as [r, g, b]
        for (const colour of [below, ...colours]) {
            context.fillStyle = colour;
            context.fillRect(0, 0, 1, 1);
        }
        return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
    };
    const luminance = (rgb) => rgb.map((part) => part / 255)
        .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
        .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
    const contrast = (one, other) => {
        const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
        return (light + 0.05) / (dark + 0.05);
    };
    const faint = new Set();
    const check = (element, colour, text) => {
        const layers = []; // from the root of the page
        for (let at = element; at; at = at.parentElement) {
            const { backgroundColor, backgroundImage, opacity } = getComputedStyle(at);
            if (Number(opacity) < 1) faint.add(`opacity of ${at.className || at.tagName}`);
            layers.unshift([backgroundColor, backgroundImage.match(/rgba?\\([^)]*\\)/g) ?? []]);
        }
        const behinds = layers.flatMap(([, shades], index) => shades.map((shade) => // any place of a gradient
            layers.map(([colour], at) => (at === index ? [colour, shade] : [colour])).flat()));
        for (const colours of [layers.map(([colour]) => colour), ...behinds]) {
            const behind = over("white", ...colours);
            const ratio = contrast(over(`rgb(${behind})`, colour), behind);
            if (ratio < least) faint.add(`${element.tagName}.${element.className} ${text}: ${ratio.toFixed(2)}`);
        }
    };
    const seen = (element) => element.checkVisibility({ visibilityProperty: true })
        && !element.closest(":disabled, [aria-disabled=true]"); // what cannot be used may be faint
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const { parentElement: parent, data } = texts.currentNode;
        if (!data.trim() || parent.closest("script, noscript, option") || !seen(parent)) continue;
        const style = getComputedStyle(parent);
        check(parent, parent instanceof SVGElement ? style.fill : style.color, data.trim().slice(0, 20));
    }
    for (const field of document.querySelectorAll("input:not([type=checkbox], [type=radio]), textarea, select")) {
        if (!seen(field)) continue;
        check(field, getComputedStyle(field).color, "its value");
        if (field.placeholder) check(field, getComputedStyle(field, "::placeholder").color, field.placeholder);
    }
    return [...faint];
}"""

MARK_CONTROLS = """() => {
    const controls = "a[href], button, input, select, textarea, summary, [tabindex]";
    window.unreached = new Set([...document.querySelectorAll(controls)].filter((control) =>
        control.tabIndex >= 0 && !control.disabled && control.checkVisibility()
        && !(control.type === "radio" && !control.checked))); // one of a group; the arrow keys reach the others
    addEventListener("focusin", ({ target }) => window.unreached.delete(target));
}"""

UNREACHED = """() => [...window.unreached].filter((control) => control.isConnected && control.checkVisibility())
    .map((control) => control.outerHTML.slice(0, 200))"""

WATCH_SHIFTS = """() => {
    // In lists whose newest stands first, that is what the others make room for.
    const news = "#events ol, ol.comings, .alerts ol";
    const isNews = ({ node }) => !node || (node.closest ? node : node.parentElement)?.closest(news);
    const box = ({ x, y, width, height }) => [x, y, width, height].map(Math.round).join(" ");
    const describe = ({ node, previousRect, currentRect }) =>
        `${(node.outerHTML ?? node.data).slice(0, 120)} from ${box(previousRect)} to ${box(currentRect)}`;
    window.shifts = [];
    new PerformanceObserver((list) => {
        for (const { value, sources } of list.getEntries()) {
            const moved = sources.filter((source) => !isNews(source));
            if (moved.length) window.shifts.push(`${value} ${moved.map((source) => describe(source))}`);
        }
    }).observe({ type: "layout-shift" });
}"""


@pytest_asyncio.fixture(loop_scope="session")
async def server(chromium, tmp_path):
    """A server with sessions of three protocols, a robot's values, a history, and messages as a pipeline sends them."""
    running = RestartableServer(tmp_path, BUSY)
    await running.start()
    async with AsyncExitStack() as sessions:
        sessions.push_async_callback(running.close)
        router = await sessions.enter_async_context(await wamp.join(running.url))
        robot = await sessions.enter_async_context(await nt4.connect(running.url, "robot"))
        await router.subscribe("com.myapp.orders")
        await robot.publish("/robot/speed", 1, "double")
        await robot.publish("/robot/enabled", 2, "boolean")
        await robot.put(2, 1, True, nt4.BOOLEAN)
        await running.post(alert("market/ADA", "burst", 3), alert("robot/speed", "silence", 9, "nt4"))
        await running.post(*({"channel": "/market/BTC", "data": number} for number in range(PAGE_EVENTS)))
        world = asyncio.create_task(live(running, router, robot))
        yield running
        world.cancel()
        with suppress(asyncio.CancelledError):
            await world


async def live(server, router, robot):
    """Publish new numbers on the same channels, a few times a second, until it is cancelled."""
    number = 0
    while True:
        number += 1
        await robot.put(1, number, number % 97 * 1.5, nt4.DOUBLE)
        await router.publish("com.myapp.orders", [{"order": number}])
        await server.post(
            {"channel": "/market/ADA", "data": {"symbol": "ADA", "price": number % 1_000 * 7.25}},
            told(("ingest", 9 * number, number % 30, 0.0, 120.0 + number, {}), ("rollup", number, 7, 3.2, 98.4, {})),
            rollup("market/ADA", number // 9, number % 1_000, final=False),
        )
        await asyncio.sleep(ROUND_S)


async def hear(page, answers):
    """Wait for the responses to this number of requests."""
    for _ in range(answers):
        async with page.expect_response(re.compile("/bayeux$")):
            pass


async def unreached(page):
    """The controls that cannot be reached with the key Tab."""
    await page.evaluate("document.activeElement.blur()")
    await page.evaluate(MARK_CONTROLS)
    for _ in range(PRESSES):
        await page.keyboard.press("Tab")
        if not await page.evaluate("window.unreached.size"):
            break
    return await page.evaluate(UNREACHED)


@pytest.mark.nightly
@pytest.mark.parametrize("view", FULL)
async def test_each_view_full_of_content(profile, server, view):
    """Check names, contrast, keyboard, width and layout shifts, and take screenshots at two widths."""
    await profile.poll()  # whose responses are counted
    page = await profile.open(f"{server.url}/#{view}")
    await page.emulate_media(reduced_motion="reduce")
    await expect(state(page)).to_have_text("Connected")
    place, text, row = FULL[view]
    await expect(page.locator(place).filter(has_text=text).first).to_be_visible()
    await expect(page.locator(row).first).to_be_visible()
    if view == "history":
        await page.get_by_label("Events per page").select_option(str(PAGE_EVENTS))
        await page.get_by_role("button", name="Read", exact=True).click()
        await expect(page.locator(row)).to_have_count(PAGE_EVENTS)
    if view == "channels":
        await page.locator(row).first.click()
    if view == "sessions":  # rows that are sorted by queue move when queues change
        await page.get_by_role("button", name="Session", exact=True).click()
        await expect(page.locator("#sessions tbody tr")).to_have_count(SESSIONS)
    assert await page.evaluate(NAMELESS) == []
    await page.evaluate(WATCH_SHIFTS)
    for size, name in ((WIDE, f"page-{view}"), (PHONE, f"page-{view}-phone")):
        await page.set_viewport_size(size)
        await hear(page, 2)
        await page.evaluate("void (window.shifts.length = 0)")
        await hear(page, ANSWERS)
        assert await page.evaluate("document.scrollingElement.scrollWidth") <= size["width"]
        assert await page.evaluate("window.shifts") == []
        await keep(page, name)
        for scheme in ("light", "dark"):
            await page.emulate_media(color_scheme=scheme)
            assert await page.evaluate(FAINT, READABLE) == []
        assert await unreached(page) == []
