"""Bayeux and WAMP with topics that have a type and a last value, over real sockets."""

from __future__ import annotations

import base64
import json
from time import monotonic

import pytest
import pytest_asyncio
from support import wamp
from support.messages import connect, publish, subscribe
from support.server import PARSED, SHORT_WAY, brisk, serving
from support.values import FakeValues
from support.wamp import ERROR, EVENT, PUBLISH
from support.wire import request

from halley.cli.publishing import publish_value
from halley.client import Client

pytestmark = pytest.mark.faces(SHORT_WAY, PARSED)

RAW = b"\x00\xff robots"
RAW_JSON = b'"\\u0000%b"' % base64.b64encode(RAW)
NT4 = {"type": "double", "time": 7}


@pytest_asyncio.fixture
async def served(tmp_path):
    async with serving(brisk(data_dir=str(tmp_path), history={"enabled": True, "free_bytes": 0})) as served:
        yield served


@pytest.fixture
def values(served):
    """A stand-in for NetworkTables, which keeps the values of some topics."""
    return FakeValues(served.house.broker, **{"robot/speed": "double", "robot/blob": "raw", "robot/full": ""})


async def polled(served, client_id):
    """Return the events that wait for a Bayeux session."""
    answer = await (await served.wire()).post({**connect(client_id), "advice": {"timeout": 0}})
    return [message for message in answer.messages if not message["channel"].startswith("/meta/")]


async def polled_live(served, client_id):
    """Return the waiting events without positions, which only some of them have: those recorded before delivery."""
    messages = await polled(served, client_id)
    for message in messages:
        message["ext"].pop("replay", None)
    return messages


async def replaying(served, channel, after=-2):
    """Open a Bayeux session that replays; return its clientId."""
    client_id = await served.open_session()
    asked = subscribe(client_id, channel, ext={"replay": {channel: after}})
    assert (await (await served.wire()).post(asked)).messages[0]["successful"]
    return client_id


async def recorded(served, count):
    """Wait until `count` of the robot's events are on disk."""
    tail = served.house.broker.commits.tail
    await served.until(lambda: sum(event.topic.startswith("robot/") for event in tail.after(0)) == count)


async def got(served, target, **headers):
    return (await (await served.wire()).request(request("GET", target, **headers))).body


async def test_values_are_shown_with_type_and_time(served, values):
    """Data is bare, with `ext.nt4` or `_nt4_type` and `_nt4_time` next to it; bytes stay bytes."""
    client_id = await served.open_session("/robot/*")
    async with await wamp.join(served.url) as text, await wamp.join(served.url, "wamp.2.msgpack") as binary:
        for client in (text, binary):
            await client.subscribe("robot.speed")
            await client.subscribe("robot.blob")
        values.put("robot/speed", b"1.5", monotonic())
        values.put("robot/blob", RAW_JSON, monotonic())
        assert await polled_live(served, client_id) == [
            {"channel": "/robot/speed", "data": 1.5, "ext": {"nt4": NT4}},
            {"channel": "/robot/blob", "data": json.loads(RAW_JSON), "ext": {"nt4": {"type": "raw", "time": 7}}},
        ]
        for client, blob in ((text, json.loads(RAW_JSON)), (binary, RAW)):
            events = [await client.receive() for _ in range(2)]
            assert [event[0] for event in events] == [EVENT, EVENT]
            assert [event[3:] for event in events] == [
                [{"_nt4_type": "double", "_nt4_time": 7}, [1.5]],
                [{"_nt4_type": "raw", "_nt4_time": 7}, [blob]],
            ]


async def test_live_ones_and_replaying_ones(served, values):
    """Sessions that replay get recorded values, others the live ones, and no session gets a value twice."""
    live = await served.open_session("/robot/speed")
    later = await replaying(served, "/robot/speed")
    values.put("robot/speed", b"1.5", monotonic())
    shown = [{"channel": "/robot/speed", "data": 1.5, "ext": {"nt4": NT4}}]
    assert await polled_live(served, live) == shown
    await recorded(served, 1)
    kept = await polled(served, later)
    position = served.house.broker.commits.tail.head
    assert kept == [{"channel": "/robot/speed", "data": 1.5, "ext": {"replay": position, "nt4": NT4}}]
    assert await polled(served, await replaying(served, "/robot/**")) == kept
    assert await polled(served, live) == []
    assert await polled(served, later) == []


