"""The view History in Chromium: recorded events are found, page by page, and replayed from any of them."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from contextlib import suppress
from datetime import UTC, datetime

import httpx
import pytest
from browser.conftest import SPEAKING_NT4
from browser.test_console import events, expect_granted, open_console, state, subscribe, subscription
from support import nt4, wamp
from support.wire import DEADLINE_S

with suppress(ImportError):  # then the fixture `chromium` skips, or fails
    from playwright.async_api import expect

pytestmark = [
    pytest.mark.browser,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("server", [SPEAKING_NT4], indirect=True, ids=["nt4"]),
]

REFUSALS = {
    "no-slash": "channel: expected a Bayeux channel, or one that ends in /* or /**",
    "/../rights": "channel: expected a Bayeux channel, or one that ends in /* or /**",
    "/a b": "channel: expected a Bayeux channel, or one that ends in /* or /**",
}


def recorded(page):
    """The rows of the history."""
    return page.get_by_role("list", name="Recorded").locator("li.recorded")


def said(page):
    """The element that shows the view's status."""
    return page.locator("#history").get_by_role("status")


async def go(page, view):
    """Follow a link of the header."""
    await page.get_by_role("navigation").get_by_role("link", name=view, exact=True).click()


async def ask(page, channel, **fields):
    """Fill in the form and click Read."""
    form = page.locator("#history form")
    await form.get_by_label("Read the history of").fill(channel)
    for label, value in fields.items():
        field = form.get_by_label(label.replace("_", " "))
        await (field.fill(value) if label in ("From", "Until") else field.select_option(value))
    await form.get_by_role("button", name="Read", exact=True).click()


async def post_numbers(server, channel, count, first=0):
    await server.post(*({"channel": channel, "data": number} for number in range(first, first + count)))


async def test_all_protocols_events_are_shown_in_full(profile, server):
    """An event of each protocol has its position, time, channel, protocol, NetworkTables type, and its whole data."""
    await server.post({"channel": "/a", "data": {"whole": 1, "text": "<b>no markup</b>"}})
    async with await wamp.join(server.url) as client:
        await client.publish("com.example.b", [1, 2], {"three": 4})
    async with await nt4.connect(server.url, "robot") as robot:
        await robot.publish("/robot/speed", 1)
        await robot.put(1, 1, 2.5)
        await robot.time()
        page = await open_console(profile, server)
        await go(page, "History")
        await expect(recorded(page)).to_have_count(3)
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}"
    await expect(recorded(page).nth(0)).to_have_text(re.compile(rf"^\d+{time}NT4double/robot/speed2\.5Replay"))
    await expect(recorded(page).nth(1)).to_contain_text('/com/example/b{"args":[1,2],"kwargs":{"three":4}}')
    await expect(recorded(page).nth(1)).to_have_text(re.compile(rf"^\d+{time}WAMP/com"))
    await expect(recorded(page).nth(2)).to_have_text(re.compile(rf"^1{time}Bayeux/a"))
    await recorded(page).nth(2).locator("summary").press("Enter")
    unfolded = await recorded(page).nth(2).locator("pre").text_content()
    assert unfolded == '{\n  "whole": 1,\n  "text": "<b>no markup</b>"\n}'
    await expect(said(page)).to_have_text(re.compile(r"^3 events, positions 1 to \d+$"))


async def test_numbers_are_shown_as_they_were_published(profile, server):
    """A browser would round the numbers; the view shows them as recorded."""
    body = '{"channel": "/a", "data": [12345678901234567, 2.0, 1e3]}'
    async with httpx.AsyncClient(verify=False) as client:
        await client.post(server.bayeux, content=body, headers={"content-type": "application/json"})
    page = await open_console(profile, server)
    await go(page, "History")
    await expect(recorded(page).locator("code")).to_have_text(re.compile(r"^\[12345678901234567,2\.0,1(e3|000\.0)\]$"))


@pytest.mark.parametrize(
    ("order", "seen"),
    [
        ("newest", ["419 to 320", "319 to 220", "219 to 120", "119 to 20", "19 to 0"]),
        ("oldest", ["0 to 99", "100 to 199", "200 to 299", "300 to 399", "400 to 419"]),
    ],
)
async def test_paging_over_hundreds_of_events(profile, server, order, seen):
    """Older and Newer lead through all events and back, in either order, and are disabled at the ends."""
    await post_numbers(server, "/n", 420)
    page = await open_console(profile, server)
    await go(page, "History")
    await ask(page, "/n", Order=order)
    older, newer = (page.get_by_role("button", name=name, exact=True) for name in ("Older", "Newer"))
    onward, back = (older, newer) if order == "newest" else (newer, older)
    await expect(back).to_have_attribute("aria-disabled", "true")

    async def expect_shown(span):
        first, last = span.split(" to ")
        await expect(recorded(page).locator("code").first).to_have_text(first)
        await expect(recorded(page).locator("code").last).to_have_text(last)

    await expect_shown(seen[0])
    for span in seen[1:]:
        await onward.press("Enter")
        await expect_shown(span)
        await expect(onward).to_be_focused()
    await expect(onward).to_have_attribute("aria-disabled", "true")
    await back.click()
    await expect_shown(seen[-2])


