"""NetworkTables with Bayeux and WAMP: one topic has three names, one type and one history."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest
import pytest_asyncio
from support import nt4, wamp
from support.messages import HANDSHAKE, connect, publish, subscribe, unsubscribe
from support.nt4 import BOOLEAN, FLOAT, INT, RAW, STRING
from support.server import brisk, serving
from support.wire import request

from halley.broker.names import Match, Pattern
from halley.broker.ports import Erasure
from halley.cli.publishing import publish_value, read_json
from halley.client import Client
from halley.settings import Access

MISMATCH = "400:{}:value_type_mismatch"


@pytest_asyncio.fixture
async def served(tmp_path):
    async with meeting(tmp_path) as served:
        yield served


def meeting(tmp_path, access=(), **options):
    """Serve all three protocols; every value is recorded unless `options` configure otherwise."""
    options = {"enabled": True, "port": 0, "record_every_s": 0, "ping_s": 5, "pong_s": 10} | options
    history = {"enabled": True, "free_bytes": 0}
    return serving(brisk(data_dir=str(tmp_path), history=history, nt4=options, access=access))


async def robot(served, name="robot"):
    return await nt4.connect(f"http://127.0.0.1:{served.nt4_port}", name)


async def poll(served, *channels, **ext):
    """Open a Bayeux session, and return a function that waits for its events and returns them."""
    wire = await served.wire()
    client_id = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
    await wire.post(connect(client_id))
    events = []

    def keep(messages):
        events.extend(each for each in messages if not each["channel"].startswith("/meta/") and "data" in each)
        return messages

    for channel in channels:
        fields = subscribe(client_id, channel)
        answer = keep((await wire.post({**fields, "ext": ext} if ext else fields)).messages)
        assert answer[0]["successful"], answer

    async def heard(count):
        while len(events) < count:
            keep((await wire.post(connect(client_id))).messages)
        assert len(events) == count
        heard_now, events[:] = list(events), []
        return heard_now

    async def publishing(channel, data):
        return keep((await wire.post(publish(channel, data, clientId=client_id))).messages)[0]

    heard.client_id, heard.wire, heard.publish = client_id, wire, publishing
    return heard


async def curl(served, channel, data, **fields):
    """Publish without a session, and return the reply."""
    return (await (await served.wire()).post(publish(channel, data, **fields))).messages[0]


async def history(served, channel, query=""):
    answer = await (await served.wire()).request(request("GET", f"/history{channel}{query}"))
    return json.loads(answer.body)["events"]


VALUES = [
    ("boolean", BOOLEAN, True, True),
    ("double", 1, 2.5, 2.5),
    ("int", INT, -(2**63), -(2**63)),
    ("float", FLOAT, 0.5, 0.5),
    ("string", STRING, "héllo", "héllo"),
    ("json", STRING, '{"a": [1, null]}', {"a": [1, None]}),
    ("raw", RAW, b"\0\xff", "\0" + base64.b64encode(b"\0\xff").decode()),
    ("struct:Pose2d", RAW, b"abc", "\0" + base64.b64encode(b"abc").decode()),
    ("double[]", 17, [1.0, 2.5], [1.0, 2.5]),
    ("string[]", 20, [], []),
]


@pytest.mark.parametrize(("type_name", "number", "value", "data"), VALUES, ids=[each[0] for each in VALUES])
async def test_values_of_every_type_there_and_back(served, type_name, number, value, data):
    """Bayeux shows bare data with type and time next to it, live and stored; curl can publish the same data."""
    page = await poll(served, "/robot/*")
    async with await robot(served) as client, await robot(served, "dash") as dash, await wamp.join(served.url) as other:
        await other.subscribe("robot.x")
        await client.publish("/robot/x", 1, type_name)
        await dash.subscribe("/robot/x", all=True)
        await client.put(1, 1_000_000, value, number)
        (event,) = await page(1)
        assert (event["channel"], event["data"]) == ("/robot/x", data)
        assert event["ext"]["nt4"] == {"type": type_name, "time": 1_000_000}
        said = await other.receive()
        assert (said[3]["_nt4_type"], said[3]["_nt4_time"], said[4]) == (type_name, 1_000_000, [data])
        (stored,) = await history(served, "/robot/x")
        assert (stored["data"], stored["protocol"], stored["nt4"]) == (
            data,
            "nt4",
            {"type": type_name, "time": 1_000_000},
        )
        assert (await curl(served, "/robot/x", data))["successful"]
        assert [(await dash.value("/robot/x")).value for _ in range(2)] == [
            value,
            '{"a":[1,null]}' if type_name == "json" else value,
        ]


LOSSY = [
    ("double", 2**53 + 1),
    ("double", -(2**53) - 1),
    ("double", 2**64 - 1),
    ("double[]", [0.5, 2**53 + 1]),
    ("float", 2**24 + 1),
    ("float", 1e300),
    ("float[]", [0.1, -(2**24) - 1]),
    ("int", -(2**63) * 2.0),
]
"""Numbers that would become others as values of the type."""


@pytest.mark.parametrize(
    ("type_name", "data"),
    [
        ("double", "fast"),
        ("double", True),
        ("double", None),
        ("boolean", 1),
        ("int", 2.5),
        ("int", 2**63),
        ("string", 5),
        ("string", "\0YWJj"),
        ("raw", "no base64"),
        ("double[]", 1.5),
        ("double[]", [1, "2"]),
        ("string[]", [None]),
        *LOSSY,
    ],
)
async def test_a_publish_of_another_type_is_refused_to_its_publisher(served, type_name, data):
    """G5: curl, a session and WAMP are refused; nothing is delivered or stored."""
    page = await poll(served, "/robot/*")
    async with await robot(served) as client, await wamp.join(served.url) as other:
        await client.publish("/robot/x", 1, type_name)
        await client.subscribe("/robot/x", all=True)
        await client.quiet()
        error = MISMATCH.format(type_name)
        assert (await curl(served, "/robot/x", data))["error"] == error
        refused = await page.publish("/robot/x", data)
        assert (refused["successful"], refused["error"]) == (False, error)
        said = await other.ask(wamp.PUBLISH, {"acknowledge": True}, "robot.x", [data])
        assert (said[0], said[4]) == (wamp.ERROR, "wamp.error.invalid_argument")
        assert type_name in said[5][0]
        assert [each for each in await client.quiet() if isinstance(each, nt4.Value)] == []
        assert await history(served, "/robot/x") == []


@pytest.mark.parametrize("serializer", ["wamp.2.json", "wamp.2.msgpack", "wamp.2.cbor"])
async def test_a_number_that_would_become_another_is_refused_in_every_serializer(served, serializer):
    """G5: WAMP's binary numbers obey the same rule as JSON's."""
    async with await robot(served) as client, await wamp.join(served.url, serializer) as other:
        for type_name, data in LOSSY:
            await client.publish("/robot/x", 1, type_name)
            said = await other.ask(wamp.PUBLISH, {"acknowledge": True}, "robot.x", [data])
            assert (said[0], said[4]) == (wamp.ERROR, "wamp.error.invalid_argument"), (type_name, data)
            assert said[5] == [f"expected a value of type {type_name}"]
            await client.unpublish(1)
            await client.quiet()


@pytest.mark.parametrize(("type_name", "data"), LOSSY)
async def test_a_number_that_would_become_another_is_refused_to_programs(served, capsys, type_name, data):
    """G5: `halley publish` prints the refusal, and the embedding API's reply has it."""
    async with await robot(served) as client:
        await client.publish("/robot/x", 1, type_name)
        error = MISMATCH.format(type_name)
        assert await publish_value(Client(served.url), "/robot/x", read_json(json.dumps(data))) == 1
        assert capsys.readouterr().err == f"halley: not published: {error}\n"
        assert (await served.halley.publish("/robot/x", data))["error"] == error
        assert await history(served, "/robot/x") == []


