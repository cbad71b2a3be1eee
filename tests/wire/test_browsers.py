"""Several tabs of one browser over the wire: one connect is held, the others poll at intervals (B9, E14-E18)."""

from __future__ import annotations

import json
from urllib.parse import urlencode

import pytest
from support.messages import HANDSHAKE, connect, disconnect, publish, subscribe
from support.server import brisk, serving
from support.wire import request

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR = {"hold_s": 3600}


class Browser:
    """A browser, whose tabs share a cookie. Each tab is a clientId."""

    def __init__(self, served):
        self.served = served
        self.cookie = ""

    async def tab(self, *channels):
        """Handshake, connect once and subscribe in a new tab; return its clientId."""
        wire = await self.served.wire()
        shaken = await wire.post(HANDSHAKE, cookie=self.cookie)
        if shaken.set_cookies:
            self.cookie = shaken.set_cookies[0].partition(";")[0]
        tab = shaken.messages[0]["clientId"]
        await wire.post(connect(tab), cookie=self.cookie)
        if channels:
            await wire.post(subscribe(tab, *channels), cookie=self.cookie)
        return tab

    async def tabs(self, count):
        return [await self.tab() for _ in range(count)]

    async def hold(self, tab):
        """Open a connection on which a connect of that tab is held."""
        return await self.served.hold(tab, cookie=self.cookie)

    async def poll(self, tab):
        """Return the reply to a connect that is not held."""
        (reply,) = (await self.send(connect(tab))).replies
        return reply

    async def send(self, *messages):
        wire = await self.served.wire()
        return await wire.post(*messages, cookie=self.cookie)

    async def leave(self, held):
        """Close the connection of a held connect, as a closed tab does."""
        before = self.served.house.engine.sessions.holds
        await held.close()
        await self.served.until(lambda: self.served.house.engine.sessions.holds == before - 1)


def is_crowded(reply):
    return reply["advice"].get("multiple-clients", False)


async def test_further_tabs_poll_and_one_is_promoted_when_the_held_one_goes():
    """E15, A41: tab 1 holds, 2 and 3 poll; tab 1 is closed, 2 holds; tab 2 disconnects, 3 holds."""
    async with serving(brisk(bayeux=HOUR | {"browser_interval_s": 1.5})) as served:
        browser = Browser(served)
        first, second, third = await browser.tabs(3)
        held = await browser.hold(first)
        for tab in (second, third):
            reply = await browser.poll(tab)
            assert reply["successful"] is True
            assert reply["advice"] == {
                "reconnect": "retry",
                "interval": 1_500,
                "timeout": 3_600_000,
                "multiple-clients": True,
            }
        await browser.leave(held)
        held = await browser.hold(second)
        assert is_crowded(await browser.poll(third))
        await browser.send(disconnect(second))
        assert (await held.read()).messages[0]["advice"]["reconnect"] == "none"
        held = await browser.hold(third)
        await browser.send(publish("/a", 1), disconnect(third))
        (reply,) = (await held.read()).messages
        assert not is_crowded(reply)


async def test_a_promoted_tab_is_told_that_it_is_alone():
    """B9: the reply that ends its hold has the plain interval again, without `multiple-clients`."""
    async with serving(brisk(bayeux=HOUR)) as served:
        browser = Browser(served)
        first, second = await browser.tab(), await browser.tab("/tabs")
        held = await browser.hold(first)
        assert is_crowded(await browser.poll(second))
        await browser.leave(held)
        held = await browser.hold(second)
        await browser.send(publish("/tabs", 1))
        reply, event = (await held.read()).messages
        assert reply["advice"] == {"reconnect": "retry", "interval": 0, "timeout": 3_600_000}
        assert event["data"] == 1


async def test_with_an_interval_of_0_a_further_tab_is_sent_away():
    """E14: `successful: false`, `none`, `multiple-clients`; the first tab stays held and gets its events."""
    async with serving(brisk(bayeux=HOUR | {"browser_interval_s": 0})) as served:
        browser = Browser(served)
        first, second = await browser.tab("/first"), await browser.tab()
        held = await browser.hold(first)
        reply = await browser.poll(second)
        assert reply["successful"] is False
        assert reply["advice"]["reconnect"] == "none"
        assert is_crowded(reply)
        await browser.send(publish("/first", 1))
        assert (await held.read()).data == [1]


