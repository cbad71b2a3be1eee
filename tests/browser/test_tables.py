"""The view NetworkTables in Chromium: it shows a robot's values, and the reader can set them."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from browser.conftest import SPEAKING_NT4
from browser.test_console import events, open_console, state
from browser.test_history import go
from support import nt4

with suppress(ImportError):  # then the fixture `chromium` skips, or fails
    from playwright.async_api import expect

pytestmark = [
    pytest.mark.browser,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("server", [SPEAKING_NT4], indirect=True, ids=["nt4"]),
]

STRINGS = nt4.ARRAY + nt4.STRING


async def open_tables(profile, server):
    page = await open_console(profile, server)
    await go(page, "NetworkTables")
    return page


def topics(page):
    """The rows of topics."""
    return page.get_by_role("list", name="Topics").get_by_role("listitem")


def row(page, name):
    """The row of a topic."""
    return topics(page).filter(has=page.get_by_text(name, exact=True))


def value(page, name):
    """The control that shows and sets a topic's value."""
    return page.get_by_label(f"Value of {name}", exact=True)


async def publish_one_of_each(robot):
    """Topics 1 to 6, each of another type, with a value."""
    kinds = [
        ("/robot/enabled", "boolean", nt4.BOOLEAN, True),
        ("/robot/speed", "double", nt4.DOUBLE, 2.5),
        ("/robot/mode", "int", nt4.INT, 7),
        ("/robot/arm/Auto Chooser", "string", nt4.STRING, "left"),
        ("/robot/names", "string[]", STRINGS, ["a", "b"]),
        ("/robot/blob", "raw", nt4.RAW, b"\x01\x02"),
    ]
    for pubuid, (name, type_name, number, content) in enumerate(kinds, 1):
        await robot.publish(name, pubuid, type_name)
        await robot.put(pubuid, pubuid, content, number)
    await robot.subscribe("/robot/", prefix=True, all=True)
    for name, *_ in kinds:
        await robot.value(name)


async def test_each_type_is_shown_in_a_control_of_its_own(profile, server):
    """Values from before the view was opened are shown; a value of a type without a JSON form cannot be set."""
    async with await nt4.connect(server.url, "robot") as robot:
        await publish_one_of_each(robot)
        page = await open_tables(profile, server)
        await expect(topics(page)).to_have_count(6)
        await expect(page.get_by_role("switch", name="Value of /robot/enabled")).to_be_checked()
        await expect(value(page, "/robot/speed")).to_have_value("2.5")
        await expect(value(page, "/robot/mode")).to_have_value("7")
        await expect(value(page, "/robot/arm/Auto Chooser")).to_have_value("left")
        await expect(value(page, "/robot/names")).to_have_value('["a","b"]')
        await expect(row(page, "/robot/blob").locator("code")).to_have_text("2 bytes")
        await expect(row(page, "/robot/blob").locator("input, textarea")).to_have_count(0)
        await expect(row(page, "/robot/mode")).to_have_text(re.compile(r"^/robot/modeint\d+ sSetCancel$"))
        await robot.put(2, 20, -1.25)
        await expect(value(page, "/robot/speed")).to_have_value("-1.25")


async def test_what_is_set_here_reaches_the_robot_and_another_tab(profile, server):
    """Each control publishes a value of its topic's type, with a key press, Enter or the button Set."""
    async with await nt4.connect(server.url, "robot") as robot:
        await publish_one_of_each(robot)
        page = await open_tables(profile, server)
        other = await open_tables(profile, server)
        await expect(topics(page)).to_have_count(6)
        await expect(topics(other)).to_have_count(6)
        await page.get_by_role("switch", name="Value of /robot/enabled").press("Space")
        assert (await robot.value("/robot/enabled")).value is False
        await expect(other.get_by_role("switch", name="Value of /robot/enabled")).not_to_be_checked()
        changes = [
            ("/robot/speed", "7", 7.0),
            ("/robot/mode", "-3", -3),
            ("/robot/arm/Auto Chooser", "right <b>", "right <b>"),
            ("/robot/names", '["c"]', ["c"]),
        ]
        for name, text, content in changes:
            await value(page, name).fill(text)
            await value(page, name).press("Enter")
            assert (await robot.value(name)).value == content
        for name, text, _ in changes:  # once they all are set, since the second tab polls every two seconds
            await expect(value(other, name)).to_have_value(text)
        await value(page, "/robot/speed").fill("8.5")
        await page.get_by_role("button", name="Set /robot/speed").click()
        assert (await robot.value("/robot/speed")).value == 8.5
        await expect(page.get_by_role("button", name="Set /robot/speed")).to_be_hidden()


