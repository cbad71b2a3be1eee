"""Bad input over Bayeux's WebSockets: each row of the closing codes, and each opening request that is refused."""

from __future__ import annotations

import json
import struct
from hashlib import sha256

import pytest
from support.bayeux_sockets import SOCKET_HANDSHAKE, BayeuxWire, socket_connect
from support.frames import BINARY, CLOSE, CONT, FIN, PING, RSV1, TEXT, next_frame, opening, sent, text
from support.messages import connect, publish
from support.server import PARSED, SHORT_WAY, TLS, brisk, serving
from support.wire import post, request

from halley.broker.limits import Watermark
from halley.settings import Access, Token

pytestmark = pytest.mark.faces(SHORT_WAY)

LIMITS = {"messages": 5, "nodes": 200, "nesting": 8, "fragments": 4}
SETTINGS = {"bayeux": {"message_bytes": 4_096, "pings_per_s": 2}, "limits": LIMITS}


def many(count):
    return json.dumps([publish("/a", 9)] * count).encode()


NOT_MESSAGES = "expected an array of Bayeux messages in JSON"
WRONG = {
    "not-json": (text(b"c4n4ry"), 1002, NOT_MESSAGES),
    "not-a-number": (text(b'[{"channel":"/a","data":NaN}]'), 1002, NOT_MESSAGES),
    "a-number": (text(b"5"), 1002, NOT_MESSAGES),
    "null": (text(b"null"), 1002, NOT_MESSAGES),
    "an-array-of-numbers": (text(b"[1]"), 1002, NOT_MESSAGES),
    "one-that-is-no-object": (text(b'[{"channel":"/a","data":9},1]'), 1002, NOT_MESSAGES),
    "empty": (text(b""), 1002, NOT_MESSAGES),
    "nested": (text(b'[{"channel":"/a","data":' + b"[" * 9 + b"]" * 9 + b"}]"), 1002, NOT_MESSAGES),
    "binary": (sent(BINARY, many(1)), 1003, "binary messages are not accepted"),
    "bad-utf8": (text(b'[{"channel":"/a","data":"\xff"}]'), 1007, "not UTF-8"),
    "bad-utf8-in-fragments": (sent(TEXT, b'["\xc3', flags=0) + sent(CONT, b'\x28"]'), 1007, "not UTF-8"),
    "rsv1": (sent(TEXT, many(1), flags=FIN | RSV1), 1002, None),
    "opcode-3": (sent(3, b"[]"), 1002, None),
    "opcode-11": (sent(11), 1002, None),
    "long-ping": (sent(PING, b"x" * 126), 1002, None),
    "fragmented-ping": (sent(PING, flags=0), 1002, None),
    "nothing-to-continue": (sent(CONT, b"[]"), 1002, None),
    "close-of-one-byte": (sent(CLOSE, b"x"), 1002, None),
    "close-999": (sent(CLOSE, struct.pack(">H", 999)), 1002, None),
    "close-1005": (sent(CLOSE, struct.pack(">H", 1005)), 1002, None),
    "unmasked": (sent(TEXT, many(1), masked=False), 1002, None),
    "too-long-by-its-word": (sent(TEXT, length=4_097), 1009, None),
    "negative-by-its-word": (sent(TEXT, length=2**63), 1009, None),
    "too-many-messages": (text(many(6)), 1009, "too many messages or values"),
    "too-many-values": (text(json.dumps([publish("/a", [9] * 300)]).encode()), 1009, "too many messages or values"),
    "too-many-fragments": (
        sent(TEXT, b"[", flags=0) + sent(CONT, b" ", flags=0) * 4 + sent(CONT, b"]"),
        1009,
        "too many fragments",
    ),
    "too-many-pings": (sent(PING) * 4, 1008, "too many pings"),
}


