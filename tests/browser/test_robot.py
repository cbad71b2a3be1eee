"""A robot's values in a page that polls: it shows them, sets them, and shows why a value is refused."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from browser.conftest import SPEAKING_NT4
from browser.test_console import events, expect_granted, open_console, publish, subscribe
from support import nt4

with suppress(ImportError):  # then the fixture `chromium` skips, or fails
    from playwright.async_api import expect

pytestmark = [
    pytest.mark.browser,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("server", [SPEAKING_NT4], indirect=True, ids=["nt4"]),
]


async def test_a_page_sees_and_sets_a_robots_values(profile, server):
    """The page receives values as they are published, and sets them by publishing; a wrong type is refused."""
    page = await open_console(profile, server)
    await subscribe(page, "/robot/**")
    await expect_granted(page, "/robot/**")
    async with await nt4.connect(server.url, "robot") as robot:
        await robot.publish("/robot/arm/Auto Chooser", 1, "string")
        await robot.publish("/robot/speed", 2)
        await robot.subscribe("/robot/", prefix=True, all=True)
        await robot.put(1, 1, "left", nt4.STRING)
        await robot.put(2, 2, 2.5)
        shown = r"^[\d:.]+{}{}$"
        await expect(events(page).nth(1)).to_have_text(re.compile(shown.format("/robot/arm/Auto!20Chooser", '"left"')))
        await expect(events(page).nth(0)).to_have_text(re.compile(shown.format("/robot/speed", r"2\.5")))
        await publish(page, "/robot/speed", "7")
        assert (await robot.value("/robot/speed")).value == 7.0
        await expect(events(page)).to_have_count(3)
        await publish(page, "/robot/speed", '"fast"')
        await expect(page.get_by_text("Cannot publish this: expected a value of the type double.")).to_be_visible()
        await expect(events(page)).to_have_count(3)
