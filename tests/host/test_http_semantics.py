"""What HTTP says of requests and responses apart from their framing: RFC 9110 and 9112, clause by clause."""

from __future__ import annotations

import asyncio
import json
from email.utils import parsedate_to_datetime
from time import time

import pytest
from support.messages import publish
from support.server import PARSED, SHORT_WAY, TLS, brisk, serving
from support.wire import chunked, head, post, request

pytestmark = [pytest.mark.usefixtures("face"), pytest.mark.faces(SHORT_WAY, PARSED, TLS)]

BODY = json.dumps([publish("/a", 1)]).encode()
HOST = "Host: 127.0.0.1"
OPENING = {
    "connection": "upgrade",
    "sec_websocket_key": "dGhlIHNhbXBsZSBub25jZQ==",
    "sec_websocket_version": "13",
    "sec_websocket_protocol": "wamp.2.json",
}


@pytest.mark.parametrize("scheme", ["http", "https", "ws"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_an_absolute_target_with_an_empty_path_is_the_root(method, scheme):
    """RFC 9112, 3.2.2 and RFC 9110, 4.2.3: a server accepts the absolute form, and an empty path is `/`."""
    async with serving() as served:
        wire = await served.wire()
        await wire.send(request(method, "/") + request("GET", "/nowhere"))
        page = await wire.reader.readuntil(b"\r\n\r\n")
        for target in ("127.0.0.1", "127.0.0.1:8080", "127.0.0.1?q=1", "localhost/", "127.0.0.1/?"):
            other = await served.wire()
            await other.send(request(method, f"{scheme}://{target}"))
            came = await other.reader.readuntil(b"\r\n\r\n")
            assert came.startswith(b"HTTP/1.1 200 OK\r\n")
            assert came.count(b"\n") == page.count(b"\n")
        other = await served.wire()
        assert (await other.request(request("GET", f"{scheme}://elsewhere.example"))).status == 400


@pytest.mark.faces(SHORT_WAY)
@pytest.mark.parametrize("target", ["http://127.0.0.1/ws", "http://127.0.0.1/bayeux?a=1", "ws://localhost/bayeux"])
async def test_a_websocket_is_opened_by_an_absolute_target_too(target):
    """RFC 6455, 4.2.1: the request target may be an absolute URI. Its host is checked like Host."""
    async with serving() as served:
        wire = await served.wire()
        assert (await wire.request(request("GET", target, upgrade="websocket", **OPENING))).status == 101
        wire.reset()
        wire, elsewhere = (
            await served.wire(),
            target.replace("127.0.0.1", "evil.example").replace("localhost", "e.test"),
        )
        refusal = await wire.request(request("GET", elsewhere, upgrade="websocket", **OPENING))
        assert (refusal.status, refusal.text) == (400, "this Host is not served here")


@pytest.mark.faces(SHORT_WAY)
@pytest.mark.parametrize("upgrade", ["foo, websocket", "WebSocket , h2c", "a/1,websocket,b"])
async def test_upgrade_is_a_list(upgrade):
    """RFC 9110, 7.8: a client names all protocols that it would take, in one line or in several."""
    async with serving() as served:
        for lines in ([f"upgrade: {upgrade}"], [f"upgrade: {name}" for name in upgrade.split(",")]):
            named = {name: value for name, value in OPENING.items() if name != "connection"}
            others = [f"{name.replace('_', '-')}: {value}" for name, value in named.items()]
            wire = await served.wire()
            await wire.send(head("GET /ws HTTP/1.1", HOST, *lines, "connection: keep-alive, Upgrade", *others))
            assert (await wire.read()).status == 101
            wire.reset()


async def test_options_of_the_server_says_what_it_allows():
    """RFC 9110, 9.3.7: `OPTIONS *` is about the server in general. It needs a Host that is served, as all do."""
    async with serving() as served:
        wire = await served.wire()
        for _ in range(2):
            answer = await wire.request(request("OPTIONS", "*"))
            assert (answer.status, answer.headers["allow"]) == (204, "GET, HEAD, POST, DELETE, OPTIONS")
            assert "content-length" not in answer.headers  # RFC 9110, 8.6
        assert (await wire.request(request("OPTIONS", "*", host="evil.example"))).status == 400


@pytest.mark.parametrize(("version", "status"), [("1.2", 200), ("1.9", 200), ("2.0", 505), ("3.0", 505), ("9.9", 505)])
async def test_a_later_version_of_http_1_is_served_and_another_is_not(version, status):
    """RFC 9110, 2.5 and 15.6.6: what says HTTP/1.2 means to be understood by who speaks 1.1."""
    async with serving() as served:
        wire = await served.wire()
        for first in (b"", request("GET", "/nowhere")):
            for data in (f"GET /rights HTTP/{version}", f"POST /bayeux HTTP/{version}"):
                wire = await served.wire()
                lines = [HOST, f"content-length: {len(BODY)}"] if data.startswith("POST") else [HOST]
                await wire.send(first + head(data, *lines, body=BODY if data.startswith("POST") else b""))
                if first:
                    assert (await wire.read()).status == 404
                answer = await wire.read()
                assert answer.status == status
                assert answer.head.startswith(b"HTTP/1.1 ")
                if status == 505:
                    assert answer.text == "expected HTTP/1.1"
                    assert await wire.is_closed()
                else:
                    assert (await wire.request(post(BODY))).status == 200


@pytest.mark.parametrize("line", ["GET /rights", "GET /rights RTSP/1.0", "GET /rights HTTP/0.9", "SOURCE / ICE/1.0"])
async def test_what_is_no_http_is_refused_behind_another_request_too(line):
    """RFC 9112, 3: the request line ends with HTTP/1.x."""
    async with serving() as served:
        for first in (request("GET", "/nowhere"), post(BODY), chunked(BODY)):
            wire = await served.wire()
            await wire.send(first + head(line, HOST))
            assert (await wire.read()).status in (200, 404)
            assert (await wire.read()).status == 400
            assert await wire.is_closed()


@pytest.mark.parametrize("name", ["Connection", "transfer-encoding", "Content-Length", "Host", "Upgrade", "TE"])
async def test_a_trailer_of_framing_is_refused_and_swallows_nothing(name):
    """RFC 9110, 6.5.1: such a field means something in a head only. The parser would drop the request behind it."""
    async with serving() as served:
        for value in ("close", "1", "chunked", "x"):
            wire = await served.wire()
            await wire.send(chunked(BODY)[:-2] + f"{name}: {value}\r\n\r\n".encode() + post(BODY))
            assert (await wire.read()).status == 400
            assert await wire.is_closed()
        assert served.house.broker.published == 0
        wire = await served.wire()
        await wire.send(chunked(BODY)[:-2] + b"X-Checksum: close\r\n\r\n" + post(BODY) + post(BODY))
        assert [(await wire.read()).status for _ in range(3)] == [200] * 3


async def test_http_1_0_expects_no_100():
    """RFC 9110, 10.1.1: a server ignores what a client of HTTP/1.0 says it expects."""
    async with serving() as served:
        wire = await served.wire()
        lines = ["POST /bayeux HTTP/1.0", HOST, "Expect: 100-continue", f"content-length: {len(BODY)}"]
        assert (await wire.request(head(*lines, body=BODY))).status == 200
        wire = await served.wire()
        await wire.send(post(BODY, expect="100-continue"))
        assert await wire.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert (await wire.read()).status == 200


HEADS = {
    "a page": request("HEAD", "/"),
    "no page": request("HEAD", "/nowhere"),
    "no method of it": request("HEAD", "/bayeux"),
    "another Host": request("HEAD", "/", host="evil.example"),
    "no Host": head("HEAD / HTTP/1.1"),
    "too many headers": head("HEAD / HTTP/1.1", HOST, *(f"x-{n}: {n}" for n in range(105))),
    "too long a query": request("HEAD", "/?" + "q" * 20_000),
    "a wrong version": head("HEAD / HTTP/2.0", HOST),
    "a wrong coding": head("HEAD / HTTP/1.1", HOST, "transfer-encoding: gzip"),
    "a wrong chunk": head("HEAD / HTTP/1.1", HOST, "transfer-encoding: chunked", body=b"zz\r\n"),
    "no WebSocket": request("HEAD", "/ws", upgrade="websocket", **OPENING),
    "events": request("HEAD", "/events/a"),
    "no such events": request("HEAD", "/events/a?last=x"),
}


@pytest.mark.parametrize("what", HEADS)
async def test_head_gets_no_body_whoever_refuses(what):
    """RFC 9110, 9.3.2: the response ends with its head, in which the length is that of a GET."""
    async with serving(brisk(limits={"linger_s": 0.1})) as served:
        wire = await served.wire()
        await wire.send(HEADS[what])
        wire.half_close()
        came = await wire.rest()
        assert came.startswith(b"HTTP/1.1 ")
        assert came.count(b"HTTP/1.1 ") == 1
        assert came.endswith(b"\r\n\r\n")


DATED = {
    "messages": post(BODY),
    "messages with another page's origin": post(BODY, origin="http://localhost"),
    "no JSON": post(b"[{"),
    "a page": request("GET", "/"),
    "the head of a page": request("HEAD", "/"),
    "no page": request("GET", "/nowhere"),
    "an event": request("POST", "/events/a", b"1"),
    "a stream": request("GET", "/events/a"),
    "a preflight": request("OPTIONS", "/bayeux", origin="http://localhost", access_control_request_method="POST"),
    "no request": b"bad\r\n\r\n",
    "no method": request("PUT", "/bayeux"),
    "no WebSocket": request("GET", "/ws", upgrade="websocket", connection="upgrade"),
    "rights": request("GET", "/rights"),
}


@pytest.mark.parametrize("what", DATED)
async def test_every_response_says_when_it_was_made(what):
    """RFC 9110, 6.6.1: an origin server with a clock sends Date. It is that of the second, as the clock goes on."""
    async with serving() as served:
        for _ in range(2):
            wire, began = await served.wire(), int(time())
            await wire.send(DATED[what])
            came = await wire.reader.readuntil(b"\r\n\r\n")
            (date,) = [line[6:].decode() for line in came.split(b"\r\n") if line.lower().startswith(b"date: ")]
            assert date.endswith(" GMT")
            assert began - 1 <= parsedate_to_datetime(date).timestamp() <= time()
            wire.reset()
            await asyncio.sleep(1.3 - time() % 1 if what == "messages" else 0)