async def test_a_topic_does_not_begin_with_a_number_that_would_become_another(tmp_path):
    """G5: a number begins a `double`, so one that a double does not hold begins nothing."""
    async with meeting(tmp_path, bridge_in=("/",)) as served:
        assert (await curl(served, "/dash/n", 2**53 + 1))["error"] == MISMATCH.format("double")
        assert (await curl(served, "/dash/n", 2**53 + 2))["successful"]


@pytest.mark.parametrize(
    ("type_name", "data", "value"),
    [
        ("double", 5, 5.0),
        ("double", 2**53 + 2, 2.0**53 + 2),
        ("double", 2**63, 2.0**63),
        ("double", 0.1, 0.1),
        ("float", 2, 2.0),
        ("float", 2**24, 2.0**24),
        ("float", 0.1, 0.10000000149011612),
        ("int", 7.0, 7),
        ("int", 2**53 + 1, 2**53 + 1),
        ("int", -(2**63), -(2**63)),
    ],
)
async def test_numbers_are_converted_where_nothing_is_lost(served, type_name, data, value):
    """A number that a float or double holds becomes one, an integral one an int; fractions are rounded."""
    async with await robot(served) as client:
        await client.publish("/robot/x", 1, type_name)
        await client.subscribe("/robot/x")
        assert (await curl(served, "/robot/x", data))["successful"]
        got = (await client.value("/robot/x")).value
        assert (got, type(got)) == (value, type(value))


