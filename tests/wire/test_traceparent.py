"""A publisher's `traceparent`: from any protocol to all who receive the event, live, in the history and by replay."""

from __future__ import annotations

import asyncio
import json

import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families
from support import wamp
from support.messages import connect, publish, subscribe
from support.server import PARSED, SHORT_WAY, brisk, serving
from support.streams import StreamReader
from support.wire import post, request

from halley.server.metrics import exposition

pytestmark = pytest.mark.faces(SHORT_WAY, PARSED)

ONE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TWO = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
LATER, LATER_AS_READ = f"01{ONE[2:-2]}0f-more", f"00{ONE[2:]}"
MALFORMED = [
    " ",
    "x",
    ONE.upper(),
    "00-" + "0" * 32 + ONE[35:],
    f"{ONE}, {ONE}",
    "0" * 10_000,
    f"ff{ONE[2:]}",
    "é" * 55,
]


@pytest_asyncio.fixture(loop_scope="function")
async def served(tmp_path, face):
    settings = brisk(data_dir=str(tmp_path), history={"enabled": True, "free_bytes": 0}, limits={"head_bytes": 32_768})
    async with serving(settings) as served:
        yield served


def malformed(served):
    """Return how many were dropped, as Prometheus would read it."""
    families = text_string_to_metric_families(exposition(served.house).decode())
    family = next(each for each in families if each.name == "halley_traceparents_malformed")
    return sum(each.value for each in family.samples if each.name.endswith("_total"))


async def history(served, channel="/a"):
    """Return data and `traceparent` of all events in a channel's history."""
    answer = await (await served.wire()).request(request("GET", f"/history{channel}"))
    return [(each["data"], each.get("ext", {}).get("traceparent")) for each in json.loads(answer.body)["events"]]


async def polled(served, client_id):
    """Return data and `traceparent` of the events that wait for a Bayeux session."""
    answer = await (await served.wire()).post({**connect(client_id), "advice": {"timeout": 0}})
    return [(each["data"], each["ext"].get("traceparent")) for each in answer.messages if "data" in each]


async def test_every_way_in_and_every_way_out(served):
    """By header, `ext` and option in; by `ext` and `_traceparent` out; for who replays it is the same as live."""
    live, replaying = await served.open_session("/a"), await served.open_session()
    hearer = await wamp.join(served.url, "wamp.2.json")
    await hearer.subscribe("a")
    everything = await wamp.join(served.url, "wamp.2.cbor")
    await everything.subscribe("", match="prefix")
    stream = await StreamReader.open(served, "/events/a")
    wire = await served.wire()
    await wire.post(publish("/a", "header"), traceparent=ONE)
    await wire.post(publish("/a", "ext", ext={"traceparent": TWO}), traceparent=ONE)
    await wire.request(request("POST", "/events/a", b'"events"', traceparent=TWO))
    publisher = await wamp.join(served.url, "wamp.2.json")
    await publisher.publish("a", ["option"], _traceparent=ONE, disclose_me=True)
    await publisher.publish("a", [], {"_traceparent": TWO, "x": 1})
    await wire.post(publish("/a", "none"))
    told = [ONE, TWO, TWO, ONE, TWO, None]
    in_wamp = [await anext(hearer) for _ in told]
    assert [each.details.get("_traceparent") for each in in_wamp] == told
    assert in_wamp[3].details["publisher"] == publisher.session
    assert in_wamp[4].kwargs == {"_traceparent": TWO, "x": 1}
    assert [(await anext(everything)).details.get("_traceparent") for _ in told] == told
    assert [each for _, each in await polled(served, live)] == told
    assert [each for _, each in await history(served)] == told
    assert [each.data.get("ext", {}).get("traceparent") for each in await stream.blocks(6)] == told
    await (await served.wire()).post(subscribe(replaying, "/a", ext={"replay": {"/a": -2}}))
    assert [each for _, each in await polled(served, replaying)] == told
    assert malformed(served) == 0


async def test_a_batch_has_the_header_of_its_request(served):
    """A message's own counts before it, whatever it is: a malformed one or null means that there is none."""
    client_id = await served.open_session()
    messages = [
        publish("/a", 1, clientId=client_id, id="1"),
        publish("/a", 2, clientId=client_id, id="2", ext={"traceparent": TWO}),
        publish("/a", 3, clientId=client_id, id="3", ext={"traceparent": "x"}),
        publish("/a", 4, clientId=client_id, id="4", ext={"traceparent": None}),
        publish("/a", 5, clientId=client_id, id="5", ext={"other": 1}),
    ]
    answer = await (await served.wire()).post(*messages, traceparent=ONE)
    assert all(each["successful"] for each in answer.messages)
    assert await history(served) == [(1, ONE), (2, TWO), (3, None), (4, None), (5, ONE)]
    assert malformed(served) == 1


