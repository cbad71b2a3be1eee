"""A recorded session, split at every byte, and with every single byte changed (D7)."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import quote

import pytest
from support.messages import HANDSHAKE, connect, disconnect, subscribe
from support.wire import DEADLINE_S, chunked, post, request, undated

pytestmark = pytest.mark.asyncio(loop_scope="module")

CLIENT_ID = "f" * 40
COOKIE = "BAYEUX_BROWSER=0123456789abcdef0123"


def json_of(*messages):
    return json.dumps(messages).encode()


def jsonp(*messages):
    return request("GET", f"/bayeux?jsonp=cb&message={quote(json.dumps(messages))}", cookie=COOKIE)


RECORDED = {
    "handshake": post(json_of(HANDSHAKE), path="/cometd/handshake", cookie=COOKIE),
    "connect": post(json_of(connect(CLIENT_ID, id=1, advice={"timeout": 0})), path="/bayeux/connect", cookie=COOKIE),
    "form": post(
        b"message=" + quote(json_of(subscribe(CLIENT_ID, "/a/*"))).encode(),
        content_type="application/x-www-form-urlencoded",
        cookie=COOKIE,
    ),
    "chunks": chunked(*(bytes([byte]) for byte in b'[{"channel":"/a/b",'), b'"data":"\xc3\xa9"}]', cookie=COOKIE),
    "script": jsonp(connect(CLIENT_ID, connectionType="callback-polling")),
    "preflight": request("OPTIONS", "/bayeux", origin="http://localhost", access_control_request_method="POST"),
    "refused": post(b"[{", origin="http://localhost"),
    "disconnect": post(json_of(disconnect(CLIENT_ID, id="x")), path="/bayeux/disconnect", cookie=COOKIE),
}
SESSION = b"".join(RECORDED.values())


def places(name):
    """Return where a request is cut or changed: at each byte of one of each kind, at each third of those like it."""
    return range(0, len(RECORDED[name]), 1 if name in {"handshake", "chunks", "script"} else 3)


@pytest.fixture
def same_ids(served, monkeypatch):
    """Give each session the same id, so that responses can be compared byte by byte."""
    for session in served.halley.sessions:
        session.disconnect()
    new_id = served.house.engine.sessions.new_id
    monkeypatch.setattr(
        served.house.engine.sessions,
        "new_id",  # no two sessions can share an id: a handshake may still be processed when its peer has left
        lambda: new_id() if served.halley.session(CLIENT_ID) else CLIENT_ID,
    )


async def turns(count):
    """Let the event loop process its sockets."""
    for _ in range(count):
        await asyncio.sleep(0)


async def replay(served, *pieces, nbytes):
    """Send the pieces, each after the previous one was read, and return `nbytes` bytes of the responses."""
    wire = await served.wire()
    for piece in pieces:
        await wire.send(piece)
        await turns(3)
    async with asyncio.timeout(DEADLINE_S):
        came = b""
        while len(came) < nbytes:
            data = await wire.reader.read(65_536)
            assert data
            came = undated(came + data)
    await wire.close()
    return came


async def record(served):
    """Return the responses to the whole session, sent request by request."""
    wire = await served.wire()
    answers = [await wire.request(data) for data in RECORDED.values()]
    await wire.close()
    assert [answer.status for answer in answers] == [200, 200, 200, 200, 200, 200, 400, 200]
    assert answers[4].called[1][1] == {"channel": "/a/b", "data": "é"}
    return b"".join(answer.head + answer.body for answer in answers)


async def test_a_session_sent_at_once_gets_the_same_answers(served, same_ids):
    """RFC 9112, 9.3.2: pipelined requests are answered in order."""
    expected = await record(served)
    assert await replay(served, SESSION, nbytes=len(expected)) == expected


@pytest.mark.parametrize("name", RECORDED)
async def test_a_session_cut_in_two_at_any_byte_gets_the_same_answers(served, same_ids, name):
    """D7: a cut at any byte of this request does not change the responses."""
    expected = await record(served)
    begin = SESSION.index(RECORDED[name])
    for place in places(name):
        cut = begin + place
        came = await replay(served, SESSION[:cut], SESSION[cut:], nbytes=len(expected))
        assert came == expected, f"cut before {SESSION[cut:][:40]!r}"


async def test_a_session_sent_byte_by_byte_gets_the_same_answers(served, same_ids):
    """D7: each byte in its own packet does not change the responses."""
    expected = await record(served)
    pieces = [bytes([byte]) for byte in SESSION]
    assert await replay(served, *pieces, nbytes=len(expected)) == expected


async def with_a_session(served):
    """Open the recorded session if it has ended, and end all others."""
    for session in served.halley.sessions:
        if session.id != CLIENT_ID:
            session.disconnect()
    if served.halley.session(CLIENT_ID) is None:
        wire = await served.wire()
        assert (await wire.request(RECORDED["handshake"])).messages[0]["clientId"] == CLIENT_ID
        await wire.close()


async def answer_to(served, data):
    """Send bytes and the end of the stream, and return the response."""
    wire = await served.wire()
    await wire.send(data)
    wire.half_close()
    came = await wire.rest()
    await wire.close()
    return came


@pytest.mark.parametrize("name", RECORDED)
async def test_a_request_that_ends_anywhere_is_not_answered_and_does_nothing(served, same_ids, name):
    """D7: a request that ends too early, after any number of its bytes, has no effect and no response."""
    await with_a_session(served)
    books, connections = served.books(), served.watch.connections
    for end in places(name):
        assert await answer_to(served, RECORDED[name][:end]) == b""
    assert served.books() == books
    await served.until(lambda: served.watch.connections <= connections)
    assert not any(map(len, (served.watch.heads, served.watch.bodies)))


@pytest.mark.parametrize("change", [b"", b"\x00", b'"', b"\n"], ids=["removed", "nul", "quote", "line-feed"])
@pytest.mark.parametrize("name", RECORDED)
async def test_a_request_with_any_byte_changed_gets_a_documented_answer(served, same_ids, name, change):
    """D7, P8: a changed request is accepted or refused with a status of A69, never with an internal error."""
    data = RECORDED[name]
    statuses = set()
    for place in places(name):
        await with_a_session(served)
        if came := await answer_to(served, data[:place] + change + data[place + 1 :]):
            assert came.startswith(b"HTTP/1.1 ")
            statuses.add(int(came[9:12]))
        if name == "handshake" and (session := served.halley.session(CLIENT_ID)):
            session.disconnect()
    assert statuses <= {200, 400, 403, 404, 405, 413, 414, 415, 431}
