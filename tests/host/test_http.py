"""HTTP connections over a raw socket: upgrades that are ignored, pipelined requests, and counts.

Malformed heads, slow peers and dead ones are in `hardening/`; what happens to events in `wire/test_dead_polls.py`.
"""

from __future__ import annotations

import json

import pytest
from support.messages import connect, publish
from support.server import PARSED, SHORT_WAY, TLS, brisk, later, serving
from support.wire import chunked, post, request

from halley.host.timeouts import Turns

pytestmark = [pytest.mark.usefixtures("face"), pytest.mark.faces(SHORT_WAY, PARSED, TLS)]

BODY = json.dumps(publish("/a", 1)).encode()
ANSWER = [{"channel": "/a", "successful": True}]


@pytest.mark.parametrize("protocol", ["h2c", "TLS/1.0", "websocket, h2c"])
async def test_an_upgrade_that_is_not_ours_is_passed_over(protocol):
    """RFC 9110, 7.8: the request is served without the upgrade, and so is the next one."""
    async with serving() as served:
        wire = await served.wire()
        asked = request("OPTIONS", "/bayeux", upgrade=protocol, connection="upgrade")
        for _ in range(2):
            assert (await wire.request(asked)).status == 200
        assert (await wire.request(post(BODY))).messages == ANSWER


@pytest.mark.parametrize("send", [post, chunked])
async def test_neither_is_the_body_of_a_request_that_asks_for_it(send):
    """RFC 9110, 7.8: `curl --http2` and Java's HttpClient request h2c with a POST, and expect a response to it."""
    async with serving() as served:
        wire = await served.wire()
        for _ in range(2):
            asked = send(BODY, upgrade="h2c", connection="upgrade, http2-settings")
            assert (await wire.request(asked)).messages == ANSWER


async def test_the_body_of_a_request_that_asks_for_an_upgrade_is_no_request():
    """S4: a proxy that forwards `Upgrade` treats the body as one; a server that parses it allows request smuggling."""
    async with serving() as served:
        wire = await served.wire()
        await wire.send(post(post(BODY), upgrade="h2c", connection="upgrade"))
        assert (await wire.read()).status == 400
        wire.half_close()
        assert await wire.rest() == b""
        assert served.house.broker.published == 0


async def test_an_upgrade_that_the_connection_does_not_ask_for_is_refused_at_once():
    """400 and the end, without `Connection: Upgrade`: what follows could be frames."""
    async with serving() as served:
        for path in ("/bayeux", "/cometd/", "/cometd/connect"):
            wire = await served.wire()
            key = {"sec_websocket_key": "dGhlIHNhbXBsZSBub25jZQ==", "sec_websocket_version": "13"}
            answer = await wire.request(request("GET", path, upgrade="websocket", **key))
            assert (answer.status, answer.text) == (
                400,
                "this request opens no WebSocket; use GET, with Connection: Upgrade, on a path that accepts them",
            )
            assert await wire.is_closed()


async def test_requests_ahead_of_their_answers_are_answered_in_order():
    """RFC 9112, 9.3.2: requests of any kind wait for an earlier one that is held."""
    async with serving(brisk(bayeux={"hold_s": 3600})) as served:
        client_id = await served.open_session("/a")
        wire, other = await served.wire(), await served.wire()
        held = post(json.dumps([connect(client_id, id="held")]).encode())
        later = [post(json.dumps([publish("/b", 1, id=str(number))]).encode()) for number in range(10)]
        await wire.send(b"".join([held, *later, request("GET", "/nowhere"), post(BODY)]))
        await served.until(lambda: served.house.engine.sessions.holds == 1)
        await other.post(publish("/a", "wake"))
        first = await wire.read()
        assert (first.messages[0]["id"], first.data) == ("held", ["wake"])
        assert [(await wire.read()).messages[0]["id"] for _ in range(10)] == list(map(str, range(10)))
        assert (await wire.read()).status == 404
        assert (await wire.read()).messages == ANSWER


async def test_a_peer_that_asks_on_and_on_without_reading_is_cut():
    """The number of pipelined requests is limited; browsers send none at all."""
    async with serving() as served:
        wire = await served.wire()
        await wire.send(post(BODY) * 100)
        await wire.rest()
        assert served.watch.cut == 1
        assert served.watch.connections == 0
        other = await served.wire()
        assert (await other.request(post(BODY))).messages == ANSWER


async def test_the_end_of_a_peer_is_noticed_after_a_request_refused_in_a_later_turn(monkeypatch):
    """What follows a refused request is read and discarded, so its sender can read why, and go before `linger_s`."""
    async with serving(brisk(limits={"linger_s": 3600})) as served:
        monkeypatch.setattr(Turns, "run", later)
        for size in (3_000, 300_000):
            wire = await served.wire()
            await wire.send(b"nonsense\r\n\r\n" + b"x" * size)
            assert (await wire.read()).status == 400
            await wire.close()
            await served.until(lambda: not served.watch.connections)
        assert served.watch.refused == {400: 2}


async def test_connections_and_refusals_are_counted():
    """Telemetry can read the number of connections, and of refused requests by status."""
    async with serving(brisk(limits={"linger_s": 0})) as served:
        first, second = await served.wire(), await served.wire()
        for wire in (first, second):
            assert (await wire.request(post(BODY))).messages == ANSWER
        assert served.watch.connections == 2
        assert (await second.request(post(BODY, content_length="999999"))).status == 413
        await served.until(lambda: served.watch.connections == 1)
        third = await served.wire()
        await third.send(b"nonsense\r\n\r\n")
        assert (await third.read()).status == 400
        await served.until(lambda: served.watch.connections == 1)
        assert served.watch.refused == {413: 1, 400: 1}
        assert served.watch.cut == 0


async def test_a_server_that_leaves_waits_for_a_slow_reader_and_no_longer():
    """The connection is closed once its response is read, and not only when the grace period ends."""
    data = [[number, "x" * 60_000] for number in range(8)]
    async with serving(brisk(drain={"grace_s": 60})) as served:
        client_id = await served.open_session("/a")
        slow, other = await served.wire(receive_buffer_bytes=4_096), await served.wire()
        for each in data:
            assert (await other.post(publish("/a", each))).messages == ANSWER
        await slow.send(post(json.dumps([connect(client_id)]).encode()))
        await served.until(lambda: len(served.watch.writes) == 1)
        served.server.begin_shutdown()
        await served.until(lambda: served.watch.connections == 1)
        assert (await slow.read()).data == data
        assert await slow.is_closed()
