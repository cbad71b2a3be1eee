"""The console in Chromium with forged and malformed data: it shows what it can, ignores the rest, and keeps working.

Without access rules, on a loopback listener, any client can publish to the server's own topics.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from copy import deepcopy

import pytest
from browser.conftest import SPEAKING_NT4
from browser.test_console import MARKUP, events, open_console, state, subscribe
from browser.test_history import go
from browser.test_overview import number, rates
from browser.test_pipeline_view import alert, expect_heard, rollup, told
from browser.test_sessions import told as session_told
from support import nt4

with suppress(ImportError):  # then the fixture `chromium` skips, or fails
    from playwright.async_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

STILL = "[ticks]\nevery_s = 0\n"
ODD = [None, "odd", 7, -1e308, 1e308, [], [None], {}, {"constructor": None}, MARKUP, "__proto__", True]
TIME = "2026-01-01T00:00:00Z"
BATCH = 100


def places(data, above=()):
    """Yield the path to each part of some data, the whole first."""
    yield above
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, part in items:
        yield from places(part, (*above, key))


def spoiled(data):
    """Yield the data with each of its parts replaced by a value that is wrong there, and with each member removed."""
    for *above, key in filter(None, places(data)):
        for odd in (*ODD, ...):
            copy = deepcopy(data)
            part = copy
            for step in above:
                part = part[step]
            if odd is not ...:
                part[key] = odd
            elif isinstance(part, dict):
                del part[key]
            yield copy
    yield from ODD


async def visit(page, server, view, subscriptions):
    """Go to a view, and wait until it is subscribed."""
    await go(page, view)
    await server.until_metric("halley_subscriptions", float(subscriptions))


async def tell(server, channel, data):
    """Publish valid data after many malformed variants of it."""
    wrong = list(spoiled(data))
    for first in range(0, len(wrong), BATCH):
        await server.post(*[{"channel": channel, "data": each} for each in wrong[first : first + BATCH]])
    await server.post({"channel": channel, "data": data})


def topic(channel):
    return {"channel": channel, "published": 3, "per_s": 1.5, "subscribers": 2, "last": TIME}


@pytest.mark.parametrize("server", [STILL + "[limits]\nqueue_events = 10000\n"], indirect=True)
async def test_forged_ticks_do_not_break_a_view(profile, server):
    """After ticks with missing, huge or wrongly typed parts, or names that all objects have, the next tick is shown."""
    page = await open_console(profile, server)
    await page.get_by_role("button", name="Unsubscribe from /**").click()
    history = {"first": 1, "head": 12, "bytes": 1, "recorded_per_s": 0.0, "lost": 0, "consumers": {}}
    await server.until_metric("halley_subscriptions", 1.0)
    past = [{"time": TIME, "protocols": rates(TIME)["protocols"]}]
    tick = rates("2027-01-01T00:00:00Z", dropped=41, limits_hit={"queue_events": 1}, history=history, past=past)
    await tell(server, "/halley/rates", tick)
    await expect(number(page, "Dropped")).to_have_text("41")
    await visit(page, server, "Channels", 2)
    await tell(server, "/halley/topics", {"time": TIME, "topics": [topic("/good/one")], "others": 0})
    await expect(page.locator("#channels tbody tr").filter(has_text="good")).to_be_visible()
    await visit(page, server, "Sessions", 3)
    who = {"session": "0" * 16, "protocol": "bayeux", "authid": "good", "role": "member"}
    for event in ({"event": "opened", "address": "::1"}, {"event": "closed", "reason": "why"}):
        await tell(server, "/halley/sessions", {**event, **who})
    made = {"event": "subscribed", "session": "1" * 16, "protocol": "wamp", "channels": ["/good"]}
    await tell(server, "/halley/subscriptions", made)
    await tell(server, "/halley/queues", {"time": TIME, "sessions": [session_told(5)], "others": 0})
    await expect(page.locator("#sessions tbody tr").filter(has_text="user-5")).to_be_visible()
    await expect(page.get_by_role("list", name="Latest changes")).to_contain_text("/good")
    assert await page.evaluate("window.attacked") is None


async def test_forged_findings_do_not_break_the_pipelines_view(profile, server):
    """The view still works after malformed results were published, and after it has read them from the history."""
    page = await open_console(profile, server)
    await page.get_by_role("button", name="Unsubscribe from /**").click()
    jobs = told(("ingest", 12, 1, 2.0, 5.0, {"good": 3}))
    figures = {"price": {"count": 5, "min": 1.0, "mean": 2.0, "max": 3.0, "p50": 2.0}}
    for view in ("Pipeline", "History", "Pipeline"):
        await visit(page, server, view, 3 if view == "Pipeline" else 0)
        if view == "Pipeline":
            for message in (jobs, rollup("good/one", 1, 10, numbers=figures), alert("good/one", "spike", 1)):
                await tell(server, message["channel"], message["data"])
            await expect(page.get_by_role("list", name="Jobs")).to_contain_text("3 good")
            await expect(page.locator("#pipeline tbody tr").filter(has_text="/good/one").first).to_contain_text("price")
            await expect(page.locator("#pipeline .alerts li").filter(has_text="/good/one").first).to_be_visible()
    assert await page.evaluate("window.attacked") is None


@pytest.mark.parametrize("server", [STILL], indirect=True)
async def test_names_that_every_object_has_are_names(profile, server):
    """A protocol or channel that has the name of a property of all objects is shown by that name."""
    page = await open_console(profile, server)
    names = ["__proto__", "constructor", "toString"]
    for name in names:
        await server.post({"channel": f"/{name}/__proto__", "data": json.loads('{"__proto__": {"x": 1}, "a": 2}')})
    await expect(events(page)).to_have_count(3)
    await expect(events(page).first).to_contain_text('{"__proto__":{"x":1},"a":2}')
    await visit(page, server, "Sessions", 4)
    sessions = [session_told(at, protocol=name, authid=MARKUP, subscriptions=[MARKUP]) for at, name in enumerate(names)]
    await server.post({"channel": "/halley/queues", "data": {"time": TIME, "sessions": sessions, "others": 0}})
    for name in names:
        row = page.locator("#sessions tbody tr").filter(has_text=name)
        await expect(row.locator(".badge")).to_have_text(name)
        await expect(row).to_contain_text(MARKUP)
    await go(page, "Channels")
    channels = [topic(f"/{name}") for name in names] + [topic("/" + "/".join("x" * 127)), topic("/" + "y" * 254)]
    tick = {"channel": "/halley/topics", "data": {"time": TIME, "topics": channels, "others": 0}}
    await expect_heard(server, tick, page.locator("#channels-counts").filter(has_text="5 channels"))
    await expect(page.locator("#channels-counts")).to_have_text("5 channels")
    await page.locator("#channels-filter").fill("__proto__")
    await expect(page.locator("#channels tbody tr")).to_have_count(1)
    assert await page.evaluate("window.attacked") is None


@pytest.mark.parametrize("server", [STILL], indirect=True)
async def test_when_the_servers_clock_is_set_back_the_numbers_go_on(profile, server):
    """After the clock was set back by an hour, charts and numbers are current; a forged tick of 2999 has no effect."""
    page = await open_console(profile, server)
    for time, dropped in (("2999-01-01T00:00:00Z", 1), ("2026-01-01T02:00:00Z", 2), ("2026-01-01T01:00:00Z", 3)):
        await server.post({"channel": "/halley/rates", "data": rates(time, dropped=dropped)})
        await expect(number(page, "Dropped")).to_have_text(str(dropped))
        line = page.locator("#charts path.line[data-protocol=bayeux]").first
        await expect(line).to_have_attribute("d", re.compile(r"^M[\d.]+ [\d.]+h0$"))


@pytest.mark.nightly
async def test_odd_addresses_show_some_view(profile, server):
    """The URL's fragment can be anything: it is treated as text, and an unknown name shows the first view."""
    profile.expected = "the server responded with a status of 4"
    for wanted in (
        "__proto__",
        "constructor?channel=/a",
        "channels?channel=__proto__",
        "channels?channel=/a/__proto__",
    ):
        page = await profile.open(f"{server.url}/#{wanted}")
        await expect(state(page)).to_have_text("Connected")
        await expect(page.locator(".view:visible")).to_have_count(1)
        await page.close()
    for wanted in (MARKUP, "/" + MARKUP, "/../rights", "/a/%ED%A0%80", "/" + "x" * 5_000, "/**"):
        page = await profile.open(f"{server.url}/#history?channel={wanted}")
        await expect(page.locator("#history [role=status]")).not_to_have_text(re.compile("^(Reading …)?$"))
        assert await page.evaluate("window.attacked") is None
        await page.close()