@pytest.mark.parametrize(("limit", "held_tabs"), [(2, 2), (0, 0), (-1, 3)])
async def test_how_many_tabs_are_held_is_a_setting(limit, held_tabs):
    """E16: of three tabs, two are held with a limit of 2, none with 0, all with -1."""
    async with serving(brisk(bayeux=HOUR | {"holds_per_browser": limit})) as served:
        browser = Browser(served)
        tabs = await browser.tabs(3)
        for tab in tabs[:held_tabs]:
            await browser.hold(tab)
        for tab in tabs[held_tabs:]:
            assert is_crowded(await browser.poll(tab))
        assert served.house.engine.sessions.holds == held_tabs


async def test_a_tabs_own_second_connect_is_no_second_tab():
    """E17, B5: the first connect is answered, the second is held, and no reply has `multiple-clients`."""
    async with serving(brisk(bayeux=HOUR)) as served:
        browser = Browser(served)
        tab = await browser.tab("/own")
        older = await browser.hold(tab)
        newer = await served.wire()
        await newer.send(
            request("POST", "/bayeux", json.dumps([connect(tab, id="newer")]).encode(), cookie=browser.cookie)
        )
        (reply,) = (await older.read()).messages
        assert reply["successful"] is True
        assert not reply.get("advice", {}).get("multiple-clients")
        assert served.house.engine.sessions.holds == 1
        await browser.send(publish("/own", 1))
        reply, event = (await newer.read()).messages
        assert (reply["id"], event["data"]) == ("newer", 1)
        assert not is_crowded(reply)
        third = await browser.hold(tab)
        await browser.leave(third)


async def test_a_poll_that_ended_by_its_time_has_freed_the_slot():
    """E18: the tab's next poll, sent directly after the previous reply, is held again, without `multiple-clients`."""
    async with serving(brisk(bayeux={"hold_s": 0.05})) as served:
        browser = Browser(served)
        tab = await browser.tab()
        for _ in range(3):
            (reply,) = (await browser.send(connect(tab, advice={}))).messages
            assert reply["successful"] is True
            assert not is_crowded(reply)


async def test_a_crowded_tab_gets_its_events_when_it_polls():
    """B9: the events of a tab that is not held arrive in order, over any number of polls."""
    async with serving(brisk(bayeux=HOUR)) as served:
        browser = Browser(served)
        first, second = await browser.tab(), await browser.tab("/crowded")
        await browser.hold(first)
        heard = []
        for numbers in ([1, 2], [], [3]):
            for number in numbers:
                await browser.send(publish("/crowded", number))
            heard += (await browser.send(connect(second))).data
        assert heard == [1, 2, 3]


async def test_tabs_share_a_slot_whatever_their_transport():
    """A66, B9: while a script is held, a POST of the same browser is not, and a script is not while a POST is held."""
    async with serving(brisk(bayeux=HOUR)) as served:
        browser = Browser(served)
        first, second = await browser.tabs(2)
        script = await served.wire()
        poll = connect(first, connectionType="callback-polling")
        query = urlencode({"message": json.dumps([poll])})
        await script.send(request("GET", f"/bayeux?{query}", cookie=browser.cookie))
        await served.until(lambda: served.house.engine.sessions.holds == 1)
        assert is_crowded(await browser.poll(second))
        await browser.leave(script)
        await browser.hold(second)
        wire = await served.wire()
        assert is_crowded((await wire.get(poll, cookie=browser.cookie)).called[1][0])


async def test_other_browsers_and_clients_without_cookies_are_held_beside():
    """B9: each browser has its own slot; a client without a cookie counts as a separate browser."""
    async with serving(brisk(bayeux=HOUR)) as served:
        for _ in range(2):
            browser = Browser(served)
            await browser.hold(await browser.tab())
        for _ in range(2):
            await served.hold(await served.open_session())
        assert served.house.engine.sessions.holds == 4