async def test_a_range_of_local_times(profile, server):
    """From and Until are in the reader's time zone; the buttons for time ranges fill them in."""
    await server.post({"channel": "/t", "data": "recorded"})
    page = await open_console(profile, server)
    await go(page, "History")
    await expect(recorded(page)).to_have_count(1)
    iso = await recorded(page).locator("time").get_attribute("datetime")
    at = datetime.fromisoformat(iso).timestamp()
    local = "(time) => new Date(time * 1000 - new Date().getTimezoneOffset() * 60000).toISOString().slice(0, 19)"
    before, after = await page.evaluate(local, at), await page.evaluate(local, at + 1)
    await ask(page, "/t", From=after, Until="")
    await expect(page.get_by_text("Nothing is recorded for /t in that time.")).to_be_visible()
    await ask(page, "/t", From=before, Until=after)
    await expect(recorded(page)).to_have_count(1)
    await ask(page, "/t", From="", Until=before)
    await expect(recorded(page)).to_have_count(0)
    await page.get_by_role("button", name="Last 5 min").click()
    await expect(recorded(page)).to_have_count(1)
    filled = await page.locator("#history").get_by_label("From", exact=True).input_value()
    assert abs(datetime.fromisoformat(filled).replace(tzinfo=None).timestamp() - (at - 300)) < 120
    await page.get_by_role("button", name="All", exact=True).click()
    await expect(page.locator("#history").get_by_label("From", exact=True)).to_have_value("")
    assert "T" in iso
    assert at <= datetime.now(UTC).timestamp()


async def test_a_channel_has_a_link_of_its_own(profile, server):
    """`#history?channel=` shows that channel's history, also if the view is already shown."""
    await server.post({"channel": "/a/b", "data": "one"}, {"channel": "/c", "data": "other"})
    page = await profile.open(f"{server.url}/#history?channel=/a/b")
    await expect(recorded(page).locator("code")).to_have_text(['"one"'])
    await expect(page.get_by_label("Read the history of")).to_have_value("/a/b")
    await page.evaluate("location.hash = '#history?channel=%2Fc'")
    await expect(recorded(page).locator("code")).to_have_text(['"other"'])


async def test_the_servers_own_topics_have_to_be_named(profile, server):
    """`/**` does not include the server's own topics, as the hint says; `/halley/**` shows them."""
    page = await open_console(profile, server)
    await go(page, "History")
    await expect(page.get_by_text("does not include the server's own topics")).to_be_visible()
    await expect(page.get_by_text("Nothing is recorded for /** in that time.")).to_be_visible()
    await ask(page, "/halley/**")
    await expect(recorded(page).first).to_contain_text("/halley/")


@pytest.mark.parametrize("channel", REFUSALS)
async def test_a_channel_that_is_none_is_refused(profile, server, channel):
    """The server's error is shown, and no request is sent to another path."""
    profile.expected = "status of 400"
    page = await open_console(profile, server)
    await go(page, "History")
    await ask(page, channel)
    await expect(said(page)).to_have_text(REFUSALS[channel])
    assert [url for url in profile.requested if "/rights?" in url] == []


async def test_a_search_that_is_cut_short_goes_on(profile, server):
    """Up to 20 empty pages are followed, then the reader can continue. Gaps are shown."""
    page = await open_console(profile, server)
    queries = []

    async def cut_short(route):
        queries.append(route.request.url)
        link = f"https://elsewhere.example/below/history/a?limit=100&reverse=true&cursor=before-{9000 - len(queries)}"
        found = [
            {"channel": "/a", "data": "found", "position": 5, "time": "2026-01-01T00:00:00.000000Z", "protocol": "wamp"}
        ]
        is_last = len(queries) == 23
        body = {"events": found if is_last else [], "next": None if is_last else link, "previous": None}
        if len(queries) == 2:
            body["gaps"] = [[100, 120]]
        await route.fulfill(json=body)

    await profile.context.route("**/history/**", cut_short)
    await go(page, "History")
    await expect(page.get_by_text("the search is not finished")).to_be_visible()
    await expect(page.get_by_text("Positions 100 to 120 were lost")).to_be_visible()
    assert len(queries) == 20
    await page.get_by_role("button", name="Older", exact=True).click()
    await expect(recorded(page)).to_contain_text('"found"')
    assert len(queries) == 23
    assert {url.startswith(f"{server.url}/history/**?") for url in queries} == {True}
    await profile.context.unroute_all(behavior="ignoreErrors")


