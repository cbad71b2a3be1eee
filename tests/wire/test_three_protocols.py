"""Three protocols together: a robot's client, a Bayeux client and WAMP clients, over real sockets."""

from __future__ import annotations

import base64
import json

import pytest_asyncio
from support import nt4, wamp
from support.messages import connect, publish, subscribe
from support.server import brisk, serving
from support.wamp import ERROR, EVENT, PUBLISH, PUBLISHED
from support.wire import request

from halley.protocols.bytes_text import to_text, to_z85

RAW = b"\x00\xff robots"
RAW_JSON = "\0" + base64.b64encode(RAW).decode()


@pytest_asyncio.fixture
async def served(tmp_path):
    settings = brisk(
        data_dir=str(tmp_path),
        history={"enabled": True, "free_bytes": 0},
        nt4={"enabled": True, "port": 0, "ping_s": 5, "pong_s": 10, "record_every_s": 0},
    )
    async with serving(settings) as served:
        yield served


async def polled(served, client_id):
    """Return the events that wait for a Bayeux session."""
    answer = await (await served.wire()).post({**connect(client_id), "advice": {"timeout": 0}})
    return [message for message in answer.messages if not message["channel"].startswith("/meta/")]


async def history(served, target):
    answer = await (await served.wire()).request(request("GET", f"/history{target}"))
    return json.loads(answer.body)["events"]


async def test_what_a_robot_publishes(served):
    """G5, G7: data is bare, with type and time next to it: live, in the history, and as the last value.

    A session that replays gets the recorded values, and no session gets a value twice.
    """
    live = await served.open_session("/robot/*")
    replaying = await served.open_session()
    asked = subscribe(replaying, "/robot/*", ext={"replay": {"/robot/*": -2}})
    assert (await (await served.wire()).post(asked)).messages[0]["successful"]
    robot = await nt4.connect(served.url, "robot")
    hearer = await wamp.join(served.url, "wamp.2.msgpack")
    await hearer.subscribe("robot", match="prefix")
    await robot.publish("/robot/speed", 1)
    await robot.publish("/robot/blob", 2, "raw")
    await robot.put(1, 7, 1.5)
    await robot.put(2, 8, RAW, nt4.RAW)
    await robot.time()
    speed, blob = {"type": "double", "time": 7}, {"type": "raw", "time": 8}
    heard = [await hearer.receive() for _ in range(2)]
    assert [each[0] for each in heard] == [EVENT, EVENT]
    assert [each[3:] for each in heard] == [
        [{"topic": "robot.speed", "_nt4_type": "double", "_nt4_time": 7}, [1.5]],
        [{"topic": "robot.blob", "_nt4_type": "raw", "_nt4_time": 8}, [RAW]],
    ]
    events = await polled(served, live)
    assert [(each["data"], each["ext"]["nt4"]) for each in events] == [(1.5, speed), (RAW_JSON, blob)]
    stored = await history(served, "/robot/*")
    assert [(each["data"], each["nt4"], each["protocol"]) for each in stored] == [
        (1.5, speed, "nt4"),
        (RAW_JSON, blob, "nt4"),
    ]
    again = await polled(served, replaying)
    assert [(each["data"], each["ext"]) for each in again] == [
        (1.5, {"replay": stored[0]["position"], "nt4": speed}),
        (RAW_JSON, {"replay": stored[1]["position"], "nt4": blob}),
    ]
    assert await polled(served, live) == await polled(served, replaying) == []
    late = await wamp.join(served.url)
    await late.subscribe("robot.speed", get_retained=True)
    retained = await late.receive()
    assert retained[3:] == [{"_nt4_type": "double", "_nt4_time": 7, "retained": True}, [1.5]]
    for client in (robot, hearer, late):
        await client.close()


