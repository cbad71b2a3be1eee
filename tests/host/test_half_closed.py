"""A peer that ends its stream behind a whole request, and reads on, as `nc -N` and some clients of scripts do.

It gets what only it can miss. What a session would lose with a peer that has gone goes to nobody, since a page that was
closed ends its stream in the same way.
"""

from __future__ import annotations

import asyncio
import json
from urllib.parse import quote

import pytest
from support.messages import connect, publish
from support.server import PARSED, RECORDED, SHORT_WAY, TLS, brisk, later, serving
from support.slow_policy import SlowPolicy
from support.wire import chunked, post, request

from halley.host.timeouts import Turns

pytestmark = [pytest.mark.usefixtures("face"), pytest.mark.faces(SHORT_WAY, PARSED, RECORDED)]

PUBLISH = json.dumps([publish("/a", 1)]).encode()
LONG = json.dumps([publish("/a", "x" * 5_000)]).encode()
ANSWERED = {
    "a publish": (post(PUBLISH), 200),
    "a long publish": (post(LONG), 200),
    "a publish by chunks": (chunked(PUBLISH), 200),
    "a publish that asks first": (post(PUBLISH, expect="100-continue"), 200),
    "an event": (request("POST", "/events/a", b"1"), 200),
    "a handshake": (post(b'[{"channel":"/meta/handshake","version":"1.0"}]'), 200),
    "rights": (request("GET", "/rights"), 200),
    "a page": (request("GET", "/"), 200),
    "the head of a page": (request("HEAD", "/"), 200),
    "no page": (request("GET", "/nowhere"), 404),
    "no JSON": (post(b"[{"), 400),
    "no request": (b"bad\r\n\r\n", 400),
}


async def answers_to(served, *pieces):
    """Send bytes and the end of the stream; return all that comes."""
    wire = await served.wire()
    for piece in pieces:
        await wire.send(piece)
    wire.half_close()
    return await wire.rest()


@pytest.mark.parametrize("what", ANSWERED)
async def test_a_whole_request_is_answered(what):
    """Its status comes, and then the end."""
    data, status = ANSWERED[what]
    async with serving() as served:
        came = (await answers_to(served, data)).removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert came.startswith(b"HTTP/1.1 %d " % status)
        await served.until(lambda: served.watch.connections == 0)


async def test_requests_that_were_sent_ahead_are_all_answered(monkeypatch):
    """Also what had not been parsed when the end came, and in the order of the requests."""
    monkeypatch.setattr(Turns, "run", later)
    async with serving() as served:
        data = [post(PUBLISH), request("GET", "/rights"), post(LONG), request("POST", "/events/a", b"1"), post(PUBLISH)]
        came = await answers_to(served, b"".join(data))
        assert came.count(b"HTTP/1.1 200 OK\r\n") == 5
        assert served.house.broker.published == 4
        came = await answers_to(served, b"".join(data) + b"bad\r\n\r\n")
        assert (came.count(b"HTTP/1.1 200 OK\r\n"), came.count(b"HTTP/1.1 400 ")) == (5, 1)
        came = await answers_to(served, data[0] + data[1] + data[2][:-1])
        assert came.count(b"HTTP/1.1 ") == 2


@pytest.mark.parametrize("path", ["/bayeux", "/events/a"])
async def test_a_publish_that_must_wait_is_answered(path):
    """It waits for a program's policy; the end of the stream has come long before."""
    policy = SlowPolicy()
    async with serving(register=lambda halley: halley.set_policy(policy)) as served:
        wire = await served.wire()
        await wire.send(post(PUBLISH) if path == "/bayeux" else request("POST", path, b"1"))
        await served.until(lambda: policy.asked == 1)
        wire.half_close()
        (connection,) = served.server.server_state.connections
        await served.until(lambda: connection.is_over)
        policy.go.set()
        assert (await wire.read()).status == 200
        assert await wire.rest() == b""
        assert served.house.broker.published == 1