async def test_without_a_history_the_view_says_so(profile, server, tmp_path):
    """Without a history the server's error is shown, and which options turn the history off."""
    await server.stop()
    (tmp_path / "halley.toml").write_text("[history]\nenabled = false\n")
    await server.start()
    profile.expected = "status of 404"
    page = await open_console(profile, server)
    await go(page, "History")
    await expect(said(page)).to_contain_text("history is off on this server")
    await expect(said(page)).to_contain_text("--history off")


async def test_what_the_role_may_not_read_is_named_by_the_missing_right(profile, server, tmp_path):
    """With access rules the view shows what the role may read, and for the rest which right it needs."""
    await server.stop()
    rules = '[[access]]\nrole = "*"\nverb = "subscribe"\npattern = "/open/**"\n'
    (tmp_path / "halley.toml").write_text(rules)
    await server.start()
    profile.expected = "status of 40"
    page = await profile.open(f"{server.url}/#history")
    await expect(state(page)).to_have_text("Connected")
    missing = "Sign in with a token that may subscribe to /** to read its history."
    await expect(said(page)).to_have_text(missing)
    await ask(page, "/open/**")
    await expect(page.get_by_text("Nothing is recorded for /open/** in that time.")).to_be_visible()


# Replay


def shown(page):
    """The data of events and the notes in the Overview's list, the oldest first."""
    return page.evaluate(
        """() => [...document.querySelectorAll("#events ol > li")].reverse()
            .map((row) => row.querySelector("code")?.textContent ?? row.lastChild.textContent)"""
    )


async def replay_from(page, data):
    """Replay from the event with that data on; returns its position, and the newest position that is shown."""
    row = recorded(page).filter(has=page.locator("code", has_text=re.compile(f"^{re.escape(data)}$")))
    first = int((await row.locator(".position").text_content()).replace(",", ""))
    positions = [int(text.replace(",", "")) for text in await recorded(page).locator(".position").all_text_contents()]
    await row.get_by_role("button").click()
    return first, max(positions)


def begun(pattern, position):
    return f"Replay of {pattern} from position {position}"


def ended(pattern, position):
    return f"The replay of {pattern} is complete, up to position {position}"


async def test_replay_from_here(profile, server):
    """The event itself and all later ones are received, then new ones, each once, with data as it was published."""
    await server.post(*({"channel": "/a/b", "data": {"n": number}} for number in range(10)))
    page = await open_console(profile, server)
    await go(page, "History")
    await ask(page, "/a/**")
    first, last = await replay_from(page, '{"n":3}')
    assert (first, last) == (4, 10)
    await expect(page.get_by_text(begun("/a/**", 4))).to_be_visible()
    await expect(page.get_by_text(ended("/a/**", 10))).to_be_visible()
    await expect_granted(page, "/a/**")
    await server.post({"channel": "/a/b", "data": "new"}, {"channel": "/other", "data": "beside"})
    await expect(events(page)).to_have_count(9)
    assert await shown(page) == [
        begun("/a/**", 4),
        *(json.dumps({"n": number}, separators=(",", ":")) for number in range(3, 10)),
        ended("/a/**", 10),
        '"new"',
        '"beside"',
    ]


async def test_what_is_subscribed_to_already_is_replayed_too(profile, server):
    """An existing subscription is replayed from the position on; others continue, and each event is shown once."""
    page = await open_console(profile, server)
    await subscribe(page, "/live/*")
    await expect_granted(page, "/live/*")
    await server.post(
        {"channel": "/live/a", "data": 1}, {"channel": "/b", "data": 2}, {"channel": "/live/a", "data": 3}
    )
    await expect(events(page)).to_have_count(3)
    await go(page, "History")
    first, last = await replay_from(page, "2")
    await expect(events(page)).to_have_count(5)
    await server.post({"channel": "/live/a", "data": 4}, {"channel": "/c", "data": 5})
    await expect(events(page)).to_have_count(7)
    again = [begun("/**", first), "2", "3", ended("/**", last)]
    assert await shown(page) == ["1", "2", "3", *again, "4", "5"]
    await expect_granted(page, "/**")
    await expect_granted(page, "/live/*")