async def test_topics_begin_where_they_may(tmp_path):
    """New topics must be below `bridge_in`; their type is the JSON's, and they end with their session (G1)."""
    async with meeting(tmp_path, bridge_in=("/dash/",)) as served:
        page = await poll(served)
        async with await robot(served) as client:
            await client.subscribe("/", prefix=True)
            for channel, data in (
                ("/dash/n", 5),
                ("/dash/b", True),
                ("/dash/l", ["a", "b"]),
                ("/dash/o", {"k": 1}),
                ("/x", 1),
            ):
                assert (await page.publish(channel, data))["successful"]
            announced = [await client.text("announce") for _ in range(4)]
            assert [(each["name"], each["type"]) for each in announced] == [
                ("/dash/n", "double"),
                ("/dash/b", "boolean"),
                ("/dash/l", "string[]"),
                ("/dash/o", "json"),
            ]
            await page.wire.post({"channel": "/meta/disconnect", "clientId": page.client_id})
            assert sorted([(await client.text("unannounce"))["name"] for _ in range(4)]) == [
                "/dash/b",
                "/dash/l",
                "/dash/n",
                "/dash/o",
            ]
            assert [each for each in client.left() if isinstance(each, nt4.Text)] == []


@pytest.mark.parametrize("name", ["/meta/connect", "/service/x", "/wamp/x", "no/slash", "/a//b", "", "/" + "x" * 300])
async def test_names_that_never_cross(served, name):
    """G3: topics of NetworkTables only are not delivered to other protocols, and not stored."""
    page = await poll(served, "/**")
    async with await robot(served) as client, await wamp.join(served.url) as other:
        await other.subscribe("", match="prefix")
        await client.publish(name, 1)
        await client.subscribe(name, all=True)
        await client.put(1, 1, 2.5)
        await client.publish("/shared", 2)
        await client.put(2, 1, 3.5)
        assert [(each["channel"], each["data"]) for each in await page(1)] == [("/shared", 3.5)]
        assert (await other.receive())[4] == [3.5]
    assert [event["channel"] for event in await history(served, "/**")] == ["/shared"]


async def test_what_json_has_not_stays_in_networktables(served):
    """A value that JSON cannot express is counted, but not delivered or stored; the next value is."""
    page = await poll(served, "/robot/*")
    async with await robot(served) as client, await robot(served, "dash") as dash:
        await dash.subscribe("/robot/x", all=True)
        await client.publish("/robot/x", 1)
        await client.put(1, 1, float("nan"))
        await client.put(1, 2, float("inf"))
        await client.put(1, 3, 1.0)
        assert [event["data"] for event in await page(1)] == [1.0]
        assert [(await dash.value("/robot/x")).time_us for _ in range(3)] == [1, 2, 3]
    assert [event["data"] for event in await history(served, "/robot/x")] == [1.0]
    assert served.house.protocol("nt4").bridge.unshared == {"no_json": 2}


async def test_names_with_any_letters(served):
    """G2: each protocol shows a name in the form that it allows, and different names stay different."""
    page = await poll(served, "/SmartDashboard/*", "/x/*")
    async with await robot(served) as client:
        for pubuid, name in enumerate(("/SmartDashboard/Auto Chooser", "/x/.type", "/x/é!20"), 1):
            await client.publish(name, pubuid)
            await client.put(pubuid, 1, float(pubuid))
        assert [event["channel"] for event in await page(3)] == [
            "/SmartDashboard/Auto!20Chooser",
            "/x/!2etype",
            "/x/!c3!a9!2120",
        ]
        await client.subscribe("/SmartDashboard/Auto Chooser")
        assert (await client.value("/SmartDashboard/Auto Chooser")).value == 1.0
        assert (await curl(served, "/SmartDashboard/Auto!20Chooser", 9))["successful"]
        assert (await client.value("/SmartDashboard/Auto Chooser")).value == 9.0