async def test_what_comes_does_not_touch_what_is_being_typed(profile, server):
    """The field keeps the reader's input; the newest value is shown below it, and Escape puts it into the field."""
    async with await nt4.connect(server.url, "robot") as robot:
        await publish_one_of_each(robot)
        page = await open_tables(profile, server)
        await value(page, "/robot/speed").fill("12")
        await robot.put(2, 20, 3.75)
        await expect(row(page, "/robot/speed").get_by_text("now 3.75")).to_be_visible()
        await expect(value(page, "/robot/speed")).to_have_value("12")
        await value(page, "/robot/mode").focus()
        await expect(value(page, "/robot/speed")).to_have_value("12")
        await value(page, "/robot/speed").press("Escape")
        await expect(value(page, "/robot/speed")).to_have_value("3.75")
        await expect(row(page, "/robot/speed").get_by_role("button")).to_have_count(0)


async def test_what_is_no_value_is_refused_at_its_field(profile, server):
    """The field shows the server's error for a wrong type and the page's for invalid JSON, and keeps the input."""
    async with await nt4.connect(server.url, "robot") as robot:
        await publish_one_of_each(robot)
        page = await open_tables(profile, server)
        for name, text, complaint in [
            ("/robot/mode", "1.5", "Cannot set this value: expected a value of the type int."),
            ("/robot/names", "[1]", "Cannot set this value: expected a value of the type string[]."),
            ("/robot/names", '["a"', 'Not JSON at line 1, column 5: expected "," or "]", found the end'),
            ("/robot/mode", "9007199254740993", "Integer beyond 53 bits: a browser would round it to 9007199254740992"),
            ("/robot/mode", "", "Expected a number"),
        ]:
            await value(page, name).fill(text)
            await value(page, name).press("Enter")
            await expect(row(page, name).get_by_text(complaint, exact=True)).to_be_visible()
            await expect(value(page, name)).to_have_value(text)
        left = await robot.quiet()
        assert [each for each in left if isinstance(each, nt4.Value) and each.time_us > 10] == []


async def test_the_last_values_are_no_news_for_the_list_of_events(profile, server):
    """Opening the view requests the last values again; the list of events does not show them a second time."""
    page = await open_console(profile, server)
    async with await nt4.connect(server.url, "robot") as robot:
        await publish_one_of_each(robot)
        await expect(events(page)).to_have_count(6)
        for _ in range(2):
            await go(page, "NetworkTables")
            await expect(topics(page)).to_have_count(6)
            await go(page, "Overview")
        await robot.put(2, 20, 4.5)
        await expect(events(page).first).to_contain_text("4.5")
        await expect(events(page)).to_have_count(7)


async def test_topics_are_filtered_and_keep_their_order(profile, server):
    """Rows are in the order of names, not of arrival; a filter shows the topics whose names contain it."""
    async with await nt4.connect(server.url, "robot") as robot:
        page = await open_tables(profile, server)
        await expect(page.get_by_text("No values have been received yet.")).to_be_visible()
        for pubuid, name in enumerate(("/b/two", "/a/one", "/c/three")):
            await robot.publish(name, pubuid)
            await robot.put(pubuid, 1, 1.5)
            await expect(row(page, name)).to_be_visible()
        await expect(topics(page).locator(".channel")).to_have_text(["/a/one", "/b/two", "/c/three"])
        await page.get_by_label("Show topics with").fill("T")
        await expect(topics(page).locator(".channel")).to_have_text(["/b/two", "/c/three"])
        await expect(page.get_by_text("2 of 3 topics")).to_be_visible()