@pytest.mark.parametrize("server", [SPEAKING_NT4], indirect=True)
async def test_markup_in_networktables_is_text(profile, server):
    """Markup in a topic's name, a value and a robot's name is shown as text."""
    name = f"/robot/{MARKUP}"
    async with await nt4.connect(server.url, "<img src=x onerror=alert(1)>") as robot:
        await robot.publish(name, 1, "string")
        await robot.put(1, 1_000, MARKUP, nt4.STRING)
        page = await profile.open(f"{server.url}/#tables")
        await expect(page.locator("#tables li")).to_contain_text(MARKUP.split("/", maxsplit=1)[0])
        await expect(page.locator("#tables textarea")).to_have_value(MARKUP)
        await go(page, "Sessions")
        await expect(page.locator("#sessions tbody tr").filter(has_text="<img src=x onerror")).to_be_visible()
        assert await page.evaluate("window.attacked") is None


async def test_where_storage_is_switched_off_it_works_all_the_same(profile, server):
    """Without session storage nothing is remembered, and there is no error."""
    await profile.context.add_init_script(
        "Object.defineProperty(window, 'sessionStorage', { get() { throw new DOMException('no', 'SecurityError'); } });"
    )
    page = await open_console(profile, server)
    await subscribe(page, "/a")
    await page.get_by_role("button", name="Token", exact=True).click()
    await page.get_by_label("Token", exact=True).fill("a token")
    await page.get_by_role("button", name="Use", exact=True).click()
    await expect(page.locator("#role")).to_have_text("You are anonymous")
    await expect(page.get_by_text("This server reads no tokens")).to_be_visible()
    await page.get_by_role("button", name="Close", exact=True).click()
    await expect(page.get_by_role("dialog")).to_be_hidden()


