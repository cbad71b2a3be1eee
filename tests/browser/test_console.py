"""The console in Chromium: its connection, the list of events, subscriptions and the form for publishing."""

from __future__ import annotations

import re
import shlex
import signal
from contextlib import suppress

import httpx
import pytest
from browser.conftest import SPEAKING_NT4, keep
from support.socket_gate import BLOCKING, gate

with suppress(ImportError):  # then the fixture `chromium` skips, or fails
    from playwright.async_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

MARKUP = "<img src=x onerror='window.attacked = true'><script>window.attacked = true</script><b>bold</b>"

NO_JSON = [
    ('{"text": "a",\n "b" }', 'Not JSON at line 2, column 6: expected ":", found }'),
    ("[1, 2", 'Not JSON at line 1, column 6: expected "," or "]", found the end'),
    ("", "Not JSON at line 1, column 1: expected a value, found the end"),
    ("[true,\n\n  hello]", "Not JSON at line 3, column 3: expected a value, found hello"),
    ("{a: 1}", 'Not JSON at line 1, column 2: expected a name in "quotes", found a'),
    ('["half', "Not JSON at line 1, column 2: this string is not closed or has a character that must be escaped"),
    ("[1] 2", "Not JSON at line 1, column 5: expected the end, found 2"),
    ("01", "Not JSON at line 1, column 2: expected the end, found 1"),
    ("[12345678901234567890]", "Integer beyond 53 bits: a browser would round it to 12345678901234567000"),
]


async def open_console(profile, server):
    """Open the console in a new tab, and wait until it is connected and subscribed to `/**`."""
    page = await profile.open(server.url)
    await expect(state(page)).to_have_text("Connected")
    await expect_granted(page, "/**")
    return page


def subscription(page, pattern):
    """The line of a pattern in the list of subscriptions."""
    name = page.get_by_text(pattern, exact=True)
    return page.get_by_role("list", name="Subscribed channels").get_by_role("listitem").filter(has=name)


async def expect_granted(page, pattern):
    """Wait until the server has granted a subscription, so that the page no longer shows it as waiting."""
    await expect(subscription(page, pattern)).to_be_visible()
    await expect(subscription(page, pattern).get_by_text("waiting")).to_be_hidden()


def events(page):
    """The rows of events."""
    return page.get_by_role("list", name="Events").locator("li:has(summary)")


def state(page):
    """The element that shows the connection's state."""
    return page.locator("#state")


async def subscribe(page, pattern):
    await page.get_by_label("Channel or pattern").fill(pattern)
    await page.get_by_role("button", name="Subscribe", exact=True).click()


async def publish(page, channel, data):
    await page.get_by_label("Channel", exact=True).fill(channel)
    await page.get_by_label("Data, as JSON").fill(data)
    await page.get_by_role("button", name="Publish", exact=True).click()


async def test_it_connects_by_itself_and_asks_no_other_host(profile, server):
    """The page connects when it is opened, shows its session, and loads everything from the server itself."""
    page = await open_console(profile, server)
    await expect(page.locator("#detail")).to_have_text(re.compile("^WebSocket, session [0-9a-f]{8}$"))
    assert {url.startswith(f"{server.url}/") for url in profile.requested} == {True}
    assert f"{server.url}/favicon.ico" not in profile.requested


async def test_it_finds_the_server_at_another_path(profile, server):
    """`?server=` names the path of the Bayeux endpoint, for servers that have moved it."""
    page = await profile.open(f"{server.url}/?server=/cometd")
    await expect(state(page)).to_have_text("Connected")
    assert f"{server.url}/cometd" in profile.requested
    assert server.bayeux not in profile.requested


