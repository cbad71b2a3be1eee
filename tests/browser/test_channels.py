"""The console's view of channels in Chromium: the tree, its numbers, and the last event of each."""

from __future__ import annotations

import json
import re
import signal
from contextlib import suppress

import pytest
from browser.conftest import SPEAKING_NT4
from support import nt4, wamp

with suppress(ImportError):  # then the fixture `chromium` skips, or fails
    from playwright.async_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

STILL = "[ticks]\nevery_s = 0\n"
"""The server publishes no ticks, so that a test can publish its own."""
NO_HISTORY = "[history]\nenabled = false\n"
CLOSED = """
[[access]]
role = "*"
verb = "*"
pattern = "/open/**"
"""

RATE, PUBLISHED, SUBSCRIBERS, LAST, DATA = range(5)
NUMBERS = [("/b/slow", 1.5, 10), ("/b/fast", 20.0, 1_000), ("/a/x/deep", 3.0, 7), ("/a/x2", 0.0, 5)]


async def open_channels(profile, server, query=""):
    """Open the view in a new tab, and wait until it is connected."""
    page = await profile.open(f"{server.url}/#channels{query}")
    await expect(page.locator("#state")).to_have_text("Connected")
    return page


def row(page, channel):
    """The row of a channel or branch."""
    return page.locator(f'#channels tbody tr:has(th[title="{channel}"])')


def cell(page, channel, column):
    """A cell of a channel's or branch's row."""
    return row(page, channel).get_by_role("gridcell").nth(column)


async def labels(page):
    """The labels of the rows, from top to bottom."""
    return await page.locator("#channels tbody .channel").all_text_contents()


def tick(*topics, others=0, second=0):
    """A message on `/halley/topics` with these channels, (name, per_s, published) each."""
    told = [
        {
            "channel": name,
            "published": published,
            "per_s": per_s,
            "subscribers": 2,
            "last": f"2026-01-01T00:{second // 60:02}:{second % 60:02}.{place:03}Z",
        }
        for place, (name, per_s, published) in enumerate(topics)
    ]
    time = f"2026-01-01T00:{second // 60:02}:{second % 60:02}.900Z"
    return {"channel": "/halley/topics", "data": {"time": time, "topics": told[::-1], "others": others}}


async def tell(page, server, *topics, **more):
    """Publish a tick once the page is subscribed, and wait until it is shown."""
    await server.until_metric("halley_subscriptions", 2.0)
    await server.post(tick(*topics, **more))
    await expect(row(page, topics[0][0])).to_have_count(1)


@pytest.mark.parametrize("server", [SPEAKING_NT4], indirect=True)
async def test_what_three_protocols_publish_is_counted_and_shown(profile, server):
    """Each channel's row has its count, subscribers and last data, for publishers of any protocol; branches add up."""
    page = await open_channels(profile, server)
    await expect(page.get_by_text("Nothing has been published yet.")).to_be_visible()
    async with await wamp.join(server.url) as router, await nt4.connect(server.url, "robot") as robot:
        await router.subscribe("a.b.wamp")
        await server.post(*({"channel": "/a/b/bayeux", "data": {"n": number}} for number in range(3)))
        await router.publish("a.b.wamp", [42])
        await router.publish("a.b.wamp", [43])
        await robot.publish("/a/with space", 1)
        await robot.put(1, await robot.time(), 2.5)
        await expect(cell(page, "/a/b/bayeux", PUBLISHED)).to_have_text("3")
        await expect(cell(page, "/a/b/bayeux", DATA)).to_have_text('{"n":2}')
        await expect(cell(page, "/a/b/bayeux", SUBSCRIBERS)).to_have_text("1")
        await expect(cell(page, "/a/b/wamp", PUBLISHED)).to_have_text("2")
        await expect(cell(page, "/a/b/wamp", DATA)).to_have_text("43")
        await expect(cell(page, "/a/b/wamp", SUBSCRIBERS)).to_have_text("2")
        await expect(cell(page, "/a/with!20space", PUBLISHED)).to_have_text("1")
        await expect(cell(page, "/a/with!20space", DATA)).to_have_text("2.5")
        await expect(cell(page, "/a/b", PUBLISHED)).to_have_text("5")
        await expect(cell(page, "/a", PUBLISHED)).to_have_text("6")
        await expect(cell(page, "/a", SUBSCRIBERS)).to_have_text("")
        await expect(cell(page, "/a", LAST)).to_have_text(re.compile(r"^(now|\d+ s ago)$"))
        await expect(page.locator("#channels-counts")).to_have_text("3 channels")