@pytest.mark.parametrize("token", ["schlüssel ☃", "two words", "\u0000\u0001"])
async def test_a_token_that_no_header_can_carry_is_nobodys(token, profile, server):
    """Rights and history are still requested, without the token, and the requests succeed."""
    page = await open_console(profile, server)
    await page.get_by_role("button", name="Token", exact=True).click()
    await page.get_by_label("Token", exact=True).fill(token)
    await page.get_by_role("button", name="Use", exact=True).click()
    await expect(page.locator("#role")).to_have_text("You are anonymous")
    await expect(page.get_by_text("This server reads no tokens")).to_be_visible()
    await page.get_by_role("button", name="Close", exact=True).click()
    await expect(page.get_by_role("dialog")).to_be_hidden()
    await go(page, "History")
    await expect(page.locator("#history [role=status]")).to_contain_text("event")


@pytest.mark.parametrize(("status", "body"), [(500, "<h1>Oops</h1>"), (200, "<h1>Log in</h1>"), (200, "null")])
async def test_a_proxy_that_answers_in_the_servers_place_breaks_nothing(status, body, profile, server):
    """Rights are then unknown, and views show an error instead of the history."""
    profile.expected = "the server responded with a status of 500"
    for path in ("rights", "history/**"):
        await profile.context.route(f"{server.url}/{path}*", lambda route: route.fulfill(status=status, body=body))
    page = await open_console(profile, server)
    await go(page, "History")
    await expect(page.locator("#history [role=status]")).to_have_class(re.compile("bad"))
    await go(page, "Sessions")
    await expect(page.locator("#sessions-past")).to_contain_text("Earlier changes cannot be shown")
    await go(page, "Pipeline")
    await expect(page.locator("#pipeline-earlier")).to_contain_text("Cannot read earlier results: ")