async def test_what_one_tab_publishes_another_shows(profile, server):
    """A47, A50: an event of one tab is shown once in both, with its channel, its time and its data."""
    first = await open_console(profile, server)
    second = await open_console(profile, server)
    await subscribe(first, "/chat/*")
    await expect_granted(first, "/chat/*")
    await publish(second, "/chat/hall", '{"text": "Hello"}')
    await expect(second.get_by_text("Published to /chat/hall")).to_be_visible()
    for page in (first, second):
        await expect(events(page)).to_have_count(1)
        await expect(events(page)).to_have_text(re.compile(r'^\d\d:\d\d:\d\d\.\d{3}/chat/hall\{"text":"Hello"\}$'))
        await expect(page.locator("#counts")).to_have_text("1 shown")


async def test_only_one_tab_holds_a_connect_and_the_other_takes_over(profile, server):
    """B9: without WebSockets the second tab is advised to poll, and shows that, until the first is closed."""
    await profile.poll()
    first = await open_console(profile, server)
    second = await open_console(profile, server)
    await expect(first.locator("#detail")).to_contain_text("long-polling")
    await expect(second.locator("#detail")).to_contain_text("polling every 2 s, as another tab holds the connection")
    await first.close()
    await server.until_metric('halley_sessions{protocol="bayeux"}', 1.0)
    await server.until_metric("halley_holds", 1.0)
    await server.post({"channel": "/a", "data": "to the last tab"})
    await expect(events(second)).to_contain_text("to the last tab")
    await expect(second.locator("#detail")).to_contain_text("long-polling")


async def test_each_tab_has_a_websocket_of_its_own(profile, server):
    """The limit of connects that are held for one browser is for polls alone: all tabs get events at once."""
    tabs = [await open_console(profile, server) for _ in range(8)]
    for tab in tabs:
        await expect(tab.locator("#detail")).to_contain_text("WebSocket")
    await server.post({"channel": "/a", "data": "to all tabs"})
    for tab in tabs:
        await expect(events(tab)).to_contain_text("to all tabs")
    for tab in tabs[1:]:
        await tab.goto("about:blank")
    await server.until_metric('halley_sessions{protocol="bayeux"}', 1.0)


@pytest.mark.parametrize("way", BLOCKING)
async def test_where_websockets_are_blocked_it_polls_and_says_so(profile, server, way):
    """Refused by a proxy, silent before or after the upgrade, closed after it; nothing else is different."""
    profile.expected = "WebSocket connection to"
    async with gate(server.port) as front:
        front.way = way
        page = await profile.open(front.url)
        await expect(state(page)).to_have_text("Connected")
        await expect(page.locator("#detail")).to_have_text(re.compile("^long-polling, session [0-9a-f]{8}$"))
        await keep(page, f"console-{way}")
        await expect_granted(page, "/**")
        await server.post({"channel": "/a", "data": 1})
        await expect(events(page)).to_have_count(1)
        assert front.asked == 1
        await page.close()


async def test_a_websocket_that_is_cut_comes_back_with_its_session(profile, server):
    """What was published in between is shown once and in order."""
    profile.expected = "WebSocket connection to"
    async with gate(server.port) as front:
        page = await profile.open(front.url)
        await expect(page.locator("#detail")).to_contain_text("WebSocket")
        session = await page.locator("#detail").text_content()
        await subscribe(page, "/a")
        await expect_granted(page, "/a")
        for number in range(30):
            if number % 10 == 5:
                front.cut()
            await server.post({"channel": "/a", "data": number})
        await expect(events(page)).to_have_count(30)
        shown = await events(page).all_text_contents()
        assert [int(text.rpartition("/a")[2]) for text in shown] == [*reversed(range(30))]
        await expect(page.locator("#detail")).to_have_text(session)
        await page.close()