@pytest.mark.nightly
async def test_500_topics_at_full_speed_do_not_freeze_the_page(profile, server):
    """While values of 500 topics are sent at full speed the page reacts to the reader, and then shows the newest."""
    async with await nt4.connect(server.url, "robot") as robot:
        for number in range(500):
            await robot.publish(f"/many/t{number:03}", number)
        page = await open_tables(profile, server)
        for turn in range(100):
            await robot.send_raw(
                b"".join(nt4.packed(number, turn + 1, nt4.DOUBLE, turn + 0.5) for number in range(500))
            )
            if turn == 50:
                await page.get_by_label("Show topics with").fill("t00")
                await expect(page.get_by_text("10 of ")).to_be_visible()
        await expect(topics(page)).to_have_count(10)
        await page.get_by_label("Show topics with").fill("")
        await expect(topics(page)).to_have_count(500)
        await expect(value(page, "/many/t000")).to_have_value("99.5")
        await expect(value(page, "/many/t499")).to_have_value("99.5")


async def test_it_is_live_again_after_a_restart(profile, server):
    """After a restart the old server's topics disappear, and the new one's are shown, without a reload."""
    profile.expected = "net::ERR_"
    async with await nt4.connect(server.url, "robot") as robot:
        await publish_one_of_each(robot)
        page = await open_tables(profile, server)
        await expect(topics(page)).to_have_count(6)
    await server.stop()
    await expect(state(page)).to_have_text("Reconnecting")
    await server.start()
    await expect(state(page)).to_have_text("Connected")
    async with await nt4.connect(server.url, "robot") as robot:
        await robot.publish("/robot/again", 1)
        await robot.put(1, 1, 9.5)
        await expect(value(page, "/robot/again")).to_have_value("9.5")
        await expect(topics(page)).to_have_count(1)


async def test_where_networktables_is_not_served_the_view_says_so(profile, server, tmp_path):
    """If NetworkTables is not served, the view names the option that serves it."""
    await server.stop()
    (tmp_path / "halley.toml").write_text("")
    await server.start()
    page = await open_tables(profile, server)
    await expect(
        page.get_by_text("This server does not serve NetworkTables. Start it with: halley serve --nt4")
    ).to_be_visible()


async def test_a_role_that_may_only_read_sets_nothing(profile, server, tmp_path):
    """With access rules the controls are disabled, and the view shows the reason, and refused subscriptions."""
    await server.stop()
    rules = (
        '[[access]]\nrole = "nt4"\nverb = "*"\npattern = "/robot/**"\n'
        '[[access]]\nrole = "*"\nverb = "subscribe"\npattern = "/robot/**"\n'
    )
    (tmp_path / "halley.toml").write_text(SPEAKING_NT4 + rules)
    await server.start()
    async with await nt4.connect(server.url, "robot") as robot:
        await publish_one_of_each(robot)
        page = await profile.open(f"{server.url}/#tables")
        await expect(
            page.get_by_text("Sign in with a token that may subscribe to /** to receive its values.")
        ).to_be_visible()
        await page.get_by_label("Listen to").fill("/robot/**")
        await page.get_by_role("button", name="Listen").click()
        await expect(topics(page)).to_have_count(6)
        await expect(page.get_by_text("Your role has no right to publish, so values can only be read.")).to_be_visible()
        await expect(page.get_by_role("switch", name="Value of /robot/enabled")).to_be_disabled()
        await expect(value(page, "/robot/speed")).not_to_be_editable()
        await robot.put(2, 20, 6.5)
        await expect(value(page, "/robot/speed")).to_have_value("6.5")


async def test_the_view_fits_a_phone_and_names_its_controls(profile, server):
    """At widths of at least 360 pixels the page never scrolls sideways, and every control has a name."""
    async with await nt4.connect(server.url, "robot") as robot:
        await publish_one_of_each(robot)
        await robot.publish("/" + "long" * 50, 9, "string")
        await robot.put(9, 9, "text" * 200, nt4.STRING)
        page = await open_tables(profile, server)
        await expect(topics(page)).to_have_count(7)
        await value(page, "/robot/names").fill("[")
        for width in (360, 640, 960, 1280):
            await page.set_viewport_size({"width": width, "height": 740})
            assert await page.evaluate("document.scrollingElement.scrollWidth") <= width
        nameless = """() => [...document.querySelectorAll("#tables :is(input, textarea, button)")]
            .filter((control) => !control.labels?.length && !control.ariaLabel && !control.textContent.trim()).length"""
        assert await page.evaluate(nameless) == 0
