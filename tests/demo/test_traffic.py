"""The traffic at a real server: what subscribers of each protocol receive, and that it reconnects."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from urllib.parse import unquote_plus

import pytest
from support import nt4, wamp
from support.server import brisk, serving
from support.tcp_proxy import relaying
from support.wire import DEADLINE_S, until

from halley.client import Client, Unreachable
from halley.demo import chat as chats
from halley.demo import keep_visiting
from halley.demo.chat import BY_JSONP, PEOPLE, WELCOMES, ScriptPage
from halley.demo.market import SHARES, commuter, ticker, trader
from halley.demo.robot import TOPICS, drive, driver_station

RANDOM = Random(7)


@pytest.fixture
async def served():
    async with serving(brisk(nt4={"enabled": True, "port": 0}, bayeux={"max_interval_s": 10})) as served:
        yield served


@asynccontextmanager
async def going_on(visit, address):
    """Run a part of the traffic, which reconnects, until the block ends."""
    task = asyncio.create_task(keep_visiting(visit, address, Random(RANDOM.random())))
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()


async def chat(server, random):
    """Let everybody chat; each reconnects alone."""
    async with asyncio.TaskGroup() as group:
        for name in PEOPLE:
            group.create_task(keep_visiting(partial(chats.take_part, name=name), server, Random(random.random())))


@pytest.fixture
def chatty(monkeypatch):
    """Make people answer fast."""
    monkeypatch.setattr(chats, "_SOON_S", (0.01, 0.2))
    monkeypatch.setattr(chats, "_LATER_S", (0.02, 0.4))


async def heard(client, is_enough):
    """Return the events received until there are enough."""
    events = []
    async with asyncio.timeout(DEADLINE_S):
        while not is_enough(events):
            events.append(await anext(client))
    return events


async def test_people_chat_over_bayeux_and_jsonp(served, chatty):
    """All people are received, also the one on the old page, in rooms that one subscription covers."""
    async with Client(served.url) as client, relaying(served.port) as proxy:
        await client.subscribe("/chat/*")
        async with going_on(chat, f"http://127.0.0.1:{proxy.port}"):
            events = await heard(client, lambda events: {event.data["from"] for event in events} == {*PEOPLE})
        assert {*events[0].data} == {"from", "text"}
        scripts = unquote_plus(" ".join(re.findall(r"GET /bayeux\?jsonp=(\S+)", proxy.sent.decode(errors="replace"))))
        assert {*re.findall(r'"from":"(\w+)"', scripts)} == {BY_JSONP}
        assert b"Upgrade: websocket" in proxy.sent


async def test_people_answer_strangers(served, chatty):
    """Every client that writes is answered, also a WAMP client."""
    async with going_on(chat, served.url), await wamp.join(served.url) as stranger:
        await stranger.subscribe("chat.garden")
        async with asyncio.timeout(DEADLINE_S):
            speakers = set()
            while len(speakers) < 2:  # people listen where they speak
                speakers.add((await stranger.receive())[4][0]["from"])
            text = ""
            while text not in WELCOMES:
                # Again, if another sentence was published at the same moment.
                await stranger.publish("chat.garden", [{"from": "Zoe", "text": "I am over here!"}])
                text = (await stranger.receive())[4][0]["text"]


async def test_the_market_is_told_over_wamp(served):
    """A trade is a plain object for a page, and the one argument of an event for WAMP."""
    async with Client(served.url) as page, await wamp.join(served.url) as other:
        await page.subscribe("/market/*")
        subscription = await other.subscribe("market", match="prefix")
        async with going_on(ticker, served.url):
            events = await heard(page, lambda events: len({event.channel for event in events}) >= 4)
            message = await other.receive()
            assert message[:2] == [wamp.EVENT, subscription]
            assert {*message[4][0]} == {"symbol", "price", "change", "size"}
        events = [event for event in events if event.channel != "/market/index"]
        assert {event.channel for event in events} <= {f"/market/{symbol}" for symbol in SHARES}
        assert all(event.channel == f"/market/{event.data['symbol']}" for event in events)


async def test_a_trader_hears_the_market(served):
    """A subscription of WAMP's receives the trades, by a pattern."""
    flow = served.house.broker.flows["wamp"]
    async with going_on(trader, served.url), going_on(ticker, served.url):
        await until(lambda: flow.delivered > len(SHARES))


async def test_the_driver_station_hears_the_robot(served):
    """It subscribes to all topics of the robot: its client exists, and values are written to it."""
    address = f"ws://127.0.0.1:{served.nt4_port}"
    tables = served.house.protocol("nt4").tables
    async with going_on(driver_station, address), going_on(drive, address):
        await until(lambda: tables.flow.delivered > len(TOPICS))
        assert {*tables.clients} == {"driver-station", "robot"}


async def test_anybodys_news_make_a_share_busy(served):
    """News that a page publishes makes its share trade many times as often."""
    async with Client(served.url) as page, going_on(ticker, served.url):
        await page.subscribe("/market/*")
        await heard(page, len)
        await page.publish("/market/news", {"symbol": "IRIS", "headline": "Iris opens a shop"})
        events = await heard(
            page, lambda events: len([each for each in events if each.channel == "/market/IRIS"]) >= 20
        )
        assert len([event for event in events if event.channel == "/market/CEDAR"]) < 20