async def test_after_unsubscribing_nothing_more_comes(profile, server):
    """A55: of two events, only the one on the channel that is still subscribed to is shown."""
    page = await open_console(profile, server)
    for pattern in ("/kept", "/dropped"):
        await subscribe(page, pattern)
        await expect_granted(page, pattern)
    for pattern in ("/**", "/dropped"):
        await page.get_by_role("button", name=f"Unsubscribe from {pattern}").click()
        await expect(subscription(page, pattern)).to_have_count(0)
    await publish(page, "/dropped", "1")
    await expect(page.get_by_text("Published to /dropped")).to_be_visible()
    await publish(page, "/kept", "2")
    await expect(events(page)).to_have_count(1)
    await expect(events(page)).to_contain_text("/kept")


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL])
async def test_a_server_that_comes_back_is_found_again(profile, server, by):
    """B30: after the server was stopped or killed and started again, the page reconnects without a reload.

    It receives events again, and notes that events may be missing.
    """
    profile.expected = "net::ERR_"
    page = await open_console(profile, server)
    await page.evaluate("window.isTheSamePage = true")
    before = await page.locator("#detail").text_content()
    await server.stop(by)
    await expect(state(page)).to_have_text("Reconnecting")
    await expect(page.get_by_role("alert")).to_have_text("the server cannot be reached")
    await server.start()
    await expect(state(page)).to_have_text("Connected")
    await expect(page.get_by_role("alert")).to_have_text("")
    await expect(page.locator("#detail")).not_to_have_text(before)
    await expect_granted(page, "/**")
    await server.post({"channel": "/after", "data": "the restart"})
    await expect(events(page)).to_contain_text('"the restart"')
    await expect(page.get_by_text("A new session began; events published in between are not shown.")).to_have_count(1)
    assert await page.evaluate("window.isTheSamePage")


async def test_the_reader_need_not_wait_for_the_next_try(profile, server):
    """While the server is down the page shows when it tries again; Try now connects immediately, Disconnect stops."""
    profile.expected = "net::ERR_"
    await profile.poll()
    page = await open_console(profile, server)
    await server.stop(signal.SIGKILL)
    await expect(page.locator("#detail")).to_have_text(re.compile(r"^next try in \d+ s$"))
    await page.evaluate("addEventListener('click', () => { window.isClicked = true; }, {capture: true})")

    async def pass_on_behind_the_click(route):  # it must not reconnect by itself before that
        await (route.fallback() if await page.evaluate("window.isClicked") else route.abort())

    await page.route("**/bayeux", pass_on_behind_the_click)
    await server.start()
    await expect(page.locator("#detail")).to_have_text(re.compile(r"^next try in ([2-9]|\d\d) s$"))
    await page.get_by_role("button", name="Try now").click()
    await expect(state(page)).to_have_text("Connected")
    await expect(page.get_by_role("button", name="Try now")).to_be_hidden()
    await server.stop(signal.SIGKILL)
    await expect(state(page)).to_have_text("Reconnecting")
    await page.get_by_role("button", name="Disconnect").click()
    await expect(state(page)).to_have_text("Disconnected")
    await expect(page.get_by_role("button", name="Try now")).to_be_hidden()


async def test_events_whose_answer_was_lost_come_again(profile, server):
    """B17: if a response is lost, the page does not acknowledge its events, and receives them again."""
    profile.expected = "net::ERR_FAILED"
    await profile.poll()
    lost = []

    async def lose_it_once(route):
        response = await route.fetch()
        if b"precious" in await response.body() and not lost:
            lost.append(route.request.post_data_json[0]["channel"])
            await route.abort()
        else:
            await route.fulfill(response=response)

    await profile.context.route("**/bayeux", lose_it_once)
    page = await open_console(profile, server)
    await server.post({"channel": "/a", "data": "precious"}, {"channel": "/a", "data": "less so"})
    await expect(events(page)).to_have_count(2)
    await expect(events(page).first).to_contain_text("less so")
    await expect(events(page).last).to_contain_text("precious")
    assert lost == ["/meta/connect"]
    await profile.context.unroute_all(behavior="ignoreErrors")


async def test_markup_in_events_is_shown_and_never_obeyed(profile, server):
    """Markup in data is shown as text, in the row and unfolded; it creates no element and runs no code."""
    page = await open_console(profile, server)
    await server.post({"channel": "/a", "data": {MARKUP: MARKUP}})
    await expect(events(page)).to_contain_text("<img src=x onerror='window.attacked = true'>")
    await events(page).locator("summary").click()
    await expect(events(page).locator("pre")).to_contain_text("<b>bold</b>")
    assert await page.get_by_role("list", name="Events").locator("img, script, b").count() == 0
    assert await page.evaluate("window.attacked") is None


