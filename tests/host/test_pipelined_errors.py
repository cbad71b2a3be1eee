"""What is wrong with a request that was sent ahead is answered behind the responses before it (RFC 9112, 9.3.2).

So nobody is refused what was done, and no client repeats it.
"""

from __future__ import annotations

import json

import pytest
from support.messages import connect, publish
from support.server import PARSED, SHORT_WAY, brisk, serving
from support.slow_policy import SlowPolicy
from support.wire import chunked, head, post, request

pytestmark = [pytest.mark.usefixtures("face"), pytest.mark.faces(SHORT_WAY, PARSED)]

PUBLISH = post(json.dumps([publish("/a", 1)]).encode())
HOST = "Host: 127.0.0.1"
WRONG = {
    "line": (b"bad\r\n\r\n", 400),
    "version": (b"GET / HTTP/2.0\r\nhost: 127.0.0.1\r\n\r\n", 505),
    "headers": (head("GET / HTTP/1.1", HOST, *(f"x-{n}: {n}" for n in range(105))), 431),
    "target": (head("GET http://[ HTTP/1.1", HOST), 400),
    "coding": (head("POST /bayeux HTTP/1.1", HOST, "transfer-encoding: gzip, chunked"), 400),
    "length": (head("POST /bayeux HTTP/1.1", HOST, "content-length: " + "9" * 20), 413),
    "chunk": (head("POST /bayeux HTTP/1.1", HOST, "transfer-encoding: chunked", body=b"zz\r\n"), 400),
    "trailer": (chunked(b"[]")[:-2] + b"Connection: close\r\n\r\n", 400),
}
BEFORE = {
    "a publish": [PUBLISH],
    "a publish by chunks": [chunked(b'[{"channel":"/a","data":1}]')],
    "an event": [request("POST", "/events/a", b"1")],
    "three": [PUBLISH, request("GET", "/"), request("POST", "/events/a", b"1")],
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("before", BEFORE)
async def test_an_error_is_answered_behind_what_was_sent_before(before, wrong):
    """Each request before it gets its response, in one piece with the error or not; what is behind it is not served."""
    data, status = WRONG[wrong]
    async with serving() as served:
        for between in (0, 1, len(data) - 1):
            wire = await served.wire()
            published = served.house.broker.published
            await wire.send(b"".join(BEFORE[before]) + data[:between])
            if between:
                await served.until(lambda before=published: served.house.broker.published > before)
            await wire.send(data[between:] + PUBLISH)
            statuses = [(await wire.read()).status for _ in BEFORE[before]]
            refusal = await wire.read()
            assert (statuses, refusal.status) == ([200] * len(statuses), status)
            assert refusal.headers["connection"] == "close"
            assert await wire.rest() == b""
            posts = sum(each.startswith(b"POST") for each in BEFORE[before])
            assert served.house.broker.published - published == posts
        assert served.watch.refused == {status: 3}
        assert not any(map(len, (served.watch.heads, served.watch.bodies)))


async def test_an_error_behind_a_held_poll_waits_for_its_answer_and_nothing_more_is_read():
    """The poll gets its events, and then the error comes; a publish behind that is not done."""
    async with serving(brisk(bayeux={"hold_s": 3600})) as served:
        client_id = await served.open_session("/a")
        wire, other = await served.wire(), await served.wire()
        held = post(json.dumps([connect(client_id, id="held")]).encode())
        await wire.send(held + b"bad\r\n\r\n" + PUBLISH)
        await served.until(lambda: served.house.engine.sessions.holds == 1)
        await wire.send(PUBLISH)
        assert served.house.broker.published == 0
        await other.post(publish("/a", "wake"))
        answer = await wire.read()
        assert (answer.replies[0]["id"], answer.data) == ("held", ["wake"])
        assert (await wire.read()).status == 400
        assert await wire.rest() == b""
        assert served.house.broker.published == 1


@pytest.mark.faces(SHORT_WAY)
async def test_a_poll_whose_peer_goes_before_the_error_is_answered_keeps_its_events():
    """What waits behind it is dropped with the connection."""
    async with serving(brisk(bayeux={"hold_s": 3600})) as served:
        client_id = await served.open_session("/a")
        wire, other = await served.wire(), await served.wire()
        await wire.send(post(json.dumps([connect(client_id)]).encode()) + b"bad\r\n\r\n")
        await served.until(lambda: served.house.engine.sessions.holds == 1)
        wire.reset()
        await served.until(lambda: served.house.engine.sessions.holds == 0)
        await other.post(publish("/a", 1))
        assert (await other.post(connect(client_id))).data == [1]


async def test_an_error_behind_the_last_request_of_a_connection_is_not_answered():
    """RFC 9112, 9.6: nothing is processed behind a response with `Connection: close`."""
    async with serving() as served:
        wire = await served.wire()
        await wire.send(post(json.dumps([publish("/a", 1)]).encode(), connection="close") + b"bad\r\n\r\n")
        assert (await wire.read()).status == 200
        assert await wire.rest() == b""


async def test_an_error_behind_a_stream_is_dropped():
    """A stream has its connection for itself: what was sent ahead behind its request is not served, nor refused."""
    async with serving() as served:
        wire = await served.wire()
        await wire.send(request("GET", "/events/a") + b"bad\r\n\r\n" + PUBLISH)
        head = await wire.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"text/event-stream" in head
        await (await served.wire()).request(request("POST", "/events/a", b"7"))
        assert b'"data":7' in await wire.reader.readuntil(b"7")
        assert served.house.broker.published == 1


async def test_a_server_that_leaves_answers_the_request_before_the_error():
    """The error may be answered or not; the publish that waits for a program's policy is."""
    policy = SlowPolicy()
    async with serving(register=lambda halley: halley.set_policy(policy)) as served:
        wire = await served.wire()
        await wire.send(PUBLISH + b"bad\r\n\r\n")
        await served.until(lambda: policy.asked == 1)
        served.server.begin_shutdown()
        await served.until(lambda: served.house.lifecycle.is_draining)
        policy.go.set()
        assert (await wire.read()).messages[0]["successful"] is True
        await wire.rest()


@pytest.mark.parametrize("path", ["/bayeux", "/wamp"])
async def test_a_handshake_behind_a_held_request_opens_behind_its_response(path):
    """A WebSocket may be asked for ahead as anything else; until the response before it is written it waits."""
    async with serving(brisk(bayeux={"hold_s": 3600})) as served:
        client_id = await served.open_session("/a")
        wire, other = await served.wire(), await served.wire()
        opening = request(
            "GET",
            path,
            upgrade="websocket",
            connection="upgrade",
            sec_websocket_key="dGhlIHNhbXBsZSBub25jZQ==",
            sec_websocket_version="13",
            sec_websocket_protocol="wamp.2.json",
        )
        await wire.send(post(json.dumps([connect(client_id)]).encode()) + opening)
        await served.until(lambda: served.house.engine.sessions.holds == 1)
        await other.post(publish("/a", 1))
        assert (await wire.read()).data == [1]
        assert (await wire.read()).status == 101
        wire.reset()