async def test_the_history_of_values(served, values):
    """Only values have `nt4`: in a page, as lines, and in WAMP's event history."""
    await (await served.wire()).post(publish("/robot/name", "r2"))
    values.put("robot/speed", b"1.5", monotonic())
    values.put("robot/blob", RAW_JSON, monotonic())
    await recorded(served, 3)
    page = json.loads(await got(served, "/history/robot/*"))["events"]
    lines = await got(served, "/history/robot/*", accept="application/x-ndjson")
    assert [json.loads(line) for line in lines.splitlines()] == page
    assert [event.get("nt4") for event in page] == [None, NT4, {"type": "raw", "time": 7}]
    assert "nt4" not in page[0]
    async with await wamp.join(served.url, "wamp.2.cbor") as client:
        subscription = await client.subscribe("robot", match="prefix")
        events = (await client.call("wamp.subscription.get_events", subscription))[3]
        assert [event["args"] for event in events] == [["r2"], [1.5], [RAW]]
        assert [event["details"] for event in events] == [
            {"topic": "robot.name"},
            {"topic": "robot.speed", "_nt4_type": "double", "_nt4_time": 7},
            {"topic": "robot.blob", "_nt4_type": "raw", "_nt4_time": 7},
        ]


async def test_what_others_publish(served, values):
    """G5: a value of the topic's type reaches all subscribers, also bytes; else the error names the type."""
    client_id = await served.open_session("/robot/*")
    async with await wamp.join(served.url, "wamp.2.msgpack") as client:
        await client.subscribe("robot.speed")
        answer = await (await served.wire()).post(publish("/robot/speed", 2.5, clientId=client_id))
        assert answer.messages[0]["successful"]
        assert (await client.receive())[4] == [2.5]
        await client.publish("robot.blob", [RAW])
        heard = [*answer.messages[1:], *(await polled(served, client_id))]
        assert [event["data"] for event in heard] == [2.5, json.loads(RAW_JSON)]
        assert values.last["robot/blob"].payload == RAW_JSON
        refused = await client.ask(PUBLISH, {"acknowledge": True}, "robot.speed", ["fast"])
        assert refused[0] == ERROR
        assert refused[4:] == ["wamp.error.invalid_argument", [refused[5][0]]]
        assert "double" in refused[5][0]


@pytest.mark.parametrize("is_lone", [True, False])
async def test_what_bayeux_is_refused(served, values, is_lone):
    """G5: the refusals are 400, 400 and 503, for a single message and in a batch."""
    client_id = await served.open_session("/robot/*")
    wire = await served.wire()

    async def refused(*args, **fields):
        message = publish(*args, clientId=client_id, id="1", **fields)
        answer = await wire.post(*([message] if is_lone else [message, message]))
        assert [reply["successful"] for reply in answer.messages] == [False] * len(answer.messages)
        return answer.messages[-1]["error"]

    assert await refused("/robot/speed", "fast") == "400:double:value_type_mismatch"
    audience = {"audience": {"eligible_roles": ["staff"]}}
    assert await refused("/robot/speed", 1, ext=audience) == "400::value_for_some"
    assert await refused("/robot/full", 1) == "503::too_many_topics"
    assert await polled(served, client_id) == []
    assert served.house.broker.hits["topics"] == (1 if is_lone else 2)


async def test_a_repeated_publish_delivers_nothing(served, values):
    """The repeat gets the same reply as the first publish."""
    client_id = await served.open_session("/robot/speed")
    wire = await served.wire()
    message = publish("/robot/speed", 1.5, id="1", ext={"idempotency_key": "k"})
    first = (await wire.post(message)).messages
    assert first == (await wire.post(message)).messages == [{"id": "1", "channel": "/robot/speed", "successful": True}]
    assert len(await polled(served, client_id)) == 1
    async with await wamp.join(served.url) as client:
        publications = [await client.publish("robot.speed", [2.5], _idempotency_key="w") for _ in range(2)]
    assert publications[0] == publications[1]
    assert [event["data"] for event in await polled(served, client_id)] == [2.5]


async def test_the_program_is_refused_as_anybody(served, values):
    """The reply to a server session has the reason, as a client's has (G5)."""
    reply = await served.halley.publish("/robot/speed", "fast")
    assert (reply["successful"], reply["error"]) == (False, "400:double:value_type_mismatch")
    assert (await served.halley.publish("/robot/speed", 3))["successful"]
    assert values.last["robot/speed"].payload == b"3"


async def test_halley_publish_says_why(served, values, capsys):
    """The command line prints the refusal, and its exit code is that of a failure (G5)."""
    assert await publish_value(Client(served.url), "/robot/speed", "fast") == 1
    assert capsys.readouterr().err == "halley: not published: 400:double:value_type_mismatch\n"
    assert values.last == {}