async def test_refusals_say_why_in_words(profile, server):
    """A68: a refused subscription or publish says what is wrong; what nobody may subscribe to is not listed."""
    page = await open_console(profile, server)
    await subscribe(page, "/meta/connect")
    await expect(page.get_by_text("No client may subscribe to /meta/connect.")).to_be_visible()
    await expect(subscription(page, "/meta/connect")).to_have_count(0)
    await publish(page, "/meta/nothing", "1")
    await expect(page.get_by_text("No client may publish to /meta/nothing.")).to_be_visible()
    for pattern in ("demo", "/a/**/b"):
        await subscribe(page, pattern)
        await expect(
            page.get_by_text("a pattern begins with /, and only its last segment can be * or **")
        ).to_be_visible()
        await expect(subscription(page, pattern)).to_have_count(0)
    await publish(page, "demo", "1")
    await expect(page.get_by_text("Cannot publish this: a channel begins with /")).to_be_visible()
    await subscribe(page, "/demo/**")
    await expect_granted(page, "/demo/**")
    await expect(page.locator("#subscriptions .bad")).to_have_count(0)


async def test_what_is_no_json_is_named_with_its_place_and_not_published(profile, server):
    """While the reader types, the page shows where data is not JSON, or which number a browser would alter (S11)."""
    page = await open_console(profile, server)
    data = page.get_by_label("Data, as JSON")
    for text, complaint in NO_JSON:
        await data.fill(text)
        await expect(page.get_by_text(complaint, exact=True)).to_be_visible()
        await page.get_by_role("button", name="Publish", exact=True).click()
        await expect(data).to_be_focused()
        await expect(data).to_have_attribute("aria-invalid", "true")
    await data.fill("[1e300, 9007199254740991]")
    await expect(page.get_by_text("Not JSON")).to_have_count(0)
    await data.press("Control+Enter")
    await expect(events(page)).to_have_count(1)
    await expect(events(page)).to_contain_text("[1e+300,9007199254740991]")


async def test_the_command_it_proposes_works(profile, server):
    """Without events the page shows a curl command; a request as curl sends it publishes the first event."""
    page = await open_console(profile, server)
    program, url, option, body = shlex.split(await page.locator("#command").text_content())
    assert (program, url, option) == ("curl", server.bayeux, "-d")
    async with httpx.AsyncClient(verify=False) as client:
        response = await client.post(url, content=body, headers={"content-type": "application/x-www-form-urlencoded"})
    assert response.json()[0]["successful"] is True
    await expect(events(page)).to_contain_text('/demo/hello{"text":"Hello from a terminal"}')
    await expect(page.locator("#command")).to_be_hidden()


async def test_the_list_keeps_the_newest_500(profile, server):
    """The page keeps the newest 500 events, the newest on top, and shows the number of older ones."""
    page = await open_console(profile, server)
    await server.post(*({"channel": "/n", "data": number} for number in range(600)))
    await expect(page.locator("#counts")).to_have_text("500 shown, 100 older")
    await server.post({"channel": "/n", "data": 600})
    await expect(page.locator("#counts")).to_have_text("500 shown, 101 older")
    await expect(events(page)).to_have_count(500)
    await expect(events(page).first.locator("code")).to_have_text("600")
    await expect(events(page).last.locator("code")).to_have_text("101")


async def test_events_can_be_paused_and_cleared(profile, server):
    """During a pause at most 500 events wait; Clear empties the list and resets the counts."""
    page = await open_console(profile, server)
    counts = page.locator("#counts")
    await server.post({"channel": "/a", "data": "before"})
    await expect(events(page)).to_have_count(1)
    await page.get_by_role("button", name="Pause").click()
    await server.post({"channel": "/a", "data": "later"})
    await expect(counts).to_have_text("1 shown, 1 waiting")
    await server.post(*({"channel": "/n", "data": number} for number in range(600)))
    await expect(counts).to_have_text("1 shown, 500 waiting, 101 older")
    await expect(events(page)).to_have_count(1)
    await page.get_by_role("button", name="Resume").click()
    await expect(counts).to_have_text("500 shown, 102 older")
    await page.get_by_role("button", name="Clear").click()
    await expect(counts).to_have_text("0 shown")
    await expect(page.get_by_text("No events yet.")).to_be_visible()