async def test_the_chosen_channel_shows_all_of_its_last_event(profile, server):
    """A click shows the data, indented and live; a page that is opened later shows the recorded event."""
    page = await open_channels(profile, server)
    await server.post({"channel": "/a/b", "data": {"deep": [1, None]}})
    await row(page, "/a/b").click()
    detail = page.get_by_role("region", name="Selected channel")
    await expect(detail.get_by_role("heading", name="/a/b")).to_be_visible()
    assert await detail.locator("pre").text_content() == '{\n  "deep": [\n    1,\n    null\n  ]\n}'
    await server.post({"channel": "/a/b", "data": "<b>newer</b>"})
    await expect(detail.locator("pre")).to_have_text('"<b>newer</b>"')
    await expect(detail.locator("dl")).to_contain_text("Published2")
    await expect(detail.get_by_role("link", name="History")).to_have_attribute("href", "#history?channel=%2Fa%2Fb")
    later = await open_channels(profile, server)
    await row(later, "/a/b").click()
    await expect(later.locator("#channels pre")).to_have_text('"<b>newer</b>"')
    await expect(cell(later, "/a/b", DATA)).to_have_text('"<b>newer</b>"')


@pytest.mark.parametrize("server", [SPEAKING_NT4], indirect=True)
async def test_channels_in_sight_show_the_last_data_from_before_the_page(profile, server):
    """It is read from the history, for channels of any protocol, and replaced by what is received."""
    async with await wamp.join(server.url) as router, await nt4.connect(server.url, "robot") as robot:
        await server.post({"channel": "/a/bayeux", "data": 1}, {"channel": "/a/bayeux", "data": {"n": 2}})
        await router.publish("a.wamp", [42])
        await robot.publish("/a/with space", 1)
        await robot.put(1, await robot.time(), 2.5)
        page = await open_channels(profile, server)
        await expect(cell(page, "/a/bayeux", DATA)).to_have_text('{"n":2}')
        await expect(cell(page, "/a/wamp", DATA)).to_have_text("42")
        await expect(cell(page, "/a/with!20space", DATA)).to_have_text("2.5")
        await router.publish("a.wamp", [43])
        await expect(cell(page, "/a/wamp", DATA)).to_have_text("43")


@pytest.mark.parametrize("server", [NO_HISTORY], indirect=True)
async def test_without_a_history_it_says_why_there_is_no_data(profile, server):
    """Of events from before the page was opened only the count is shown, and how to start the server with a history."""
    profile.expected = "404"
    await server.post({"channel": "/before", "data": 1})
    page = await open_channels(profile, server)
    await row(page, "/before").click()
    why = "No event received yet, and the history is off on this server (start it with: halley serve --history on"
    await expect(page.locator("#channels .why")).to_contain_text(why)
    await expect(page.locator("#channels pre")).to_be_hidden()
    await server.post({"channel": "/before", "data": 2})
    await expect(page.locator("#channels pre")).to_have_text("2")
    await expect(page.locator("#channels .why")).to_be_empty()


@pytest.mark.parametrize("server", [STILL], indirect=True)
async def test_branches_sum_up_and_sorting_keeps_them_together(profile, server):
    """Rates and totals of a branch are those of all channels below it; each level is sorted by itself."""
    page = await open_channels(profile, server)
    await tell(page, server, *NUMBERS)
    await expect(cell(page, "/b", RATE)).to_have_text("21.5")
    await expect(cell(page, "/b", PUBLISHED)).to_have_text("1,010")
    await expect(cell(page, "/a/x", RATE)).to_have_text("3.0")
    assert await labels(page) == ["a", "x", "deep", "x2", "b", "fast", "slow"]
    await page.get_by_role("button", name="Per second").click()
    assert await labels(page) == ["b", "fast", "slow", "a", "x", "deep", "x2"]
    await expect(page.get_by_role("columnheader", name="Per second")).to_have_attribute("aria-sort", "descending")
    await page.get_by_role("button", name="Last event").click()
    assert await labels(page) == ["a", "x2", "x", "deep", "b", "fast", "slow"]
    for _ in range(2):
        await page.get_by_role("button", name="Channel", exact=True).click()
    assert await labels(page) == ["b", "slow", "fast", "a", "x2", "x", "deep"]


@pytest.mark.parametrize("server", [STILL], indirect=True)
async def test_a_filter_shows_what_fits_and_what_is_above_it(profile, server):
    """Text is searched anywhere in names, a pattern matches as in a subscription; closed branches are searched too."""
    page = await open_channels(profile, server)
    await tell(page, server, *NUMBERS)
    await page.get_by_role("button", name="Collapse all branches").click()
    assert await labels(page) == ["a", "b"]
    field = page.get_by_label("Filter channels by text or pattern")
    for text, found in (("DEEP", ["a", "x", "deep"]), ("/b/**", ["b", "fast", "slow"]), ("/a/*", ["a", "x2"])):
        await field.fill(text)
        assert await labels(page) == found
    await field.fill("nowhere")
    await expect(page.get_by_text("No channel matches the filter.")).to_be_visible()
    await field.fill("")
    assert await labels(page) == ["a", "b"]
    await page.get_by_role("button", name="Expand all branches").click()
    assert len(await labels(page)) == 7