async def test_what_the_others_publish(served):
    """G5, G6: a value of the topic's type reaches all subscribers; for another type the error names the type."""
    live = await served.open_session("/robot/speed")
    robot = await nt4.connect(served.url, "robot")
    await robot.publish("/robot/speed", 1)
    await robot.subscribe("/robot/speed", all=True)
    await robot.text("announce", name="/robot/speed")
    client = await wamp.join(served.url)
    await client.subscribe("robot.speed")
    answer = await (await served.wire()).post(publish("/robot/speed", 2, clientId=live, id="1"))
    assert answer.messages[0]["successful"]
    assert (await robot.value("/robot/speed")).value == 2.0
    assert (await client.receive())[4] == [2]
    await client.publish("robot.speed", [3.5], _idempotency_key="k")
    await client.publish("robot.speed", [3.5], _idempotency_key="k")
    assert (await robot.value("/robot/speed")).value == 3.5
    assert (await client.ask(PUBLISH, {"acknowledge": True}, "robot.speed", [4.5], {}))[0] == PUBLISHED
    assert (await robot.value("/robot/speed")).value == 4.5
    refused = await client.ask(PUBLISH, {"acknowledge": True}, "robot.speed", ["fast"])
    assert refused[4:] == ["wamp.error.invalid_argument", ["expected a value of type double"]]
    answer = await (await served.wire()).post(publish("/robot/speed", [1], clientId=live, id="2"))
    reply = next(message for message in answer.messages if message.get("id") == "2")
    assert (reply["successful"], reply["error"]) == (False, "400:double:value_type_mismatch")
    assert await robot.quiet() == []
    assert [each["data"] for each in await history(served, "/robot/speed")] == [2, 3.5, 4.5]
    for each in (robot, client):
        await each.close()


async def test_how_large_an_event_may_be(served):
    """By its JSON text, in which bytes are base64. A larger one is refused; a larger value stays in NetworkTables."""
    live = await served.open_session("/robot/*")
    robot, reader = await nt4.connect(served.url, "robot"), await nt4.connect(served.url, "reader")
    client = await wamp.join(served.url, "wamp.2.msgpack")
    await robot.publish("/robot/blob", 1, "raw")
    await reader.subscribe("/robot/blob", all=True)
    wire = await served.wire()
    for most, is_larger in ((49_146, False), (49_147, True)):
        blob, text = bytes(most), "x" * (65_534 + is_larger)
        answer = await client.ask(PUBLISH, {"acknowledge": True}, "robot.wamp", [blob])
        assert (answer[0] == ERROR) is is_larger
        assert answer[4:] == (["wamp.error.payload_size_exceeded"] if is_larger else [])
        reply = (await wire.post(publish("/robot/bayeux", text))).messages[0]
        assert (reply["successful"], reply.get("error")) == (
            not is_larger,
            "413::data_too_large" if is_larger else None,
        )
        await robot.put(1, most, blob, nt4.RAW)
        assert (await reader.value("/robot/blob")).value == blob
    assert served.house.protocol("nt4").bridge.unshared == {"too_large": 1}
    assert served.house.broker.hits["data_bytes"] == 2
    sizes = [(each["channel"], len(json.dumps(each["data"]))) for each in await polled(served, live)]
    assert sizes == [("/robot/wamp", 65_536), ("/robot/bayeux", 65_536), ("/robot/blob", 65_536)]
    assert len(await history(served, "/robot/*")) == 3
    late = await wamp.join(served.url)
    await late.subscribe("robot.blob", get_retained=True)
    assert await late.receive_all() == []
    for each in (robot, reader, client, late):
        await each.close()


ONE_TOPIC = [
    ("/t/v2!41", "t.v2!41", "/t/v2!41"),
    ("/t/rails!4b", "t.rails!4b", "/t/rails!4b"),
    ("/t/x!6A!6b", "t.x!6A!6b", "/t/x!6A!6b"),
    ("/t/a!21b", "t.a!21b", "/t/a!21b"),
    ("/t/!7e!24", "t.!7e!24", "/t/!7e!24"),
    ("/t/!ff!ab", "t.!ff!ab", "/t/!ff!ab"),
    ("/t/two!20words", "t.two!20words", "/t/two words"),
    ("/t/two!2120words", "t.two!2120words", "/t/two!20words"),
    ("/t/a!7cb", "t.a|b", "/t/a|b"),
    ("/t/a!217cb", "t.a!7cb", "/t/a!7cb"),
    ("/t/caf!c3!a9", "t.café", "/t/café"),
    ("/t/caf!21c3!a9", "t.caf!c3!a9", "/t/caf!c3!a9"),
]
"""What Bayeux, WAMP and NetworkTables call one topic."""