async def test_many_events_are_replayed_while_new_ones_come(profile, server):
    """Recorded events and those published meanwhile are received in order, without gaps or repeats."""
    await post_numbers(server, "/n", 700)
    page = await open_console(profile, server)
    await page.get_by_role("button", name="Unsubscribe from /**").click()
    await expect(subscription(page, "/**")).to_have_count(0)
    await page.evaluate(
        """() => {
            window.seen = [];
            const list = document.querySelector("#events ol");
            new MutationObserver((changes) => {
                for (const { addedNodes } of [...changes].reverse())
                    for (const row of [...addedNodes].reverse()) if (row.querySelector("code"))
                        window.seen.push(Number(row.querySelector("code").textContent));
            }).observe(list, { childList: true });
        }"""
    )
    await go(page, "History")
    await ask(page, "/n", Order="oldest")
    await replay_from(page, "0")
    for first in range(700, 1000, 50):
        await post_numbers(server, "/n", 50, first)
    await expect(events(page).first.locator("code")).to_have_text("999")
    numbers = await page.evaluate("window.seen")
    assert numbers == sorted(set(numbers))  # rows that are outdated before they are drawn are dropped; none repeats
    counts = await page.locator("#counts").text_content()
    assert sum(map(int, re.findall(r"\d+", counts))) == 1_000


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL])
async def test_a_replay_goes_on_where_it_was_after_a_restart(profile, server, by):
    """After a restart a replayed subscription repeats no event, and misses none that was published in between."""
    profile.expected = "net::ERR_"
    await post_numbers(server, "/n", 5)
    page = await open_console(profile, server)
    await go(page, "History")
    await ask(page, "/n")
    await replay_from(page, "2")
    await expect(page.get_by_text(ended("/n", 5))).to_be_visible()
    await server.stop(by)
    await expect(state(page)).to_have_text("Reconnecting")
    await server.start()
    await post_numbers(server, "/n", 3, 5)
    await page.evaluate("document.querySelector('#retry').click()")
    await expect(state(page)).to_have_text("Connected")
    await expect_granted(page, "/n")
    await post_numbers(server, "/n", 1, 8)
    await expect(events(page).first.locator("code")).to_have_text("8")
    rows = await shown(page)
    assert [row for row in rows if row.isdigit()] == ["2", "3", "4", "5", "6", "7", "8"]
    assert "A new session began; events published in between are shown for /n only." in rows


async def test_values_are_replayed_once(profile, server):
    """Recorded values of NetworkTables are replayed; each later value is received once."""
    page = await open_console(profile, server)
    async with await nt4.connect(server.url, "robot") as robot:
        await robot.publish("/robot/speed", 1)
        for number in (1, 2):
            await robot.put(1, number, number + 0.5)
            await expect(events(page)).to_have_count(number)
            await wait_recorded(server, number)
        await go(page, "History")
        await ask(page, "/robot/**")
        first, last = await replay_from(page, "1.5")
        await expect(page.get_by_text(ended("/robot/**", last))).to_be_visible()
        await robot.put(1, 3, 3.5)
        await expect(events(page).first.locator("code")).to_have_text("3.5")
        again = [begun("/robot/**", first), "1.5", "2.5", ended("/robot/**", last)]
        assert await shown(page) == ["1.5", "2.5", *again, "3.5"]


async def wait_recorded(server, count):
    """Wait until `count` values are in the history."""
    async with httpx.AsyncClient(verify=False) as client:
        async with asyncio.timeout(DEADLINE_S):
            while len((await client.get(f"{server.url}/history/robot/speed")).json()["events"]) < count:
                await asyncio.sleep(0.02)


async def test_the_view_fits_a_phone(profile, server):
    """At widths of at least 360 pixels the page never scrolls sideways."""
    await server.post(
        {"channel": "/" + "long" * 50, "data": {"k" * 300: "v" * 300}}, {"channel": "/a", "data": "w " * 300}
    )
    page = await open_console(profile, server)
    await go(page, "History")
    await expect(recorded(page)).to_have_count(2)
    await recorded(page).last.locator("summary").click()
    outside = """() => [...document.querySelectorAll("#history :is(button, input, select, pre, .panel, summary > *)")]
        .filter((box) => box.checkVisibility() && box.getBoundingClientRect().right > innerWidth)
        .map((box) => box.outerHTML)"""
    for width in (360, 640, 960, 1280):
        await page.set_viewport_size({"width": width, "height": 740})
        assert await page.evaluate("document.scrollingElement.scrollWidth") <= width
        assert await page.evaluate(outside) == []
