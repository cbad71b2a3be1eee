"""The figures that the server publishes each second, and who may receive them."""

from __future__ import annotations

import asyncio
import json
from time import monotonic

import pytest
from support import nt4, wamp
from support.messages import HANDSHAKE, connect, publish, subscribe
from support.server import brisk, serving
from support.wire import DEADLINE_S, request, until

from halley.broker.flow import GRACE_S
from halley.server.metrics import exposition
from halley.settings import Access

EVERY_S = 0.05
SLOW_POLL_S = {"bayeux": {"max_interval_s": DEADLINE_S}}


async def listen(served, *channels):
    """Subscribe a Bayeux session, and return a function that waits for the next fitting event of a channel."""
    wire = await served.wire()
    client_id = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
    await wire.post(connect(client_id))
    answers = (await wire.post(*[subscribe(client_id, channel) for channel in channels])).messages
    assert all(answer["successful"] for answer in answers if "successful" in answer)

    async def heard(channel, condition=lambda data: True):
        async with asyncio.timeout(DEADLINE_S):
            while True:
                for message in (await wire.post(connect(client_id))).messages:
                    if message["channel"] == channel and condition(message["data"]):
                        return message["data"]

    return heard


async def say(served, *messages):
    """Publish from another client, in one request."""
    wire = await served.wire()
    answers = (await wire.post(*messages)).messages
    assert all(answer["successful"] for answer in answers), answers


def ticking(tmp_path=None, **changed):
    """Serve with ticks that are faster than in production."""
    history = {"enabled": tmp_path is not None, "free_bytes": 0}
    return serving(brisk(data_dir=str(tmp_path), history=history, ticks={"every_s": EVERY_S}, sweep_s=0.02, **changed))


async def test_rates_tell_what_each_protocol_published_and_was_given(tmp_path):
    """Two events by Bayeux and one by WAMP, delivered to both: totals, sessions, a delay, and the log's head."""
    async with ticking(tmp_path) as served:
        heard = await listen(served, "/halley/rates", "/a/**")
        client = await wamp.join(served.url)
        await client.subscribe("a", match="prefix")
        await say(served, publish("/a/b", 1), publish("/a/b", 2))
        await client.publish("a.c", [3], exclude_me=False)

        def is_all_there(data):
            delivered = [data["protocols"][name]["delivered"] for name in ("bayeux", "wamp")]
            return min(delivered) >= 3 and data["history"]["head"] >= 3

        rates = await heard("/halley/rates", is_all_there)
        bayeux, wamps = rates["protocols"]["bayeux"], rates["protocols"]["wamp"]
        assert (bayeux["published"], wamps["published"], wamps["delivered"]) == (2, 1, 3)
        assert (bayeux["sessions"], wamps["sessions"], rates["sessions"]) == (1, 1, 2)
        assert set(rates["protocols"]) == {"bayeux", "wamp", "events"}
        assert rates["history"]["first"] == 1
        assert rates["history"]["lost"] == rates["dropped"] == rates["overflows"] == 0
        with_delay = await heard("/halley/rates", lambda data: data["protocols"]["bayeux"]["delay_ms"])
        delay = with_delay["protocols"]["bayeux"]["delay_ms"]
        assert 0 <= delay["p50"] <= delay["p99"]


async def test_a_client_that_polls_when_it_likes_is_not_in_the_delays():
    """What it receives is counted as delivered, but its absence is no delay; that of a prompt client is one."""
    async with ticking(**SLOW_POLL_S) as served:
        console = await wamp.join(served.url)
        await console.subscribe("halley.rates")

        async def told(delivered):
            async with asyncio.timeout(DEADLINE_S):
                while True:
                    bayeux = (await console.receive())[4][0]["protocols"]["bayeux"]
                    if bayeux["delivered"] == delivered:
                        return bayeux["delay_ms"]
                    assert bayeux["delay_ms"] is None

        wire = await served.wire()
        client_id = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
        await wire.post(subscribe(client_id, "/a"))
        await wire.post(connect(client_id))
        await say(served, publish("/a", 1))
        await asyncio.sleep(GRACE_S + 0.1)
        assert (await wire.post(connect(client_id))).data == [1]
        assert await told(delivered=1) is None
        poll = asyncio.create_task(wire.post(connect(client_id)))
        await until(lambda: served.house.engine.sessions.holds == 1)
        await say(served, publish("/a", 2))
        assert (await poll).data == [2]
        delay_ms = await told(delivered=2)
        assert 0 <= delay_ms["p50"] == delay_ms["p99"]