@pytest.mark.parametrize("by", ["post", "script"])
async def test_the_events_that_the_answer_to_a_publish_would_carry_stay(by):
    """A session's own publish comes back to it with the answer, if its peer has not gone."""
    policy = SlowPolicy()
    async with serving(register=lambda halley: halley.set_policy(policy)) as served:
        client_id = await served.open_session("/a")
        message = json.dumps([publish("/a", "mine", clientId=client_id)])
        other, wire = await served.wire(), await served.wire()
        by_script = request("GET", f"/bayeux?jsonp=cb&message={quote(message)}")
        await wire.send(post(message.encode()) if by == "post" else by_script)
        await served.until(lambda: policy.asked == 1)
        wire.half_close()
        await served.until(lambda: any(each.is_over for each in served.server.server_state.connections))
        policy.go.set()
        came = await wire.rest()
        again = await other.post(connect(client_id, advice={"timeout": 0}))
        assert (b'"mine"' in came, again.data) == (False, ["mine"])


async def test_a_held_poll_is_over_with_its_peer():
    """Its session's next event waits for the next connect, and nothing is written."""
    async with serving(brisk(bayeux={"hold_s": 3600})) as served:
        client_id = await served.open_session("/a")
        wire, other = await served.hold(client_id), await served.wire()
        wire.half_close()
        assert await wire.rest() == b""
        await served.until(lambda: served.house.engine.sessions.holds == 0)
        await other.post(publish("/a", 1))
        assert (await other.post(connect(client_id))).data == [1]


async def test_a_connect_behind_a_request_that_is_answered_is_over_with_its_peer(monkeypatch):
    """It was not parsed yet when the end came: no poll is held for nobody."""
    monkeypatch.setattr(Turns, "run", later)
    async with serving(brisk(bayeux={"hold_s": 3600})) as served:
        client_id = await served.open_session("/a")
        came = await answers_to(served, post(LONG), post(json.dumps([connect(client_id)]).encode()))
        await served.until(lambda: served.watch.connections == 0)
        assert served.house.engine.sessions.holds == 0
        other = await served.wire()
        events = (await other.post(connect(client_id, advice={"timeout": 0}))).data
        assert came.count(b"x" * 5_000) + len(events) == 1


@pytest.mark.parametrize("behind", [b"", post(PUBLISH)], ids=["nothing", "a publish"])
async def test_an_end_at_any_byte_behind_a_connect_with_a_queue_loses_and_repeats_nothing(behind):
    """What the peer reads, and what the session's next connect gets, have each event once."""
    async with serving() as served:
        client_id = await served.open_session("/q")
        other = await served.wire()
        data = post(json.dumps([connect(client_id)]).encode()) + behind
        for number, end in enumerate(range(len(data) + 1)):
            await other.post(publish("/q", f"<{number}>"))
            came = await answers_to(served, data[:end])
            got = came.count(b"<%d>" % number)
            next_ones = (await other.post(connect(client_id, advice={"timeout": 0}))).data
            assert (got, next_ones) in ((1, []), (0, [f"<{number}>"])), f"end before {data[end:][:20]!r}"


async def test_a_stream_is_over_with_its_peer():
    """No stream begins or stays for a peer that has ended its own."""
    async with serving() as served:
        for count in range(20):
            wire = await served.wire()
            await wire.send(request("GET", "/events/a"))
            for _ in range(count):
                await asyncio.sleep(0)
            wire.half_close()
            await wire.rest()
        await served.until(lambda: served.watch.connections == 0)
        assert not served.house.broker.sessions


@pytest.mark.faces(RECORDED)
async def test_a_read_of_the_history_is_over_with_its_peer():
    """A page that waits for its turn is not read for a peer that has ended its stream."""
    async with serving() as served:
        wire = await served.wire()
        for _ in range(50):
            await wire.post(publish("/a", 1))
        await wire.close()
        for count in range(20):
            wire = await served.wire()
            await wire.send(request("GET", "/history/a"))
            for _ in range(count):
                await asyncio.sleep(0)
            wire.half_close()
            came = await wire.rest()
            assert came == b"" or came.startswith(b"HTTP/1.1 200 OK\r\n")
        await served.until(lambda: served.watch.connections == 0)


@pytest.mark.faces(TLS)
async def test_with_tls_the_end_of_a_stream_is_that_of_both():
    """A publish that waits is done, and its answer is not written."""
    policy = SlowPolicy()
    async with serving(register=lambda halley: halley.set_policy(policy)) as served:
        wire = await served.wire()
        await wire.send(post(PUBLISH))
        await served.until(lambda: policy.asked == 1)
        wire.half_close()
        assert await wire.rest() == b""
        policy.go.set()
        await served.until(lambda: served.house.broker.published == 1)
