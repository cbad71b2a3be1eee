"""The view Overview in Chromium: charts and figures of the server's throughput and delay."""

from __future__ import annotations

import asyncio
import re
import signal
from contextlib import suppress

import pytest
from browser.conftest import keep
from browser.test_console import events, open_console, state
from support.wire import DEADLINE_S

from halley.broker.flow import DELAY

with suppress(ImportError):  # then the fixture `chromium` skips, or fails
    from playwright.async_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

STILL = "[ticks]\nevery_s = 0\n"
"""The server publishes no ticks, so that a test can publish its own."""
FLOOD = 10_000
BATCH = 500


def rates(time, **changed):
    """The data of a tick that a test publishes."""
    bayeux = {"sessions": 1, "published": 9, "delivered": 9, "published_per_s": 12.0, "delivered_per_s": 43.0}
    return {
        "time": time,
        "every_s": 1.0,
        "protocols": {"bayeux": {**bayeux, "delay_ms": {"p50": 1.2, "p99": 4.0}}},
        **dict.fromkeys(("sessions", "subscriptions", "holds", "queued", "put_back", "conflated", "overflows"), 0),
        "dropped": 0,
        "memory_bytes": 2**20,
        "limits_hit": {},
        "history": None,
        **changed,
    }


def chart(page, name):
    return page.get_by_role("img", name=re.compile(f"^{name}"))


def number(page, label):
    """The element that shows one of the current figures."""
    return page.locator("#numbers > div").filter(has_text=label).locator("dd")


@pytest.mark.parametrize("server", [STILL], indirect=True)
async def test_charts_and_numbers_say_what_the_server_told(profile, server):
    """Values are in the legend and in the charts' labels for screen readers; counts of troubles are in the figures."""
    page = await open_console(profile, server)
    tick = rates("2026-01-01T00:00:01Z", limits_hit={"queue_events": 2, "keep_alive_s": 7})
    await server.post({"channel": "/halley/rates", "data": tick})
    await expect(chart(page, "Throughput")).to_have_attribute(
        "aria-label", "Throughput, events/s, now: Bayeux published 12, Bayeux delivered 43"
    )
    await expect(chart(page, "Delay")).to_have_attribute("aria-label", "Delay, now: Bayeux p50 1.2 ms, Bayeux p99 4 ms")
    await expect(page.get_by_text(re.compile("^Bayeux delivered43$"))).to_be_visible()
    await expect(page.get_by_text(DELAY)).to_be_visible()
    await expect(number(page, "Limits hit")).to_have_text("2")
    await expect(number(page, "History head")).to_have_text("\u2013")
    await expect(events(page)).to_have_count(0)
    # A late tick is added at its own time, and does not become the current one.
    late = rates("2026-01-01T00:00:00Z", dropped=7)
    await server.post({"channel": "/halley/rates", "data": late}, {"channel": "/seen", "data": 1})
    await expect(events(page)).to_have_count(1)
    await expect(number(page, "Dropped")).to_have_text("0")
    await chart(page, "Throughput").press("ArrowLeft")
    await expect(chart(page, "Throughput")).not_to_have_attribute("aria-label", re.compile(", now:"))
    await chart(page, "Throughput").press("Escape")
    await expect(chart(page, "Throughput")).to_have_attribute("aria-label", re.compile(", now:"))


@pytest.mark.nightly
async def test_charts_begin_with_the_past_of_the_server(profile, server):
    """What was published before a page was opened is in its charts with the first tick that it receives."""
    first = await open_console(profile, server)
    await expect(number(first, "Bayeux sessions")).to_have_text("1")
    await server.post(*({"channel": "/a", "data": number} for number in range(40)))
    async with asyncio.timeout(DEADLINE_S):
        while not await has_peak(first):
            pass
    later = await open_console(profile, server)
    await expect(number(later, "Bayeux sessions")).to_have_text("2")
    assert await has_peak(later)


async def has_peak(page):
    """Whether the chart has a point of about 40 events/s, which the keyboard reaches."""
    await chart(page, "Throughput").press("Escape")
    for _ in range(60):  # a busy machine may be some ticks further
        await chart(page, "Throughput").press("ArrowLeft")
        label = await chart(page, "Throughput").get_attribute("aria-label")
        if re.search("Bayeux published (3[0-9]|4[0-9])", label):
            return True
    return False