@pytest.mark.parametrize(("wrong", "code", "reason"), WRONG.values(), ids=WRONG)
async def test_bw41_what_is_no_message_closes_the_socket_and_nothing_is_lost(wrong, code, reason):
    """BW41 to BW43: what came before is done, nothing of the frame is, and the session goes on by another socket."""
    async with serving(brisk(**SETTINGS)) as served:
        socket = await BayeuxWire.join(served, "/a")
        await socket.hold()
        await socket.wire.send(text(json.dumps(publish("/a", 1, clientId=socket.client_id, id="1")).encode()) + wrong)
        frames = [await next_frame(socket.wire)]
        while frames[-1].opcode != CLOSE:
            frames.append(await next_frame(socket.wire))
        event, reply = json.loads(next(frame.data for frame in frames if frame.opcode == TEXT))
        assert (event["data"], reply["id"]) == (1, "1")
        assert (frames[-1].code, frames[-1].reason) == (code, reason or frames[-1].reason)
        payload = frames[-1].data
        assert b"c4n4ry" not in payload
        await socket.wire.send(sent(CLOSE, payload[:2]))
        assert await socket.wire.is_closed()
        await served.until(lambda: served.house.engine.sessions.holds == 0)
        await (await served.wire()).post(publish("/a", 2))
        again = await BayeuxWire.open(served)
        await again.say(socket_connect(socket.client_id, id="2", advice={"timeout": 0}))
        data = []
        while True:
            for message in await again.hear():
                if message.get("id") == "2":
                    assert message["successful"] is True
                    assert data == [2]
                    return
                data.append(message["data"])


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({}, "400::channel_missing"),
        ({"channel": "/a b"}, "402::session_unknown"),
        ({"channel": "/a b", "data": 1}, "405::channel_invalid"),
        ({"channel": "/a", "data": 1, "id": {}}, "405::message_id_invalid"),
        (connect("c4n4ry", connectionType="websocket"), "402::session_unknown"),
        (SOCKET_HANDSHAKE | {"version": "0.9"}, "400:1.0:version_unsupported"),
    ],
)
async def test_bw42_what_is_wrong_with_a_message_is_in_its_reply(message, error):
    """BW42, BW22: the socket stays open."""
    async with serving() as served:
        socket = await BayeuxWire.open(served)
        (reply,) = await socket.ask(message)
        assert reply["error"] == error or "data" not in message
        assert reply["successful"] is False
        if message.get("channel") == "/meta/connect":
            assert reply["advice"]["reconnect"] == "handshake"
        assert await socket.ask() == []


async def test_bw40_a_socket_without_a_session_is_closed():
    """BW40: 1008; one that has a session is not."""
    async with serving(brisk(bayeux={"hello_s": 0.3})) as served:
        socket, silent = await BayeuxWire.join(served), await BayeuxWire.open(served)
        frame = await silent.close_frame()
        assert (frame.code, frame.reason) == (1008, "no session")
        assert await socket.ask() == []


async def test_bw36_a_silent_peer_is_pinged_and_then_closed():
    """BW36: 1001; any frame counts as sound."""
    async with serving(brisk(bayeux={"ping_s": 0.2, "pong_s": 0.2, "hello_s": 60})) as served:
        wire = (await BayeuxWire.open(served)).wire
        assert await wire.reader.readexactly(2) == bytes((FIN | PING, 0))
        frame = await BayeuxWire(wire, None).close_frame()
        assert frame.code == 1001


UPGRADES = {
    "version-8": (opening("/bayeux", sec_websocket_version="8"), 426),
    "no-key": (opening("/bayeux", sec_websocket_key=""), 400),
    "short-key": (opening("/bayeux", sec_websocket_key="AAAA"), 400),
    "post": (opening("/bayeux", method="POST"), 405),
    "no-connection-upgrade": (request("GET", "/bayeux", upgrade="websocket"), 400),
    "a-body": (opening("/bayeux", content_length="2") + b"[]", 400),
    "foreign-origin": (opening("/bayeux", origin="http://evil.example"), 403),
    "null-origin": (opening("/bayeux", origin="null"), 403),
    "foreign-host": (opening("/bayeux", host="evil.example"), 400),
    "another-path": (opening("/bayeuxes"), 404),
}


@pytest.mark.faces(SHORT_WAY, TLS)
@pytest.mark.parametrize(("asked", "status"), UPGRADES.values(), ids=UPGRADES)
async def test_bw4_a_wrong_opening_request_is_refused(asked, status):
    """BW3, BW4: before the 101, in plain text."""
    async with serving() as served:
        answer = await (await served.wire()).request(asked)
        assert (answer.status, answer.headers["content-type"]) == (status, "text/plain; charset=utf-8")
        if status == 426:
            assert answer.headers["sec-websocket-version"] == "13"


@pytest.mark.faces(SHORT_WAY, PARSED)
@pytest.mark.parametrize("path", ["/bayeux", "/bayeux/", "/cometd", "/cometd/handshake", "/bayeux/a/b?c=d"])
async def test_bw1_every_path_of_bayeux_opens_a_websocket(path):
    """BW1, BW2: below the mounts too, with any query; no subprotocol is chosen of those that are offered."""
    async with serving() as served:
        wire = await served.wire()
        answer = await wire.request(opening(path, protocol="bayeux, c4n4ry"))
        assert answer.status == 101
        assert "sec-websocket-protocol" not in answer.headers


async def test_frames_in_the_piece_of_the_opening_request_are_read():
    """BW4: bytes behind the head are frames already."""
    async with serving() as served:
        wire = await served.wire()
        opened = await wire.request(opening("/bayeux", protocol="") + text(b"[]"))
        assert await BayeuxWire(wire, opened).hear() == []