async def test_data_unfolds_indented(profile, server):
    """A row unfolds to indented JSON, by keyboard too."""
    page = await open_console(profile, server)
    await server.post({"channel": "/a", "data": {"deep": [1, None]}})
    await events(page).locator("summary").press("Enter")
    await expect(events(page).locator("pre")).to_be_visible()
    assert await events(page).locator("pre").text_content() == '{\n  "deep": [\n    1,\n    null\n  ]\n}'


async def test_bytes_are_shown_by_their_number(profile, server):
    """Bytes, as WAMP writes them in JSON, are counted in a row, and whole where it unfolds; other strings stay."""
    page = await open_console(profile, server)
    data = {"bytes": "\0AQI=", "one": ["\0AQ"], "none": "\0", "text": 'a "\0AQI=" b', "odd": "\0no base64"}
    await server.post({"channel": "/a", "data": data}, {"channel": "/b", "data": "\0AAECAwQFBgc="})
    await expect(events(page).first.locator("code")).to_have_text("8 bytes")
    await expect(events(page).last.locator("code")).to_have_text(
        r'{"bytes":2 bytes,"one":[1 byte],"none":0 bytes,"text":"a \"\u0000AQI=\" b","odd":"\u0000no base64"}'
    )
    await events(page).first.locator("summary").click()
    await expect(events(page).first.locator("pre")).to_have_text(r'"\u0000AAECAwQFBgc="')


@pytest.mark.parametrize("width", [360, 1280])
async def test_an_event_takes_one_line(profile, server, width):
    """However long its channel and its data are; a click shows all of both, and another hides them again."""
    page = await open_console(profile, server)
    await page.set_viewport_size({"width": width, "height": 740})
    long = "/" + "long" * 50
    text = "word " * 300 + "end"
    await server.post({"channel": "/a", "data": 1}, {"channel": long, "data": {"text": text, "lines": "1\n2"}})
    await expect(events(page)).to_have_count(2)
    heights = "rows => rows.map((row) => row.getBoundingClientRect().height)"
    row, short = await events(page).locator("summary").evaluate_all(heights)
    assert row == short < 40
    await events(page).first.locator("summary").click()
    await expect(events(page).first.locator("pre")).to_contain_text(text)
    name = events(page).first.locator(".channel")
    assert await name.evaluate("name => name.scrollWidth <= name.clientWidth")
    await events(page).first.locator("summary").click()
    assert await events(page).locator("summary").evaluate_all(heights) == [row, short]


async def test_disconnecting_ends_the_session_and_connecting_begins_another(profile, server):
    """A52: after Disconnect the session is closed and the page receives nothing; Connect restores its subscriptions."""
    page = await open_console(profile, server)
    await page.get_by_role("button", name="Disconnect").click()
    await expect(state(page)).to_have_text("Disconnected")
    await server.until_metric('halley_sessions_closed_total{reason="disconnected"}', 1.0)
    await expect(subscription(page, "/**").get_by_text("waiting")).to_be_visible()
    await publish(page, "/a", "1")
    await expect(page.get_by_text("Not published: not connected")).to_be_visible()
    await server.post({"channel": "/a", "data": "unheard"})
    await page.get_by_role("button", name="Connect", exact=True).click()
    await expect(state(page)).to_have_text("Connected")
    await expect_granted(page, "/**")
    await publish(page, "/a", '"heard"')
    await expect(events(page)).to_have_count(1)
    await expect(events(page)).to_contain_text('"heard"')


