"""The view Pipeline in Chromium, with messages as the pipeline's jobs send them, published by the tests."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from browser.test_console import events, expect_granted, open_console, state, subscribe
from browser.test_history import go
from support.wire import DEADLINE_S

from halley.pipeline.jobs.run import CHANNEL, Status, _payload
from halley.protocols.bayeux.names import to_channel

with suppress(ImportError):  # then the fixture `chromium` skips, or fails
    from playwright.async_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

START = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
SILENT = re.compile(r"no report for ([5-9]|[1-9]\d) s")
NUMBERS = {"price": {"count": 5, "min": 1.25, "mean": 40.5, "max": 99.5, "p50": 41.0, "p95": 90.25, "p99": 98.0}}


def told(*jobs):
    """The message that a pipeline publishes each second, with these jobs."""
    return {"channel": CHANNEL, "data": _payload([Status(*each) for each in jobs])}


def rollup(topic, number, count, *, protocol="bayeux", window="10s", final=True, numbers=None):
    """A rollup of the window of that number, as the job publishes it (`Rollup._message`)."""
    length = timedelta(seconds=10 if window == "10s" else 60)
    start, channel = START + number * length, to_channel(topic)
    data = {
        "channel": channel,
        "protocol": protocol,
        "window": window,
        "start": f"{start:%Y-%m-%dT%H:%M:%S.%fZ}",
        "end": f"{start + length:%Y-%m-%dT%H:%M:%S.%fZ}",
        "events": count,
        "bytes": 1_500 * count,
        "publishers": 2,
        "numbers": numbers or {},
        "final": final,
    }
    return {"channel": f"/stats/{window}{channel}", "data": data}


def alert(topic, kind, second, protocol="bayeux"):
    """An alert, as the job publishes it (`Alerts._message`)."""
    channel = to_channel(topic)
    time = f"{START + timedelta(seconds=second):%Y-%m-%dT%H:%M:%S.%fZ}"
    data = {"channel": channel, "protocol": protocol, "kind": kind, "time": time, "rate": 123.456, "usual": 10.25}
    return {"channel": f"/alerts{channel}", "data": data}


async def open_pipeline(profile, server):
    page = await open_console(profile, server)
    await go(page, "Pipeline")
    return page


def job(page, name):
    """A job's card."""
    return jobs(page).filter(has=page.get_by_role("heading", name=name))


def rows(page):
    """The rows of rollups."""
    return page.get_by_role("table", name="Rollups").locator("tbody tr")


def alerts(page):
    """The rows of alerts."""
    return page.get_by_role("list", name="Alerts").get_by_role("listitem")


async def test_without_a_pipeline_the_view_says_how_to_start_one(profile, server):
    """Without messages and without recorded ones each part of the view is marked as empty."""
    page = await open_pipeline(profile, server)
    await expect(page.get_by_text("No pipeline has reported")).to_be_visible()
    await expect(page.get_by_text("halley pipeline run", exact=True)).to_be_visible()
    await expect(page.get_by_text("No rollup has been received, and none is in the history.")).to_be_visible()
    await expect(page.get_by_text("No alert has been received, and none is in the history.")).to_be_visible()


async def test_jobs_tell_how_far_they_are(profile, server):
    """Each job has a card with its offset, lag, rate and remarks; if its reports stop, the card shows for how long."""
    page = await open_pipeline(profile, server)
    late = ("rollup", 12_000, 345, 3.2, 98.4, {"late": 2, "not published": 0})
    await expect_heard(server, told(("ingest", 12_345, 0, 0.0, 120.0, {}), late), jobs(page))
    await expect(job(page, "ingest")).to_have_text("ingestup to datenext offset12,345behind0 eventsrows/s120")
    await expect(job(page, "rollup")).to_have_text("rollup3 s behindnext offset12,000behind345 eventsrows/s982 late")
    for name in ("ingest", "rollup"):  # a job that works every few seconds is well some seconds behind
        await expect(job(page, name)).to_have_attribute("data-state", "good")
    await expect(job(page, "rollup")).to_contain_text(SILENT)
    before = await job(page, "rollup").text_content()  # Playwright looks once a second, and can miss any of them
    await expect(job(page, "rollup")).not_to_have_text(before)
    await expect(job(page, "rollup")).to_contain_text(SILENT)
    await server.post(told(late))
    await expect(job(page, "rollup")).to_contain_text("3 s behind")
    await expect(job(page, "ingest")).to_contain_text("no report for")
    await server.post(told(("rollup", 12_000, 345_000, 31.0, 0.0, {})))
    await expect(job(page, "rollup")).to_contain_text("31 s behind")
    await expect(job(page, "rollup")).to_have_attribute("data-state", "behind")