async def test_rates_are_of_the_time_since_the_tick_before():
    """Ten publications count in one tick; when nothing more is published the rate is 0 again."""
    async with ticking() as served:
        heard = await listen(served, "/halley/rates")
        await say(served, *[publish("/a", number) for number in range(10)])

        def of_bayeux(field):
            return lambda data: data["protocols"]["bayeux"][field]

        rates = await heard("/halley/rates", of_bayeux("published_per_s"))
        assert rates["protocols"]["bayeux"]["published_per_s"] * rates["every_s"] == pytest.approx(10, abs=0.2)
        assert rates["history"] is None
        rates = await heard("/halley/rates", lambda data: not of_bayeux("published_per_s")(data))
        assert of_bayeux("published")(rates) == 10


async def test_the_first_rates_that_a_session_receives_have_those_before():
    """So a chart begins with the past, also with that of a time without subscribers; each session receives it once."""
    async with ticking() as served:
        await say(served, *[publish("/a", number) for number in range(10)])
        await until(lambda: len(served.house.ticker._past.ticks) > 3)
        heard = await listen(served, "/halley/rates")
        first = await heard("/halley/rates")
        assert len(first["past"]) > 3
        assert all(set(each) == {"time", "protocols"} for each in first["past"])
        times = [each["time"] for each in first["past"]]
        assert times == sorted(times)
        assert times[-1] < first["time"]
        figures = {"published_per_s", "delivered_per_s", "delay_ms"}
        assert {frozenset(each["protocols"]["bayeux"]) for each in first["past"]} == {frozenset(figures)}
        rates = [each["protocols"]["bayeux"]["published_per_s"] for each in first["past"]]
        assert sum(rate > 0 for rate in rates) == 1
        for _ in range(3):
            assert "past" not in await heard("/halley/rates")
        client = await wamp.join(served.url)
        subscription = await client.subscribe("halley.rates")
        other = (await client.receive())[4][0]
        assert other["past"][-1]["time"] >= first["time"]
        assert "past" not in (await client.receive())[4][0]
        assert "past" not in await heard("/halley/rates")
        await client.unsubscribe(subscription)
        await until(lambda: len(served.house.ticker._past._recipients) == 1)
        await client.subscribe("halley.rates")
        assert "past" in (await client.receive())[4][0]


async def test_the_past_is_bounded():
    """It has the last 120 ticks."""
    async with ticking() as served:
        for second in range(200):
            served.house.ticker._past.add(
                f"{second:03}", {"bayeux": dict.fromkeys(("published_per_s", "delivered_per_s", "delay_ms"))}
            )
        heard = await listen(served, "/halley/rates")
        past = (await heard("/halley/rates"))["past"]
        assert len(past) == 120


async def test_figures_that_a_closed_tab_does_not_get_are_not_dropped_events(tmp_path):
    """A tab that is closed without a goodbye leaves ticks in its queue: no application loses events by that."""
    async with ticking(tmp_path, bayeux={"max_interval_s": 0.5}) as served:
        await say(served, publish("/a", 0))
        wire = await served.wire()
        client_id = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
        channels = ("/halley/rates", "/halley/queues", "/halley/sessions", "/halley/pipeline")
        await wire.post(*[subscribe(client_id, channel) for channel in channels])
        await wire.post(connect(client_id, advice={"timeout": 0}))
        session = served.house.broker.sessions[client_id]
        await say(served, publish("/halley/pipeline", {}))
        await until(lambda: len(session.outbox) > 4)
        await until(lambda: session.closed == "expired")
        heard = await listen(served, "/halley/rates")
        assert (await heard("/halley/rates"))["dropped"] == 0
        assert b"\nhalley_dropped_total 0.0\n" in exposition(served.house)