async def test_who_hears_himself(served):
    """G6: a Bayeux publisher gets its own events, those of WAMP and NetworkTables do not."""
    page = await poll(served, "/robot/x")
    async with await robot(served) as client, await wamp.join(served.url) as other:
        await other.subscribe("robot.x")
        await client.publish("/robot/x", 1)
        await client.subscribe("/robot/x", all=True)
        await client.put(1, 1, 1.0)
        await page(1)
        assert (await other.receive())[4] == [1.0]
        assert (await page.publish("/robot/x", 2))["successful"]
        assert (await other.receive())[4] == [2]
        await other.publish("robot.x", [3])
        assert [event["data"] for event in await page(2)] == [2, 3]
        assert [(await client.value("/robot/x")).value for _ in range(2)] == [2.0, 3.0]
        assert await other.receive_all() == []


async def test_wamp_gets_the_last_value_if_it_asks_for_it(served):
    """G7: `get_retained` delivers the last value, also for a pattern."""
    async with await robot(served) as client, await wamp.join(served.url) as other:
        await client.publish("/robot/x", 1)
        await client.put(1, 1, 1.5)
        await client.quiet()
        await other.subscribe("robot.", match="prefix", get_retained=True)
        said = await other.receive()
        assert (said[3]["topic"], said[3]["retained"], said[4]) == ("robot.x", True, [1.5])


async def test_a_page_gets_the_last_values_if_it_asks_for_them(served):
    """A subscribe with `ext.latest` brings the newest value of each matching topic once, and again if repeated."""
    async with await robot(served) as client:
        for pubuid, name in enumerate(["/robot/a", "/robot/b", "/other"]):
            await client.publish(name, pubuid)
            await client.put(pubuid, 1_000_000, 1.0)
            await client.put(pubuid, 2_000_000, 2.0)
        await client.time()  # the server has then read all of that
        without = await poll(served, "/robot/*")
        page = await poll(served, "/robot/*", latest=True)
        values = {(event["channel"], event["data"], event["ext"]["nt4"]["time"]) for event in await page(2)}
        assert values == {("/robot/a", 2.0, 2_000_000), ("/robot/b", 2.0, 2_000_000)}
        again = {**subscribe(page.client_id, "/robot/b"), "ext": {"latest": True}}
        assert (await page.wire.post(again)).data == [2.0]  # in the response of the reply
        await client.put(0, 3_000_000, 3.0)
        assert [event["data"] for event in await page(1)] == [3.0]
        assert [event["data"] for event in await without(1)] == [3.0]


async def test_asked_again_and_again_in_one_request_a_page_gets_the_last_values_once(served):
    """Else one request of 100 kB would make the server search all its topics a thousand times."""
    async with await robot(served) as client:
        for pubuid, name in enumerate(["/robot/a", "/robot/b"]):
            await client.publish(name, pubuid)
            await client.put(pubuid, 1_000_000, 1.0)
        await client.time()
        page = await poll(served, "/other")
        wanted = subscribe(page.client_id, "/robot/*", "/robot/a", "/robot/**")
        again = [{**wanted, "ext": {"latest": True}}] * 300
        answer = await page.wire.post(*again, unsubscribe(page.client_id, "/robot/**"))
        given = sorted(message["channel"] for message in answer.messages if "data" in message)
        assert given == ["/robot/a", "/robot/b"]
        odd = [
            {**subscribe(page.client_id, "/robot/a"), "ext": {"latest": value}} for value in (1, "true", None, [True])
        ]
        assert (await page.wire.post(*odd)).data == []


async def test_a_dashboard_replays_what_was_recorded(tmp_path):
    """Of each topic the newest value is recorded at intervals; a replay gets these values, then live ones."""
    async with meeting(tmp_path, record_every_s=60) as served:
        async with await robot(served) as client:
            await client.publish("/robot/x", 1)
            for number in range(5):
                await client.put(1, number + 1, float(number))
            await client.quiet()
            page = await poll(served, "/robot/x", replay={"/robot/x": -2})
            assert [event["data"] for event in await page(1)] == [0.0]
            await client.unpublish(1)  # the value that waits for its interval is recorded before the end
            assert [event["data"] for event in await page(1)] == [4.0]
        assert [event["data"] for event in await history(served, "/robot/x")] == [0.0, 4.0]
        assert served.house.protocol("nt4").bridge.shed == 3


async def test_a_page_s_value_is_recorded_in_its_turn_though_nothing_else_comes(tmp_path):
    """A page's value, set right after a robot's value was recorded, had to wait for the robot's next value."""
    async with meeting(tmp_path, record_every_s=0.5) as served, await robot(served) as client:
        await client.publish("/robot/x", 1)
        await client.put(1, 1, 0.0)
        await client.quiet()
        await (await served.wire()).post(publish("/robot/x", 1.5))
        tail = served.house.broker.commits.tail
        await served.until(lambda: [each.payload for each in tail.after(0) if each.topic == "robot/x"][1:] == [b"1.5"])