def jobs(page):
    """The lines of the jobs."""
    return page.get_by_role("list", name="Jobs").get_by_role("listitem")


async def expect_heard(server, message, shown):
    """Publish an unrecorded message until what it says is shown: when the page is subscribed cannot be seen from here.

    A number of subscriptions says it only where the view before it has another number, also while it is left.
    """
    async with asyncio.timeout(DEADLINE_S):
        while not await shown.count():
            await server.post(message)
            await asyncio.sleep(0.1)


async def test_rollups_of_the_newest_window_by_events(profile, server):
    """Recorded rollups are shown at first; the row of a growing window is updated, and the busiest rows are first."""
    await server.post(
        rollup("prices/abc", 0, 7), rollup("chat/lobby", 0, 9), rollup("prices/abc", 1, 5, numbers=NUMBERS)
    )
    page = await open_pipeline(profile, server)
    cells = "/prices/abcBayeux5{}7.5K2price: 5 values, min 1.25, mean 40.5, max 99.5, p50 41, p95 90.25, p99 98"
    await expect(rows(page)).to_have_text([cells.format(""), "/chat/lobbyBayeux00\u2013"])
    await expect(
        rows(page).first.get_by_role("img", name="Events on /prices/abc by Bayeux in the last 30")
    ).to_be_visible()
    bars = (
        await rows(page)
        .locator("path")
        .evaluate_all("(all) => all.map((path) => path.getAttribute('d').split('M').length - 1)")
    )
    assert bars == [2, 1]
    await server.post(rollup("chat/lobby", 1, 6, final=False))
    await expect(rows(page).first).to_have_text("/chat/lobbyBayeux69K2")
    await server.post(rollup("chat/lobby", 1, 8, final=True), rollup("chat/lobby", 1, 7, final=False))
    await expect(rows(page).first).to_have_text("/chat/lobbyBayeux812K2")
    await server.post(rollup("chat/lobby", 2, 1, protocol="wamp"))
    await expect(rows(page)).to_have_count(3)
    await expect(rows(page).first).to_have_text("/chat/lobbyWAMP11.5K2")
    anonymous = rollup("chat/lobby", 2, 3)
    anonymous["data"]["publishers"] = 0  # it counts identities
    await server.post(anonymous)
    await expect(rows(page).first).to_have_text("/chat/lobbyBayeux34.5K\u2013")


async def test_windows_of_a_minute(profile, server):
    """The other window length has its own rows, and only its rollups are received then."""
    await server.post(rollup("a", 0, 1), rollup("b", 0, 60, window="1m", final=False))
    page = await open_pipeline(profile, server)
    await expect(rows(page)).to_have_count(1)
    await page.get_by_label("1 min").check()
    await expect(rows(page)).to_have_text(["/bBayeux6090K2"])
    await server.post(rollup("a", 1, 2), rollup("b", 0, 61, window="1m"))
    await expect(rows(page)).to_have_text(["/bBayeux6191.5K2"])
    await page.get_by_label("10 s").check()
    await expect(rows(page)).to_have_text(["/aBayeux23K2"])