async def test_topics_tell_how_busy_they_are_and_who_hears_them_and_no_data():
    """The server's own topics are not listed, and no event's data is shown."""
    async with ticking() as served:
        heard = await listen(served, "/halley/topics", "/chat/*")
        await say(served, publish("/chat/b", "secret"), publish("/chat/b", "secret"), publish("/other", "secret"))
        await say(served, publish("/halley/own", 1))
        told = await heard("/halley/topics", lambda data: len(data["topics"]) == 2)
        assert "secret" not in str(told)
        assert told["others"] == 0
        by_channel = {each.pop("channel"): each for each in told["topics"]}
        assert (by_channel["/chat/b"]["published"], by_channel["/chat/b"]["subscribers"]) == (2, 1)
        assert (by_channel["/other"]["published"], by_channel["/other"]["subscribers"]) == (1, 0)
        assert by_channel["/other"]["last"] <= told["time"]


async def test_a_tick_is_not_older_than_its_figures():
    """It takes several turns of the event loop, in which events are published."""
    async with serving(brisk(ticks={"every_s": 0.001}, sweep_s=600)) as served:
        heard = await listen(served, "/halley/rates", "/halley/topics")
        ticker, now = served.house.ticker, monotonic()
        assert ticker.sweep(now)
        await say(served, publish("/a", 1))
        while ticker.sweep(now):
            pass
        told = await heard("/halley/topics")
        assert [each["channel"] for each in told["topics"]] == ["/a"]
        assert told["topics"][0]["last"] <= told["time"]


async def test_topics_are_bounded():
    """Of four topics, the two that were busy last are listed, and the number of the others."""
    async with ticking(limits={}) as served:
        served.house.ticker._options = type(served.house.settings.ticks)(every_s=EVERY_S, topics=2)
        heard = await listen(served, "/halley/topics")
        for name in "abcd":
            await say(served, publish(f"/{name}", 1))
        told = await heard("/halley/topics", lambda data: data["others"] == 2)
        assert [each["channel"] for each in told["topics"]] == ["/d", "/c"]


async def test_queues_tell_who_is_here_and_what_waits_for_whom():
    """A session that does not poll has a queue, and is first; its name is the one in /halley/sessions."""
    async with ticking(**SLOW_POLL_S) as served:
        heard = await listen(served, "/halley/queues", "/halley/sessions")
        wire = await served.wire()
        lazy = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
        opened = await heard("/halley/sessions", lambda data: data["event"] == "opened")
        await wire.post(subscribe(lazy, "/a"))
        await say(served, *[publish("/a", number) for number in range(5)])
        told = await heard("/halley/queues", lambda data: data["sessions"][0]["queued"] >= 5)
        longest = told["sessions"][0]
        assert longest["session"] == opened["session"]
        assert lazy not in str(told)
        assert (longest["protocol"], longest["authid"], longest["role"]) == ("bayeux", None, "anonymous")
        assert (longest["subscribed"], longest["subscriptions"]) == (1, ["/a"])
        assert longest["queued_bytes"] > 5
        assert longest["age_s"] >= 0
        assert len(told["sessions"]) == 2
        await wire.post({"channel": "/meta/disconnect", "clientId": lazy})
        await heard("/halley/queues", lambda data: len(data["sessions"]) == 1)