async def test_names_with_what_looks_like_an_escape(served):
    """A16: `!` before two digits is plain, unless they spell what the protocol cannot write. Each name comes back.

    Live, by a pattern, by replay and in the history; what one protocol publishes reaches the names of the others.
    """
    channels, uris, names = zip(*ONE_TOPIC, strict=True)
    robot, hearer = await nt4.connect(served.url, "robot"), await wamp.join(served.url)
    await robot.subscribe("/t/", prefix=True, all=True)
    await hearer.subscribe("t.", match="prefix")
    by_name, by_pattern, replaying = [await served.open_session(*more) for more in (channels, ["/t/*"], [])]
    wire = await served.wire()
    for pubuid, name in enumerate(names, 1):
        await robot.publish(name, pubuid, "int")
        await robot.text("announce", name=name)
    for number, channel in enumerate(channels):
        (reply,) = (await wire.post(publish(channel, number))).messages
        assert (reply["channel"], reply["successful"]) == (channel, True)
        assert (await robot.value(names[number])).value == number
        heard = await hearer.receive()
        assert (heard[3]["topic"], heard[4]) == (uris[number], [number])
        assert [(each["channel"], each["data"]) for each in await history(served, channel)] == [(channel, number)]
    await wire.post(subscribe(replaying, "/t/*", ext={"replay": {"/t/*": -2}}))
    for client_id in (by_name, by_pattern, replaying):
        assert [(each["channel"], each["data"]) for each in await polled(served, client_id)] == [
            (channel, number) for number, channel in enumerate(channels)
        ]
    for number, uri in enumerate(uris):
        await hearer.publish(uri, [-number])
    assert [(each["channel"], each["data"]) for each in await polled(served, by_name)] == [
        (channel, -number) for number, channel in enumerate(channels)
    ]
    for client in (robot, hearer):
        await client.close()


async def test_bytes_are_bytes_for_cometds_extension_too(tmp_path):
    """With `bayeux.bytes` = "z85" what one protocol publishes as bytes is bytes in the two others."""
    settings = brisk(
        data_dir=str(tmp_path),
        history={"enabled": True, "free_bytes": 0},
        bayeux={"bytes": "z85"},
        nt4={"enabled": True, "port": 0, "ping_s": 5, "pong_s": 10, "record_every_s": 0},
    )
    async with serving(settings) as served:
        live = await served.open_session("/robot/blob")
        robot = await nt4.connect(served.url, "robot")
        await robot.publish("/robot/blob", 1, "raw")
        await robot.subscribe("/robot/blob", all=True)
        hearer = await wamp.join(served.url, "wamp.2.cbor")
        await hearer.subscribe("robot.blob")
        await robot.put(1, 8, RAW, nt4.RAW)
        assert (await hearer.receive())[4:] == [[RAW]]
        sent = publish("/robot/blob", {"data": to_z85(RAW[::-1]), "last": True}, ext={"binary": {}})
        assert (await (await served.wire()).post(sent)).messages[0]["successful"]
        assert (await hearer.receive())[4:] == [[RAW[::-1]]]
        assert (await robot.value("/robot/blob")).value == RAW[::-1]
        await hearer.send([PUBLISH, 7, {"acknowledge": True, "exclude_me": True}, "robot.blob", [b""]])
        assert (await hearer.receive())[:2] == [PUBLISHED, 7]
        events = await polled(served, live)
        assert [each["data"] for each in events] == [
            {"data": to_z85(data), "last": True} for data in (RAW, RAW[::-1], b"")
        ]
        assert [each["ext"]["binary"] for each in events] == [{}, {}, {}]
        stored = await history(served, "/robot/blob")
        assert [each["data"] for each in stored] == [to_text(data) for data in (RAW, RAW[::-1], b"")]
        assert not any("ext" in each for each in stored)
        for client in (robot, hearer):
            await client.close()


async def test_the_history_shows_what_subscribers_got_of_an_ext(served):
    """A binary message that is an object to all protocols has its mark also where it is read later."""
    live = await served.open_session("/file")
    data = {"data": "009f3@^PB", "last": False, "meta": {"name": "f"}}
    sent = publish("/file", data, ext={"binary": {}, "authentication": {"token": "secret"}})
    assert (await (await served.wire()).post(sent)).messages[0]["successful"]
    (event,) = await polled(served, live)
    (stored,) = await history(served, "/file")
    assert event == {"channel": "/file", "data": data, "ext": {"replay": stored["position"], "binary": {}}}
    assert (stored["data"], stored["ext"]) == (data, {"binary": {}})