async def test_bw5_a_session_of_a_socket_without_a_cookie_goes_on_by_post():
    """BW5, BW32: without a cookie; or with one, by which it is bound from then on."""
    async with serving() as served:
        socket = await BayeuxWire.join(served)
        assert socket.opened.set_cookies == []
        wire, mine, other = await served.wire(), *(f"BAYEUX_BROWSER={letter * 40}" for letter in "ab")
        message = publish("/a", 1, clientId=socket.client_id)
        assert (await wire.post(message)).messages[0]["successful"] is True
        assert (await wire.post(message, cookie=mine)).messages[0]["successful"] is True
        assert (await wire.post(message)).messages[0]["error"] == "402::session_unknown"
        assert (await wire.post(message, cookie=other)).messages[0]["error"] == "402::session_unknown"
        assert (await socket.ask(message | {"id": "1"}))[-1]["successful"] is True
        again = await BayeuxWire.open(served, cookie=mine)
        assert (await again.ask(message | {"id": "2"}))[-1]["successful"] is True


async def assert_refused(socket, message):
    """Assert that the socket is closed because it lacks the cookie, without a reply."""
    await socket.say(message)
    frame = await socket.close_frame()
    assert (frame.code, frame.reason) == (1008, "the browser cookie is missing")


async def test_bw34_a_session_by_post_is_claimed_by_the_socket_that_was_opened_before_it():
    """BW34: Faye opens its socket while it handshakes by POST; one that is opened afterwards has to show the cookie."""
    async with serving() as served:
        for is_bound_before in (True, False):
            socket, wire = await BayeuxWire.open(served), await served.wire()
            welcome = await wire.post(SOCKET_HANDSHAKE)
            client_id, cookie = welcome.messages[0]["clientId"], welcome.set_cookies[0].partition(";")[0]
            message = publish("/a", 1, clientId=client_id)
            if is_bound_before:
                assert (await wire.post(message, cookie=cookie)).messages[0]["successful"] is True
                await assert_refused(await BayeuxWire.open(served), socket_connect(client_id, id="1"))
            assert (await socket.ask(socket_connect(client_id, id="2")))[-1]["successful"] is True
            assert (await wire.post(message, cookie=cookie)).messages[0]["successful"] is True
            assert (await socket.ask(message))[-1]["successful"] is True
            await assert_refused(await BayeuxWire.open(served), socket_connect(client_id, id="3"))
            again = await BayeuxWire.open(served, cookie=cookie)
            (reply,) = await again.ask(socket_connect(client_id, id="4", advice={"timeout": 0}))
            assert reply["successful"] is True


async def test_bw5_a_bearer_token_of_the_opening_request_is_the_default_identity():
    """BW5: a bad one is refused with 401 and no 101; a handshake's own token wins."""
    settings = brisk(
        access=(Access("*", "*", "/**"),),
        tokens=tuple(Token(name, "staff", f"sha256:{sha256(name.encode()).hexdigest()}") for name in ("ann", "bob")),
    )
    async with serving(settings) as served:
        answer = await (await served.wire()).request(opening("/bayeux", authorization="Bearer c4n4ry"))
        assert (answer.status, answer.headers["www-authenticate"]) == (401, 'Bearer error="invalid_token"')
        socket = await BayeuxWire.open(served, authorization="Bearer ann")
        await socket.handshake()
        assert served.house.broker.sessions[socket.client_id].authid == "ann"
        socket = await BayeuxWire.open(served, authorization="Bearer ann")
        await socket.handshake(ext={"authentication": {"token": "bob"}})
        assert served.house.broker.sessions[socket.client_id].authid == "bob"


async def test_bw4_a_server_that_drains_opens_a_websocket_to_close_it():
    """BW4, BW26: 1001, since a client may take a status for a server without WebSockets; beyond a rate 503."""
    async with serving(brisk(bayeux={"turned_away_per_s": 3})) as served:
        served.house.engine.sessions.drain()
        for _ in range(3):
            socket = await BayeuxWire.open(served)
            farewell = await socket.close_frame()
            assert (farewell.code, farewell.reason) == (1001, "the server is shutting down")
        answer = await (await served.wire()).request(opening("/bayeux"))
        assert (answer.status, answer.headers["retry-after"]) == (503, "5")
        assert answer.text == "the server is shutting down"