async def test_who_was_ended_by_a_fault_is_here_no_more():
    """The broker ends a session whose engine fails without calling a hook; it used to be listed for ever."""
    async with ticking(**SLOW_POLL_S) as served:
        heard = await listen(served, "/halley/queues")
        wire = await served.wire()
        broken = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
        await heard("/halley/queues", lambda data: len(data["sessions"]) == 2)
        session, broker = served.house.broker.sessions[broken], served.house.broker
        broker.close(session, "fault")
        await heard("/halley/queues", lambda data: len(data["sessions"]) == 1)


async def test_long_names_leave_room_in_the_queues_of_those_who_hear_of_them():
    """Of 120 subscriptions with very long names, a few are listed, and their number."""
    async with ticking(**SLOW_POLL_S) as served:
        heard = await listen(served, "/halley/queues")
        wire = await served.wire()
        many = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
        names = ["/short", *(f"/{number:0>200}" for number in range(119))]
        await wire.post(subscribe(many, *names))
        told = await heard("/halley/queues", lambda data: data["sessions"][0]["subscribed"] == 120)
        assert told["sessions"][0]["subscriptions"] == names[:2]


async def test_robots_are_told_of_too(tmp_path):
    """Values, sessions and subscribers of NetworkTables count as those of other protocols."""
    options = {"enabled": True, "port": 0, "ping_s": 5, "pong_s": 10}
    async with ticking(tmp_path, nt4=options) as served:
        heard = await listen(served, "/halley/rates", "/halley/topics", "/halley/queues")
        url = f"http://127.0.0.1:{served.nt4_port}"
        async with await nt4.connect(url, "robot") as robot, await nt4.connect(url, "board") as board:
            await board.subscribe("/robot/", prefix=True, all=True)
            await robot.publish("/robot/speed", 1)
            await robot.put(1, 1, 2.5)
            assert (await board.value("/robot/speed")).value == 2.5
            rates = await heard("/halley/rates", lambda data: data["protocols"]["nt4"]["delivered"])
            assert rates["protocols"]["nt4"] | {"delay_ms": None} == {
                "sessions": 2,
                "published": 1,
                "delivered": 1,
                "published_per_s": rates["protocols"]["nt4"]["published_per_s"],
                "delivered_per_s": rates["protocols"]["nt4"]["delivered_per_s"],
                "delay_ms": None,
            }
            told = await heard("/halley/topics", lambda data: data["topics"])
            assert (told["topics"][0]["channel"], told["topics"][0]["subscribers"]) == ("/robot/speed", 1)
            queues = await heard("/halley/queues")
            assert {each["authid"]: each["subscriptions"] for each in queues["sessions"] if each["authid"]} == {
                "robot": [],
                "board": ["/robot/*"],
            }


async def test_with_rules_they_need_a_right():
    """A right to everything does not include the server's own topics; a rule that names them does."""
    everything = Access("*", "subscribe", "/**", allow=True)
    async with ticking(access=(everything,)) as served:
        wire = await served.wire()
        client_id = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
        for topic in ("rates", "topics", "queues"):
            answer = (await wire.post(subscribe(client_id, f"/halley/{topic}"))).messages[0]
            assert answer["error"].endswith(":subscribe_denied"), answer
    async with ticking(access=(everything, Access("*", "subscribe", "/halley/**", allow=True))) as served:
        heard = await listen(served, "/halley/rates")
        assert (await heard("/halley/rates"))["sessions"] == 1


async def test_they_are_not_recorded(tmp_path):
    """None of three received ticks is in the log; an event that a client published is."""
    async with ticking(tmp_path) as served:
        heard = await listen(served, "/halley/rates", "/halley/topics", "/halley/queues")
        await say(served, publish("/a", 1))
        for channel in ("/halley/rates", "/halley/topics", "/halley/queues"):
            await heard(channel)
        wire = await served.wire()
        answer = await wire.request(request("GET", "/history/halley/**"))
        recorded = {each["channel"] for each in json.loads(answer.body)["events"]}
        assert recorded == {"/halley/sessions", "/halley/subscriptions"}