@pytest.mark.parametrize("server", [STILL], indirect=True)
async def test_a_filter_says_that_there_may_be_others(profile, server):
    """Where the server has more channels than it lists, none is denied; a channel or pattern leads to the history."""
    page = await open_channels(profile, server)
    await server.post({"channel": "/load/g00/c1", "data": "recorded"})
    await tell(page, server, *NUMBERS, others=4_500)
    nothing = page.locator("#channels .empty")
    field = page.get_by_label("Filter channels by text or pattern")
    await field.fill("g99")
    await expect(nothing).to_have_text(
        "None of the 5 channels listed matches; 4,499 others are not listed. "
        "A whole channel or a pattern can be looked up in the history."
    )
    await field.fill("/other/**")
    await expect(nothing).to_contain_text("4,499 others are not listed. See the history of /other/**")
    await field.fill("/load/g0")
    await field.fill("/load/g99/")
    await expect(nothing.get_by_role("link")).to_have_text(["/load/g99", "/load/g99/**"])
    await field.fill("/load/*")
    await nothing.get_by_role("link", name="/load/*").click()
    await expect(page.get_by_label("Read the history of")).to_have_value("/load/*")
    await expect(page.get_by_text("Nothing is recorded for /load/* in that time.")).to_be_visible()


@pytest.mark.parametrize("server", [STILL], indirect=True)
async def test_a_channel_that_the_server_tells_no_more_stays(profile, server):
    """Its total stays; its rate becomes 0 once a tick lists a channel without an event since the tick before."""
    page = await open_channels(profile, server)
    await tell(page, server, ("/old", 5.0, 50), second=1)
    await server.post(tick(("/new", 1.0, 1), others=1, second=2))
    await expect(row(page, "/new")).to_be_visible()
    await expect(cell(page, "/old", RATE)).to_have_text("5.0")
    await server.post(tick(("/new", 0.0, 1), others=2, second=2), tick(("/new", 0.0, 1), others=2, second=3))
    await server.post(tick(("/newer", 0.0, 1), others=2, second=2))
    await expect(cell(page, "/old", RATE)).to_have_text("0.0")
    await expect(cell(page, "/old", PUBLISHED)).to_have_text("50")


@pytest.mark.parametrize("server", [STILL], indirect=True)
async def test_the_tree_is_walked_by_keyboard(profile, server):
    """Arrow keys move, open and close; Enter selects; the focus stays on its row while numbers and order change."""
    page = await open_channels(profile, server)
    await tell(page, server, *NUMBERS)
    await page.get_by_role("button", name="Last event").focus()
    await page.keyboard.press("Tab")
    await expect(row(page, "/a")).to_be_focused()
    for key, channel in (("ArrowRight", "/a/x"), ("ArrowDown", "/a/x/deep"), ("ArrowLeft", "/a/x"), ("End", "/b/slow")):
        await page.keyboard.press(key)
        await expect(row(page, channel)).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(row(page, "/b/slow")).to_have_attribute("aria-selected", "true")
    await expect(page.get_by_role("heading", name="/b/slow")).to_be_visible()
    await page.keyboard.press("ArrowLeft")
    await page.keyboard.press("ArrowLeft")
    await expect(row(page, "/b")).to_have_attribute("aria-expanded", "false")
    await expect(row(page, "/b/slow")).to_have_count(0)
    await page.get_by_role("button", name="Per second").click()
    await row(page, "/a/x2").focus()
    await server.post(tick(("/a/x2", 99.0, 6), ("/c", 1.0, 1), second=1))
    await expect(cell(page, "/a/x2", RATE)).to_have_text("99.0")
    assert await labels(page) == ["a", "x2", "x", "deep", "c", "b"]
    await expect(row(page, "/a/x2")).to_be_focused()


async def test_tail_hears_a_channel_or_a_branch_in_the_overview(profile, server):
    """The button subscribes and shows the list of events, which then shows the channel's events."""
    page = await open_channels(profile, server)
    await server.post({"channel": "/a/b", "data": 1})
    for channel, button, pattern in (("/a/b", "Tail channel", "/a/b"), ("/a", "Tail branch", "/a/**")):
        await row(page, channel).click()
        await page.get_by_role("button", name=button).click()
        subscriptions = page.get_by_role("list", name="Subscribed channels")
        await expect(subscriptions.get_by_text(pattern, exact=True)).to_be_visible()
        await expect(page.get_by_role("link", name="Overview")).to_be_focused()
        await server.post({"channel": "/a/b", "data": f"for {pattern}"})
        await expect(page.get_by_role("list", name="Events")).to_contain_text(f"for {pattern}")
        await page.get_by_role("link", name="Channels").click()