RULES = (
    Access("nt4", "*", "/robot/**"),
    Access("nt4", "subscribe", "/open/**"),
    Access("nt4", "*", "/$nt4/**"),
    Access("anonymous", "*", "/**"),
)


async def test_rules_hold_for_clients_of_the_role_nt4(tmp_path):
    """The policy applies to NetworkTables: of a prefix a client gets the allowed topics; all else is ignored."""
    async with meeting(tmp_path, RULES, bridge_in=("/",)) as served, await robot(served) as client:
        await client.subscribe("", prefix=True, all=True)
        for pubuid, name in enumerate(("/robot/x", "/open/x", "/closed/x", "own"), 1):
            await client.publish(name, pubuid)
        assert [(await client.text("announce"))["name"] for _ in range(2)] == ["/robot/x", "own"]
        for channel in ("/open/x", "/closed/x", "/open/y"):
            assert (await curl(served, channel, 1))["successful"]
        assert [(await client.text("announce"))["name"] for _ in range(2)] == ["/open/x", "/open/y"]
        await client.set_properties("/open/x", persistent=True)
        assert [each for each in await client.quiet() if isinstance(each, nt4.Text)] == []
        assert served.house.protocol("nt4").tables.ignored == {"denied": 3}


async def test_a_slow_page_lives_and_gets_the_newest(tmp_path):
    """A flood of values does not end the session of a page that does not poll; the values it misses are counted."""
    async with meeting(tmp_path) as served:
        page = await poll(served, "/robot/**")
        async with await robot(served) as client:
            for number in range(10):
                await client.publish(f"/robot/{number}", number)
            for number in range(5_000):
                await client.put(number % 10, number + 1, float(number))
            await client.time()
            await served.until(lambda: served.house.broker.conflated > 0)
            await client.quiet()
            events = []
            while not events or events[-1]["data"] != 4999.0:
                messages = (await page.wire.post(connect(page.client_id))).messages
                events += [each for each in messages if not each["channel"].startswith("/meta/")]
            latest = {event["channel"]: event["data"] for event in events}
            assert latest == {f"/robot/{number}": 4990.0 + number for number in range(10)}
            assert len(events) + served.house.broker.conflated == 5_000


async def test_sessions_and_subscriptions_are_told_of(served):
    """Sessions of NetworkTables are published on `/halley/sessions` and `/halley/subscriptions` as all others."""
    page = await poll(served, "/halley/sessions", "/halley/subscriptions")
    async with await robot(served) as client:
        await client.subscribe("/a", subuid=1)
        await client.subscribe("/b", prefix=True, subuid=2)
        await client.quiet()
    told = [each for each in [event["data"] for event in await page(7)] if each["protocol"] == "nt4"]
    assert [each["event"] for each in told] == [
        "opened",
        *(["subscribed"] * 2),
        *(["unsubscribed"] * 2),
        "closed",
    ]
    assert [each["channels"] for each in told if "channels" in each] == [["/a"], ["/b*"], ["/a"], ["/b*"]]
    assert told[0]["authid"] == "robot"


async def test_what_waits_to_be_recorded_when_it_is_erased_is_not_recorded_later(tmp_path):
    """Also events that are just being written are gone: from the log, the newest events and WAMP's retained ones."""
    async with meeting(tmp_path, record_every_s=60) as served, await robot(served) as client:
        await client.publish("/robot/x", 1)
        for number in range(3):
            await client.put(1, number + 1, float(number))
        await client.time()
        async with await wamp.join(served.url) as other:
            await other.send([16, 1, {"retain": True}, "robot.note", ["secret"]])
            while not served.house.broker.activity.traces.get("robot/note"):
                await asyncio.sleep(0)
            recorder = served.house.history.archive
            erased = await recorder.purge(Erasure(Pattern(Match.DESCENDANTS, "robot"), None), lambda *_: None)
            assert erased == 2
            await other.subscribe("robot.", match="prefix", get_retained=True)
            assert await other.receive_all() == []
        assert served.house.broker.commits.tail.after(0) is None
        await client.unpublish(1)
        await client.time()
        await client.publish("/robot/x", 2)
        await client.put(2, 10, 10.0)
        await client.time()
        await recorder.flush()
        assert [event["data"] for event in await history(served, "/robot/**")] == [10.0]