@pytest.mark.parametrize("server", [STILL], indirect=True)
async def test_the_past_is_drawn_once_and_in_its_place(profile, server):
    """A point of the past is a point of the chart; those that are not past are ignored."""
    page = await open_console(profile, server)
    flow = {"published_per_s": 70.0, "delivered_per_s": 1.0, "delay_ms": {"p50": 1, "p99": 2}}
    times = [f"2026-01-01T00:00:0{second}Z" for second in (1, 2)] + ["2999-01-01T00:00:00Z"]
    past = [{"time": time, "protocols": {"bayeux": flow}} for time in times]
    await server.post({"channel": "/halley/rates", "data": rates("2026-01-01T00:00:03Z", past=past)})
    line = page.locator("#charts path.line[data-protocol=bayeux]").first
    await expect(line).to_have_attribute("d", re.compile(r"^M[\d. ]+h0L[\d. ]+L[\d. ]+$"))
    await expect(chart(page, "Throughput")).to_have_attribute("aria-label", re.compile("now: Bayeux published 12,"))
    await chart(page, "Throughput").press("ArrowLeft")
    await chart(page, "Throughput").press("ArrowLeft")
    await expect(chart(page, "Throughput")).to_have_attribute("aria-label", re.compile(": Bayeux published 70,"))


@pytest.mark.parametrize("server", [STILL], indirect=True)
async def test_delays_of_any_size_are_told_apart(profile, server):
    """The axis of delays has powers of ten: 200 microseconds, 2 milliseconds and 5 seconds."""
    page = await open_console(profile, server)
    slow = {**rates("")["protocols"]["bayeux"], "delay_ms": {"p50": 0.2, "p99": 5_000}}
    tick = rates("2026-01-01T00:00:01Z", protocols={"bayeux": slow, "wamp": slow | {"delay_ms": {"p50": 2, "p99": 2}}})
    await server.post({"channel": "/halley/rates", "data": tick})
    marks = chart(page, "Delay").locator("text[text-anchor=end]")
    await expect(marks).to_have_text(["100 µs", "1 ms", "10 ms", "100 ms", "1 s", "10 s", "now"])
    await expect(page.get_by_text("Bayeux p50200 µs")).to_be_visible()
    heights = (
        await chart(page, "Delay")
        .locator("path.line:not([d=''])")
        .evaluate_all("lines => lines.map((line) => Number(line.getAttribute('d').match(/ ([0-9.]+)/)[1]))")
    )
    fast, slowest, between, _ = heights
    assert slowest + 30 < between < fast - 15


@pytest.mark.nightly
@pytest.mark.parametrize("server", [STILL], indirect=True)
async def test_old_numbers_are_not_shown_as_those_of_now(profile, server):
    """Without ticks the view names the setting that publishes them; if they stop, it shows for how long."""
    page = await open_console(profile, server)
    await expect(page.locator("#rates-notice")).to_contain_text("ticks.every_s")
    await server.post({"channel": "/halley/rates", "data": rates("2026-01-01T00:00:01Z", dropped=7)})
    await expect(number(page, "Dropped")).to_have_text("7")
    await expect(page.locator("#rates-notice")).to_be_hidden()
    silence = page.get_by_text(re.compile("^no data from the server for [0-9]+ s$")).first
    await expect(silence).to_be_visible()
    await expect(silence).not_to_have_text(await silence.inner_text())
    await expect(number(page, "Dropped")).to_have_text("\u2013")
    await server.post({"channel": "/halley/rates", "data": rates("2026-01-01T00:00:09Z", dropped=8)})
    await expect(number(page, "Dropped")).to_have_text("8")
    await expect(page.get_by_text("no data from the server")).to_have_count(0)


async def test_what_is_published_is_counted_in_both_tabs_and_after_a_restart(profile, server):
    """The server's ticks reach the tab whose connect is held and the one that polls, also after a restart."""
    profile.expected = "net::ERR_"
    pages = [await open_console(profile, server) for _ in range(2)]
    for page in pages:
        await expect(number(page, "Bayeux sessions")).to_have_text("2")
    await server.stop(signal.SIGKILL)
    await expect(state(pages[0])).to_have_text("Reconnecting")
    await server.start()
    await server.post({"channel": "/a", "data": {"text": "after"}})
    for page in pages:
        await expect(state(page)).to_have_text("Connected")
        await expect(number(page, "Bayeux sessions")).to_have_text("2")
    await keep(pages[0], "overview")


@pytest.mark.nightly
@pytest.mark.parametrize("server", ["[limits]\nqueue_events = 20000\n"], indirect=True)
async def test_a_flood_does_not_freeze_it(profile, server):
    """While ten thousand events are received, buttons react; in the end all events are counted."""
    page = await open_console(profile, server)
    for first in range(0, FLOOD, BATCH):
        await server.post(*({"channel": "/n", "data": at} for at in range(first, first + BATCH)))
        if first == FLOOD // 2:
            await page.get_by_role("button", name="Pause").click()
            await expect(page.get_by_role("button", name="Resume")).to_be_visible()
            await page.get_by_role("button", name="Resume").click()
    await expect(page.locator("#counts")).to_have_text("500 shown, 9,500 older")
    await expect(events(page).first.locator("code")).to_have_text(str(FLOOD - 1))
    await expect(state(page)).to_have_text("Connected")