@pytest.mark.parametrize("server", [CLOSED], indirect=True)
async def test_who_may_not_see_is_told_so(profile, server):
    """Without rights to the numbers and the data the view names the rights that are missing, and shows no rows."""
    page = await open_channels(profile, server)
    notice = page.locator("#channels .notice")
    await expect(notice).to_contain_text("a token that may subscribe to /halley/** to see the channels' numbers.")
    await expect(notice).to_contain_text("a token that may subscribe to /** to see new data")
    await expect(page.locator("#channels tbody tr")).to_have_count(0)
    await expect(page.get_by_text("Nothing to show.")).to_be_visible()


async def test_after_a_restart_it_is_live_again(profile, server):
    """After a restart the view shows the server's numbers again, without a reload."""
    profile.expected = "net::ERR_"
    page = await open_channels(profile, server)
    await server.post({"channel": "/a", "data": 1}, {"channel": "/a", "data": 2})
    await expect(cell(page, "/a", PUBLISHED)).to_have_text("2")
    await server.stop(signal.SIGKILL)
    await expect(page.locator("#state")).to_have_text("Reconnecting")
    await server.start()
    await expect(page.locator("#state")).to_have_text("Connected")
    await server.post({"channel": "/a", "data": 3})
    await expect(cell(page, "/a", PUBLISHED)).to_have_text("1")
    await expect(cell(page, "/a", DATA)).to_have_text("3")


async def test_nothing_is_heard_for_a_view_that_nobody_watches(profile, server):
    """The page is subscribed to ticks, which cost the server something, only while they are shown."""
    await profile.poll()
    page = await open_channels(profile, server)
    heard = page.get_by_text("Nothing has been published yet.")
    await expect(heard).to_be_visible()
    async with page.expect_request(lambda request: "/meta/unsubscribe" in (request.post_data or "")) as asked:
        await page.get_by_role("link", name="Overview").click()
    sent = (await asked.value).post_data_json
    left = [message["subscription"] for message in sent if message["channel"] == "/meta/unsubscribe"]
    assert left == ["/halley/topics"]


@pytest.mark.parametrize("server", [STILL], indirect=True)
async def test_2_000_channels_stay_usable(profile, server):
    """Four ticks of 500 are all counted; at most 1,000 rows are drawn, and a filter finds every one."""
    page = await open_channels(profile, server)
    names = [f"/room-{number // 100}/sensor-{number}" for number in range(2_000)]
    for at in range(0, 2_000, 500):
        await server.until_metric("halley_subscriptions", 2.0)
        await server.post(tick(*((name, 1.0, 1) for name in names[at : at + 500]), others=1_500, second=at // 500))
    counts = page.locator("#channels-counts")
    await expect(counts).to_contain_text("2,000 channels")
    await page.get_by_role("button", name="Expand all branches").click()
    await expect(counts).to_contain_text("the first 1,000 of 2,020 rows shown")
    await expect(page.locator("#channels tbody tr")).to_have_count(1_000)
    await page.get_by_label("Filter channels by text or pattern").fill("sensor-1999")
    await expect(row(page, "/room-19/sensor-1999")).to_be_visible()
    assert await labels(page) == ["room-19", "sensor-1999"]
    await row(page, "/room-19/sensor-1999").click()
    await server.post({"channel": "/room-19/sensor-1999", "data": "found"})
    await expect(page.locator("#channels pre")).to_have_text('"found"')
    assert sum("/history/" in url for url in profile.requested) < 200  # for those in sight, not for all


@pytest.mark.parametrize("server", [STILL], indirect=True)
async def test_it_fits_a_phone_and_nothing_moves(profile, server):
    """At 360 pixels the page does not scroll sideways, and growing numbers do not move anything."""
    page = await open_channels(profile, server)
    await page.set_viewport_size({"width": 360, "height": 740})
    await tell(page, server, (f"/{'long' * 40}/x", 1.0, 1), ("/a", 1.0, 1))
    await page.set_viewport_size({"width": 1280, "height": 740})
    places = (
        "[...document.querySelectorAll('#channels :is(th, td)')].map((each) => each.getBoundingClientRect().toJSON())"
    )
    before = await page.evaluate(places)
    await server.post(tick((f"/{'long' * 40}/x", 12_345.6, 1_234_567), ("/a", 98_765.4, 7_654_321), second=1))
    await expect(cell(page, "/a", PUBLISHED)).to_have_text("7,654,321")
    assert json.dumps(await page.evaluate(places)) == json.dumps(before)
    await row(page, "/a").click()
    for width in (360, 640, 960, 1280):
        await page.set_viewport_size({"width": width, "height": 740})
        assert await page.evaluate("document.scrollingElement.scrollWidth") <= width