async def test_a_server_that_is_full_opens_a_websocket_to_close_it():
    """1013 while memory is short, and the refusal is counted once; with a rate of 0, 503."""
    for per_s in (50, 0):
        async with serving(brisk(bayeux={"turned_away_per_s": per_s})) as served:
            before = await BayeuxWire.join(served)
            served.house.broker.memory = Watermark(1)  # less than this process already uses
            await served.until(lambda: served.house.broker.memory.is_over)
            if per_s:
                farewell = await (await BayeuxWire.open(served)).close_frame()
                assert (farewell.code, farewell.reason) == (1013, "the server is full")
                assert served.house.broker.hits["memory_share"] == 1
            else:
                answer = await (await served.wire()).request(opening("/bayeux"))
                assert (answer.status, answer.text) == (503, "the server is full")
            await before.hold()
            served.house.broker.memory = Watermark(2**60)
            await served.until(lambda served=served: not served.house.broker.memory.is_over)
            await BayeuxWire.join(served)


async def test_a_token_that_is_refused_is_a_status_at_any_time():
    """A client that shows a wrong token is refused while the server drains, too: to come back would not help."""
    settings = brisk(tokens=(Token("ann", "staff", f"sha256:{sha256(b'ann').hexdigest()}"),))
    async with serving(settings) as served:
        served.house.engine.sessions.drain()
        answer = await (await served.wire()).request(opening("/bayeux", authorization="Bearer c4n4ry"))
        assert answer.status == 401
        socket = await BayeuxWire.open(served, authorization="Bearer ann")
        assert (await socket.close_frame()).code == 1001


async def test_a_full_server_says_so():
    """A handshake over a socket is answered with 1013, as one by POST with 503."""
    async with serving(brisk(limits={"sessions": 1})) as served:
        await BayeuxWire.join(served)
        socket = await BayeuxWire.open(served)
        await socket.say(SOCKET_HANDSHAKE)
        assert (await socket.close_frame()).code == 1013


@pytest.mark.faces(SHORT_WAY, PARSED)
async def test_bw26_a_drain_answers_held_connects_and_closes():
    """BW26: with advice to return, then 1001."""
    async with serving() as served:
        held, idle = await BayeuxWire.join(served), await BayeuxWire.join(served)
        await held.hold()
        served.server.begin_shutdown()
        (reply,) = await held.hear()
        assert (reply["id"], reply["advice"]["reconnect"]) == ("held", "retry")
        assert (await held.close_frame()).code == (await idle.close_frame()).code == 1001


async def test_bw33_an_orderly_end_loses_nothing():
    """BW33: a FIN or a close frame that was read, with events published in the same moment."""
    async with serving() as served:
        for ending in (b"", sent(CLOSE)):
            socket = await BayeuxWire.join(served, "/a")
            publisher = await served.wire()
            await publisher.post(publish("/b", 0))
            socket.wire.writer.write(ending)
            if not ending:
                socket.wire.half_close()
            await publisher.post(*(publish("/a", number) for number in range(20)))
            came = [
                message["data"] for frame in _frames(await socket.wire.rest()) for message in frame if "data" in message
            ]
            again = await BayeuxWire.open(served)
            await again.say(socket_connect(socket.client_id, id="1", advice={"timeout": 0}))
            messages = await again.hear()
            came += [message["data"] for message in messages if "data" in message]
            assert came == list(range(20))


def _frames(data):
    """The messages of whole text frames that were read."""
    while len(data) > 2:
        nbytes, at = data[1], 2
        if nbytes == 126:
            nbytes, at = int.from_bytes(data[2:4], "big"), 4
        if data[0] & 15 == TEXT and len(data) >= at + nbytes:
            yield json.loads(data[at : at + nbytes])
        data = data[at + nbytes :]


async def test_bw33_a_reader_that_stops_gets_the_rest_by_another_way():
    """BW33: what the kernel took has arrived, the rest comes by POST: nothing is lost, and nothing twice."""
    count, size = 60, 50_000
    async with serving(brisk(limits={"queue_bytes": 16_000_000})) as served:
        wire = await served.wire(receive_buffer_bytes=4_096)
        socket = BayeuxWire(wire, await wire.request(opening("/bayeux", protocol="")))
        await socket.handshake()
        client_id = socket.client_id
        await socket.ask(socket_connect(client_id, id="c"))
        await socket.ask({"channel": "/meta/subscribe", "clientId": client_id, "subscription": "/a"})
        publisher = await served.wire()
        for number in range(count):
            await publisher.post(publish("/a", f"{number:06}" + "x" * size))
        poll = await served.wire()
        rest = []
        while len(rest) < count and (not rest or not rest[-1].startswith(f"{count - 1:06}")):
            answer = await poll.request(post(json.dumps([connect(client_id, advice={"timeout": 0})]).encode()))
            rest += answer.data
        came = [message["data"] for frame in _frames(await wire.rest()) for message in frame if "data" in message]
        assert [data[:6] for data in came + rest] == [f"{number:06}" for number in range(count)]