async def test_a_page_that_is_left_takes_its_session_with_it(profile, server):
    """A52: leaving the page ends its session immediately, without waiting for the reply; going back begins another."""
    page = await open_console(profile, server)
    await server.until_metric('halley_sessions{protocol="bayeux"}', 1.0)
    await page.goto("about:blank")
    await server.until_metric('halley_sessions_closed_total{reason="disconnected"}', 1.0)
    await page.go_back()
    await expect(state(page)).to_have_text("Connected")


async def test_a_reload_keeps_the_tabs_subscriptions(profile, server):
    """After a reload a tab has the subscriptions that it had before, and no others."""
    page = await open_console(profile, server)
    await subscribe(page, "/mine")
    await page.get_by_role("button", name="Unsubscribe from /**").click()
    await page.reload()
    await expect_granted(page, "/mine")
    await expect(subscription(page, "/**")).to_have_count(0)


@pytest.mark.parametrize("server", [SPEAKING_NT4], indirect=True, ids=["every-protocol"])
async def test_it_fits_its_window(profile, server):
    """At widths of at least 360 pixels the page never scrolls sideways, however long channels, data and errors are."""
    page = await open_console(profile, server)
    long = "/" + "long" * 50
    await server.post({"channel": long, "data": {"k" * 300: "v" * 300}}, {"channel": "/a", "data": "word " * 300})
    await expect(events(page)).to_have_count(2)
    await events(page).last.locator("summary").click()
    await subscribe(page, f"/meta{long}")
    await publish(page, long, f'"{"w" * 500}"')
    await expect(events(page)).to_have_count(3)
    outside = """() => [...document.querySelectorAll("button, input, textarea, pre, output, .panel")]
        .filter((box) => box.checkVisibility() && box.getBoundingClientRect().right > innerWidth)
        .map((box) => box.outerHTML)"""
    for width in (360, 400, 640, 960, 1280):
        await page.set_viewport_size({"width": width, "height": 740})
        assert await page.evaluate("document.scrollingElement.scrollWidth") <= width
        assert await page.evaluate(outside) == []


@pytest.mark.parametrize("view", ["overview", "tables", "pipeline"])
async def test_on_a_phone_the_views_link_is_to_be_seen(profile, server, view):
    """The row of links is wider than a phone; it is scrolled to the current view's link."""
    page = await profile.context.new_page()
    await page.set_viewport_size({"width": 360, "height": 740})
    await page.goto(f"{server.url}/#{view}")
    link = page.locator("nav a[aria-current]")
    await expect(link).to_have_attribute("href", f"#{view}")
    await expect(link).to_be_in_viewport(ratio=1)


async def test_every_control_has_a_name(profile, server):
    """Each input and button has a name for screen readers."""
    page = await open_console(profile, server)
    nameless = """() => [...document.querySelectorAll("input, textarea, button")]
        .filter((control) => !control.labels?.length && !control.ariaLabel && !control.textContent.trim())
        .map((control) => control.outerHTML)"""
    assert await page.evaluate(nameless) == []


async def test_a_keyboard_reader_keeps_the_focus(profile, server):
    """Unsubscribing by keyboard moves the focus to the next subscription, and after the last to the input."""
    page = await open_console(profile, server)
    await subscribe(page, "/a")
    await page.get_by_role("button", name="Unsubscribe from /**").press("Enter")
    await expect(page.get_by_role("button", name="Unsubscribe from /a")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.get_by_label("Channel or pattern")).to_be_focused()


async def test_light_and_dark_follow_the_readers_system(profile, server):
    """The page takes its colours from `prefers-color-scheme`."""
    page = await open_console(profile, server)
    background = "getComputedStyle(document.body).backgroundColor"
    seen = []
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=scheme)
        seen.append(await page.evaluate(background))
    assert seen == ["rgb(238, 241, 247)", "rgb(8, 12, 23)"]


async def test_a_server_alone_has_no_view_of_a_cluster(profile, server):
    page = await open_console(profile, server)
    await expect(page.get_by_role("link", name="Cluster")).to_be_hidden()