async def test_alerts_newest_first_and_once(profile, server):
    """Recorded and new alerts are in the order of their times; at most 200 are kept."""
    await server.post(alert("a", "spike", 1), alert("a", "recovered", 3), alert("b", "silence", 2, protocol=None))
    page = await open_pipeline(profile, server)
    kinds = alerts(page).locator(".kind")
    await expect(kinds).to_have_text(["Recovered", "Silence", "Spike"])
    await expect(alerts(page).nth(2)).to_contain_text("/a")
    await expect(alerts(page).nth(2)).to_contain_text("123 events/s, usually 10.3")
    await server.post(alert("a", "spike", 1), alert("c/d", "spike", 4))
    await expect(kinds).to_have_text(["Spike", "Recovered", "Silence", "Spike"])
    await server.post(*(alert("many", "spike", second) for second in range(10, 260)))
    await expect(alerts(page)).to_have_count(200)


async def test_it_is_live_again_after_a_restart(profile, server):
    """A restarted server's results are shown without a reload."""
    profile.expected = "net::ERR_"
    page = await open_pipeline(profile, server)
    await server.stop()
    await expect(state(page)).to_have_text("Reconnecting")
    await server.start()
    await expect(state(page)).to_have_text("Connected")
    await expect_heard(server, told(("ingest", 1, 0, 0.0, 1.0, {})), jobs(page))
    await server.post(alert("a", "spike", 1))
    await expect(alerts(page)).to_have_count(1)


async def test_what_is_refused_is_named_by_the_missing_right(profile, server, tmp_path):
    """With access rules a role sees which rights it needs, and only those that it has not."""
    profile.expected = "status of 40"
    await server.stop()
    (tmp_path / "halley.toml").write_text('[[access]]\nrole = "*"\nverb = "subscribe"\npattern = "/alerts/**"\n')
    await server.start()
    page = await profile.open(f"{server.url}/#pipeline")
    right = "a token that may subscribe to /halley/pipeline and /stats/10s/** to see all of the pipeline."
    await expect(page.get_by_text(f"Sign in with {right}")).to_be_visible()
    earlier = "Sign in with a token that may subscribe to /stats/10s/** to read earlier results."
    await expect(page.get_by_text(earlier)).to_be_visible()


async def test_the_view_fits_a_phone(profile, server):
    """At widths of at least 360 pixels only the table scrolls sideways."""
    long = "long" * 40
    await server.post(alert(long, "spike", 1), rollup(long, 0, 5, numbers=NUMBERS))
    page = await open_pipeline(profile, server)
    await expect(rows(page)).to_have_count(1)
    await expect_heard(server, told((long, 12_345_678_901, 10_000_000, 86_400.0, 123_456.0, {"late": 2})), jobs(page))
    for width in (360, 640, 960, 1280):
        await page.set_viewport_size({"width": width, "height": 740})
        assert await page.evaluate("document.scrollingElement.scrollWidth") <= width


async def test_rollups_do_not_crowd_out_what_is_published(profile, server):
    """The overview counts them, and lists what others publish below /stats; who subscribes to them gets them listed."""
    page = await open_console(profile, server)
    counts = page.locator("#counts")
    await server.post(
        {"channel": "/chat/lobby", "data": "hello"}, {"channel": "/stats/10s/mine", "data": {"events": 1}}
    )
    await server.post(*(rollup(f"chat/{number}", 0, 5) for number in range(50)), rollup("chat/0", 0, 5, window="1m"))
    await expect(counts).to_have_text("2 shown, 51 rollups not listed")
    await expect(events(page)).to_have_count(2)
    await subscribe(page, "/stats/10s/**")
    await expect_granted(page, "/stats/10s/**")
    await server.post(rollup("chat/0", 1, 7), rollup("chat/0", 1, 7, window="1m"))
    await expect(counts).to_have_text("3 shown, 52 rollups not listed")
    await expect(events(page).first).to_contain_text("/stats/10s/chat/0")
    await page.get_by_role("button", name="Clear").click()
    await expect(counts).to_have_text("0 shown")