async def test_the_robot_is_seen_by_dashboards_and_pages(served):
    """Every topic is announced with its type and has values; pages receive them as data."""
    address = f"ws://127.0.0.1:{served.nt4_port}"
    async with await nt4.connect(served.url, "dashboard") as dashboard, Client(served.url) as page:
        await dashboard.subscribe("/robot/", prefix=True)
        await page.subscribe("/robot/*")
        async with going_on(drive, address):
            types = {}
            while {*types} != {*TOPICS}:
                params = await dashboard.text("announce")
                types[params["name"]] = params["type"]
            assert types == {name: kind for name, (kind, _) in TOPICS.items()}
            for name in TOPICS:
                await dashboard.value(name)
            events = await heard(page, lambda events: {event.channel for event in events} == {*TOPICS})
        kinds = {event.channel: type(event.data) for event in events}
        assert kinds["/robot/battery"] is float
        assert kinds["/robot/enabled"] is bool
        assert kinds["/robot/wheel_speeds"] is list


async def test_the_robots_times_are_the_servers(served):
    """It uses the server's time, so that values have their true age."""
    address = f"ws://127.0.0.1:{served.nt4_port}"
    async with await nt4.connect(served.url, "dashboard") as dashboard, going_on(drive, address):
        await dashboard.subscribe("/robot/pose")
        value = await dashboard.value("/robot/pose")
        assert abs(await dashboard.time() - value.time_us) < DEADLINE_S * 1e6


async def test_the_robot_obeys(served):
    """It does what a page sets, and publishes that; sent off its field, it publishes where it drives instead."""
    async with going_on(drive, f"ws://127.0.0.1:{served.nt4_port}"), Client(served.url) as page:
        await page.subscribe("/robot/*")
        await heard(page, len)
        await page.publish("/robot/mode", "disabled")
        await heard(page, lambda events: events and events[-1].channel == "/robot/enabled" and not events[-1].data)
        await page.publish("/robot/setpoint", [99, 3.5])
        await heard(page, lambda events: events and events[-1] == type(events[-1])("/robot/setpoint", [16.5, 3.5]))
        await page.publish("/robot/mode", "auto")
        await heard(page, lambda events: events and events[-1].channel == "/robot/enabled" and events[-1].data is True)


async def test_somebody_reads_slowly(served):
    """While the commuter does not poll, trades are queued, and the session is kept."""
    async with going_on(ticker, served.url), going_on(commuter, served.url):
        broker = served.house.broker
        await until(lambda: len(broker.sessions) == 2)
        before = {*broker.sessions}
        await until(lambda: any(len(session.outbox) >= 3 for session in broker.sessions.values()))
        assert {*broker.sessions} == before


async def test_what_waits_for_the_slow_one_is_not_in_the_delays(served, monkeypatch):
    """The delays that the console shows are the server's, although the commuter stays away for seconds."""
    monkeypatch.setattr("halley.demo.market._AWAY_S", 1.1)
    async with going_on(ticker, served.url), going_on(commuter, served.url):
        flow = served.house.broker.flows["bayeux"]
        await until(lambda: flow.delivered >= 10)
        longest_ms = flow.delays.quantile_ms(1.0)
        assert longest_ms is None or longest_ms < 1_100


async def test_all_come_back_when_their_connections_are_cut(served, chatty):
    """All parts reconnect by themselves as soon as the server can be reached again."""
    broker = served.house.broker
    async with (
        relaying(served.port) as proxy,
        relaying(served.nt4_port) as robots,
        going_on(ticker, f"http://127.0.0.1:{proxy.port}"),
        going_on(drive, f"ws://127.0.0.1:{robots.port}"),
    ):
        await until(lambda: len(broker.sessions) == 2)
        proxy.cut()
        robots.cut()
        await until(lambda: not broker.sessions)
        proxy.mend()
        robots.mend()
        await until(lambda: len(broker.sessions) == 2)
        async with going_on(chat, f"http://127.0.0.1:{proxy.port}"), Client(served.url) as client:
            await client.subscribe("/chat/*")
            await heard(client, lambda events: any(event.data["from"] == BY_JSONP for event in events))
            proxy.cut()
            proxy.mend()
            for name in ("Ada", BY_JSONP):
                await heard(client, lambda events, name=name: any(event.data["from"] == name for event in events))
            await heard(client, lambda events: any(event.data["from"] == BY_JSONP for event in events))


async def test_a_script_page_is_a_client_of_its_own_kind(served):
    """What it publishes arrives whole, and it renews a session that was lost."""
    async with ScriptPage(served.url) as page:
        await page.subscribe("/a")
        first = page.client_id
        for data in ([1, {"<": "\u2028"}], "again"):
            await page.publish("/a", data)
            async with asyncio.timeout(DEADLINE_S):
                assert (await anext(page)).data == data
            if data != "again":
                await page._session._request({"channel": "/meta/disconnect", "clientId": first}, DEADLINE_S)
                await until(lambda: page.client_id not in (None, first))
        assert len(served.house.broker.sessions) == 1
    assert not served.house.broker.sessions


async def test_mistakes_are_not_hidden(monkeypatch):
    """Lost connections are restored after a pause; other errors are raised."""
    pauses, failures = [], iter([Unreachable("no"), OSError(), TimeoutError(), KeyError("ours")])

    async def visit(_address, _random):
        raise next(failures)

    async def sleep(pause_s):
        pauses.append(pause_s)

    monkeypatch.setattr("halley.demo.asyncio.sleep", sleep)
    with pytest.raises(KeyError):
        await keep_visiting(visit, "", Random(1))
    assert len(pauses) == 3
    assert all(0.5 <= pause_s <= 1.5 for pause_s in pauses)