async def test_a_connection_keeps_none(served):
    """Each request has its own, also where all else in its head is as in the one before."""
    wire = await served.wire()
    given = [None, ONE, TWO, None, None, ONE, ONE, None]
    for data, traceparent in enumerate(given):
        headers = {} if traceparent is None else {"traceparent": traceparent}
        assert (await wire.post(publish("/a", data), **headers)).messages[0]["successful"]
    both = [post(json.dumps(publish("/b", data)).encode(), traceparent=each) for data, each in enumerate((ONE, TWO))]
    await wire.send(b"".join([*both, post(json.dumps(publish("/b", 2)).encode())]))
    for _ in range(3):
        assert (await wire.read()).messages[0]["successful"]
    assert await history(served) == [*enumerate(given)]
    assert await history(served, "/b") == [(0, ONE), (1, TWO), (2, None)]


@pytest.mark.parametrize("text", MALFORMED)
@pytest.mark.parametrize("way", ["header", "events", "ext", "option", "kwarg"])
async def test_a_malformed_one_is_dropped_and_counted(served, way, text):
    """The event is published as it would be without."""
    wire = await served.wire()
    if way == "header":
        await wire.post(publish("/a", 1), traceparent=text)
    elif way == "events":
        await wire.request(request("POST", "/events/a", b"1", traceparent=text))
    elif way == "ext":
        await wire.post(publish("/a", 1, ext={"traceparent": text}))
    else:
        publisher = await wamp.join(served.url, "wamp.2.json")
        if way == "option":
            await publisher.publish("a", [1], _traceparent=text)
        else:
            await publisher.publish("a", [1], {"_traceparent": text})
    data = {"args": [1], "kwargs": {"_traceparent": text}} if way == "kwarg" else 1
    assert await history(served) == [(data, None)]
    assert malformed(served) == 1


@pytest.mark.parametrize("value", [7, True, [ONE], {"traceparent": ONE}])
async def test_another_type_is_as_good_as_malformed(served, value):
    """Nothing is refused because of it."""
    await (await served.wire()).post(publish("/a", 1, ext={"traceparent": value}))
    publisher = await wamp.join(served.url, "wamp.2.msgpack")
    await publisher.publish("a", [2], _traceparent=value)
    assert await history(served) == [(1, None), (2, None)]
    assert malformed(served) == 2


async def test_a_header_twice(served):
    """Which one is meant nobody knows; a server in front may have taken the other."""
    wire = await served.wire()
    for target, body in (("/bayeux", json.dumps(publish("/a", 1)).encode()), ("/events/a", b"2")):
        whole = request("POST", target, body, **{"Content-Type": "application/json", "traceparent": ONE})
        answer = await wire.request(whole.replace(b"\r\n\r\n", f"\r\nTraceparent: {TWO}\r\n\r\n".encode(), 1))
        assert answer.status == 200
    assert await history(served) == [(1, None), (2, None)]
    assert malformed(served) == 2


async def test_the_header_as_it_may_be_written(served):
    """Its name in any case, blanks around it, and a later version."""
    wire = await served.wire()
    await wire.request(request("POST", "/events/a", b"1", TraceParent=f" \t{ONE} "))
    await wire.post(publish("/a", 2), TRACEPARENT=LATER)
    assert await history(served) == [(1, ONE), (2, LATER_AS_READ)]


async def test_a_zero_byte_in_it_is_no_request(served):
    """As in any header."""
    whole = post(json.dumps(publish("/a", 1)).encode(), traceparent=f"{ONE[:-1]}\0")
    assert (await (await served.wire()).request(whole)).status == 400
    assert await history(served) == []


async def test_a_websocket_has_that_of_each_message(served):
    """The header of the request that opens it is not about what is sent later."""
    from websockets.asyncio.client import connect as open_socket

    url = served.bayeux.replace("http", "ws", 1)
    async with open_socket(url, additional_headers={"traceparent": ONE}) as socket:
        await socket.send(json.dumps([publish("/a", 1), publish("/a", 2, ext={"traceparent": TWO})]))
        async with asyncio.timeout(10):
            assert len(json.loads(await socket.recv())) == 2
    assert await history(served) == [(1, None), (2, TWO)]


async def test_a_page_of_another_origin_may_send_it(served):
    """Tools that trace a page add both headers to its requests."""
    asked = {"Origin": "http://localhost:3000", "Access-Control-Request-Method": "POST"}
    asked["Access-Control-Request-Headers"] = "content-type,traceparent,tracestate"
    answer = await (await served.wire()).request(request("OPTIONS", "/bayeux", **asked))
    allowed = answer.headers["access-control-allow-headers"].split(", ")
    assert {"traceparent", "tracestate"} <= {*allowed}


async def test_what_is_stored_outlives_the_server(tmp_path):
    """It is stored with the event, and so there after a restart, in WAMP's history too."""
    settings = brisk(data_dir=str(tmp_path), history={"enabled": True, "free_bytes": 0})
    async with serving(settings) as served:
        await (await served.wire()).post(publish("/a", 1), traceparent=ONE)
    async with serving(settings) as served:
        assert await history(served) == [(1, ONE)]
        reader = await wamp.join(served.url, "wamp.2.json")
        _, _, _, found, _ = await reader.call("wamp.subscription.get_events", await reader.subscribe("a"))
        assert [each["details"] for each in found] == [{"_traceparent": ONE}]
