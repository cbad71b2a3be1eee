"""Request heads that the host refuses before an application sees them; the connection is closed (S1, S2, S4, S7)."""

from __future__ import annotations

import asyncio
import json

import pytest
from support.messages import publish
from support.refusals import CANARY, PUBLISH, refusal
from support.server import PARSED, SHORT_WAY
from support.wire import chunked, head, post, request

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.faces(SHORT_WAY, PARSED)]

BODY = json.dumps(publish("/canary", CANARY)).encode()
POST = "POST /bayeux HTTP/1.1"
HOST = "Host: 127.0.0.1"
LENGTH = f"Content-Length: {len(BODY)}"
CHUNKED = "Transfer-Encoding: chunked"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(head(POST, HOST, LENGTH, LENGTH, body=BODY), id="two-lengths"),
        pytest.param(head(POST, HOST, LENGTH, "Content-Length: 1", body=BODY), id="two-different-lengths"),
        pytest.param(head(POST, HOST, "Content-Length: -1", body=BODY), id="negative-length"),
        pytest.param(head(POST, HOST, "Content-Length: +5", body=BODY), id="signed-length"),
        pytest.param(head(POST, HOST, "Content-Length: 5, 5", body=BODY), id="list-of-lengths"),
        pytest.param(head(POST, HOST, "Content-Length: 0x10", body=BODY), id="hexadecimal-length"),
        pytest.param(head(POST, HOST, "Content-Length:", body=BODY), id="empty-length"),
        pytest.param(head(POST, HOST, CHUNKED, body=b"zz\r\n" + BODY), id="chunk-size-no-number"),
        pytest.param(head(POST, HOST, CHUNKED, body=b"-3\r\nabc\r\n0\r\n\r\n"), id="chunk-size-negative"),
        pytest.param(head(POST, HOST, CHUNKED, body=b"f" * 17 + b"\r\nabc\r\n0\r\n\r\n"), id="chunk-size-overflow"),
        pytest.param(head(POST, HOST, CHUNKED, body=b"3\r\nabcdef\r\n0\r\n\r\n"), id="chunk-longer-than-its-size"),
        pytest.param(head(POST, HOST, CHUNKED, body=b"3\nabc\n0\n\n"), id="chunks-with-bare-line-feeds"),
        pytest.param(PUBLISH.replace(b"\r\n", b"\n"), id="bare-line-feeds"),
        pytest.param(PUBLISH.replace(b"\r\n", b"\n", 2), id="one-bare-line-feed"),
        pytest.param(head(POST, HOST, f"X-Long: {CANARY}", " folded", LENGTH, body=BODY), id="folded-header"),
        pytest.param(head(POST, HOST, "Content-Length : 5", body=BODY), id="space-before-colon"),
        pytest.param(head(POST, HOST, f"X-{CANARY}: a\x00b", LENGTH, body=BODY), id="nul-in-header"),
        pytest.param(head(POST, HOST, f"X-{CANARY}: a\x1bb", LENGTH, body=BODY), id="escape-in-header"),
        pytest.param(head(POST, HOST, f"X {CANARY}: a", LENGTH, body=BODY), id="space-in-header-name"),
        pytest.param(head(f"POST /bayeux/\x1b{CANARY} HTTP/1.1", HOST, LENGTH, body=BODY), id="escape-in-path"),
        pytest.param(head(f"POST /bayeux/\xfc{CANARY} HTTP/1.1", HOST, LENGTH, body=BODY), id="path-not-ascii"),
        pytest.param(head("POST /bayeux", HOST, LENGTH, body=BODY), id="no-version"),
        pytest.param(head("POST /bayeux HTTP/0.9", HOST, LENGTH, body=BODY), id="old-version"),
        pytest.param(head("POST /bayeux HTTP/1.12", HOST, LENGTH, body=BODY), id="version-of-two-digits"),
        pytest.param(head("POST /bayeux RTSP/1.0", HOST, LENGTH, body=BODY), id="another-protocol"),
        pytest.param(head("SOURCE /bayeux ICE/1.0", HOST, LENGTH, body=BODY), id="icecast"),
        pytest.param(head(f"{CANARY} /bayeux HTTP/1.1", HOST), id="unknown-method"),
        pytest.param(head("CONNECT c4n4ry:443 HTTP/1.1", HOST), id="connect-method"),
        pytest.param(head("POST  /bayeux HTTP/1.1", HOST, LENGTH, body=BODY), id="two-spaces-before-the-target"),
        pytest.param(head("POST /bayeux  HTTP/1.1", HOST, LENGTH, body=BODY), id="two-spaces-behind-the-target"),
        pytest.param(b"\r\n" + head("POST  /bayeux HTTP/1.1", HOST, LENGTH, body=BODY), id="two-spaces-later"),
        pytest.param(head("GET    /     HTTP/1.1", HOST, f"X-Long: {CANARY}"), id="many-spaces"),
        pytest.param(head(" GET / HTTP/1.1", HOST), id="space-before-the-method"),
        pytest.param(head("GET / HTTP/1.1 ", HOST), id="space-behind-the-version"),
        pytest.param(head("GET\t/ HTTP/1.1", HOST), id="tab-in-the-request-line"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", id="http2-preface"),
        pytest.param(b"\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03" + CANARY.encode() * 30, id="tls-hello"),
    ],
)
async def test_s1_a_malformed_head_or_chunk_gets_400_and_the_connection_is_closed(served, data):
    """S1: a request that the parser does not understand is 400, and no application sees it."""
    await refusal(served, data, 400, "bad request", closes=True)


@pytest.mark.parametrize("line", ["GET  / HTTP/1.1", "GET /  HTTP/1.1"])
async def test_s1_two_spaces_in_a_request_line_are_found_wherever_the_head_is_split(served, line):
    """S1: the line is refused if it arrives in two pieces, byte by byte, or behind another request."""
    data = head(line, HOST, "X-Two: a  b")
    for cut in range(1, len(data) - 1):
        wire = await served.wire()
        await wire.send(data[:cut])
        for _ in range(3):
            await asyncio.sleep(0)
        assert (await wire.request(data[cut:])).status == 400
        await wire.close()
    for first in (PUBLISH, chunked(BODY), request("GET", "/nowhere")):
        for split in (0, 5, len(data) - 3):
            wire = await served.wire()
            await wire.send(first + data[:split])
            for _ in range(3):
                await asyncio.sleep(0)
            await wire.send(data[split:])
            assert (await wire.rest()).endswith(b"\r\n\r\nbad request")


async def test_two_spaces_elsewhere_are_no_fault(served):
    """Two spaces in a header or body are part of it, even where they look like an invalid request line."""
    message = json.dumps(publish("/two", "POST  /bayeux HTTP/1.1"), indent=2).encode()
    requests = [post(message, x_two="a  b"), chunked(message), post(message + b"  "), request("GET", "/", x_two="a  b")]
    data = b"".join(requests)
    for pieces in ([data], [data[:20], data[20:]], [data[at : at + 1] for at in range(len(data))]):
        wire = await served.wire()
        for piece in pieces:
            await wire.send(piece)
            await asyncio.sleep(0)
        for _ in requests:
            assert (await wire.read()).status == 200
        assert (await wire.request(post(message, x_two="POST  /bayeux HTTP/1.1"))).status == 200
        await wire.close()


@pytest.mark.parametrize("first", [PUBLISH, chunked(BODY), request("GET", "/"), request("GET", "/nowhere")])
async def test_a_malformed_head_after_an_answer_gets_400_too(served, first):
    """S1: on a connection that stays open, the answer does not depend on how the request before was served."""
    wire = await served.wire()
    await wire.request(first)
    answer = await wire.request(b"c4n4ry\r\n\r\n")
    assert (answer.status, answer.text) == (400, "bad request")
    assert await wire.is_closed()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(head(POST, LENGTH, body=BODY), id="none"),
        pytest.param(head("POST /bayeux HTTP/1.0", LENGTH, body=BODY), id="none-in-http-1.0"),
        pytest.param(head(POST, HOST, HOST, LENGTH, body=BODY), id="two"),
        pytest.param(head(POST, HOST, f"Host: {CANARY}", LENGTH, body=BODY), id="two-different"),
        pytest.param(head("GET / HTTP/1.1"), id="none-for-a-page"),
    ],
)
async def test_s1_one_host_header_is_needed(served, data):
    """S1: a request with no or two Host headers is 400, on every path."""
    await refusal(served, data, 400, "expected exactly one Host header", closes=True)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(head(POST, HOST, f"X-Long: {CANARY}{'x' * 16_384}", LENGTH, body=BODY), id="one-value"),
        pytest.param(head(f"POST /bayeux/{CANARY}{'x' * 16_384} HTTP/1.1", HOST, LENGTH, body=BODY), id="path"),
        pytest.param(head(POST, HOST, f"X-{CANARY}{'x' * 16_384}: 1", LENGTH, body=BODY), id="name"),
        pytest.param(head(POST, HOST, *[f"X-{n}: {'x' * 1_000}" for n in range(17)], LENGTH, body=BODY), id="sum"),
        pytest.param(head(POST, HOST, f"X-Long: {'x' * 1_000_000}"), id="a-megabyte"),
    ],
)
async def test_s1_a_head_over_16_kib_gets_431_and_the_connection_is_closed(served, data):
    """S1: a head is refused as soon as it exceeds 16 KiB."""
    await refusal(served, data, 431, "request head too large", closes=True)


async def test_s1_a_head_that_never_ends_gets_431_at_the_limit_however_it_is_split(served):
    """S1: a head that arrives in many pieces is refused once 16 KiB have arrived, not when it ends."""
    wire = await served.wire()
    await wire.send(f"{POST}\r\n{HOST}\r\nX-Long: ".encode())
    for _ in range(16_384 // 512):
        await wire.send(b"x" * 512)
    answer = await wire.read()
    assert (answer.status, answer.text) == (431, "request head too large")
    assert await wire.is_closed()


async def test_s1_100_headers_are_served_and_s2_101_are_not(served):
    """S2: 100 headers are accepted, 101 are 431."""
    padding = [f"X-{number}: {CANARY}" for number in range(98)]
    wire = await served.wire()
    assert (await wire.request(head(POST, HOST, LENGTH, *padding, body=BODY))).status == 200
    data = head(POST, HOST, LENGTH, *padding, "X-More: 1", body=BODY)
    await refusal(served, data, 431, "too many headers", closes=True)


@pytest.mark.parametrize("path", ["/bayeux", "/cometd/connect", "/"])
async def test_s2_a_query_over_8_kib_gets_414(served, path):
    """S2: a query over 8 KiB is 414, on every path."""
    await refusal(served, request("GET", f"{path}?jsonp={CANARY}{'x' * 8_192}"), 414, "query too long", closes=True)


@pytest.mark.parametrize(
    "length", [262_145, 10**15, 2**63, 2**64, 10**30, 10**300], ids=lambda length: f"{len(str(length))}-digits"
)
async def test_s1_s5_a_length_that_is_too_large_gets_413_before_anything_is_read(served, length):
    """S5: a Content-Length over the limit is 413, with any number of digits."""
    data = head(POST, HOST, f"Content-Length: {length}")
    await refusal(served, data, 413, "request body too large", closes=True)


async def test_s4_length_and_transfer_encoding_together_get_400(served):
    """S4: proxies and servers disagree on which of the two counts, which allows request smuggling."""
    inner = b"0\r\n\r\n" + PUBLISH
    for lines in ((f"Content-Length: {len(inner)}", CHUNKED), (CHUNKED, f"Content-Length: {len(inner)}")):
        await refusal(served, head(POST, HOST, *lines, body=inner), 400, "bad request", closes=True)


@pytest.mark.parametrize(
    "lines",
    [
        ("Transfer-Encoding: gzip, chunked",),
        ("Transfer-Encoding: identity",),
        ("Transfer-Encoding: xchunked",),
        ("Transfer-Encoding: chunked, identity",),
        ("Transfer-Encoding: chunked, chunked",),
        (CHUNKED, CHUNKED),
        ("Transfer-Encoding: gzip", CHUNKED),
        ("Transfer-Encoding:",),
        ("Transfer-Encoding: \x0bchunked",),
    ],
    ids=lambda lines: "+".join(line.partition(":")[2].strip() or "empty" for line in lines),
)
async def test_s4_a_transfer_encoding_other_than_chunked_gets_400(served, lines):
    """S4: a Transfer-Encoding other than a single `chunked` is 400."""
    wire = await served.wire()
    before = served.books()
    answer = await wire.request(head(POST, HOST, *lines, body=b"0\r\n\r\n"))
    assert answer.status == 400
    assert answer.text in ("bad request", "transfer encoding not supported")
    assert await wire.is_closed()
    assert served.books() == before


@pytest.mark.parametrize("lines", [(CHUNKED,), (CHUNKED, "Connection: keep-alive"), ("Transfer-Encoding: identity",)])
@pytest.mark.parametrize("path", ["/bayeux", "/"])
async def test_s4_a_transfer_encoding_in_http_1_0_gets_400(served, path, lines):
    """S4: that version has no chunks, so a proxy may take them for the body, or the body's end for a request."""
    data = head(f"POST {path} HTTP/1.0", HOST, *lines, body=b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY))
    await refusal(served, data, 400, "transfer encoding not supported", closes=True)


@pytest.mark.parametrize(
    "target",
    [
        "http://c4n4ry.example",
        "http://c4n4ry.example:8080",
        "https://c4n4ry.example",
        "http://127.0.0.1.c4n4ry.example",
        "http://127.0.0.1@c4n4ry.example",
        "http://c4n4ry.example@127.0.0.1",
        "http://c4n4ry.example\\@127.0.0.1",
        "HTTP://C4N4RY.EXAMPLE",
        "http://127.0.0.1:99999",
    ],
)
@pytest.mark.parametrize("path", ["/bayeux", "/", "/history/a", "/ws"])
async def test_s7_an_absolute_target_with_a_host_that_is_not_ours_gets_400(served, target, path):
    """S7: RFC 9112, 3.2.2 lets the target's host count, so the Host header alone does not decide."""
    data = head(f"GET {target}{path} HTTP/1.1", HOST)
    wire = await served.wire()
    answer = await wire.request(data)
    assert answer.status == 400
    if answer.text != "bad request":  # what the parser does not understand as a target
        await refusal(served, data, 400, "this Host is not served here")


@pytest.mark.parametrize("target", ["http://localhost", "http://127.0.0.1:1", "HTTP://LOCALHOST:8080", "https://[::1]"])
async def test_s7_an_absolute_target_with_a_host_of_ours_is_served(served, target):
    """RFC 9112, 3.2.2: a server must accept the absolute form, where Host need not be the same name."""
    wire = await served.wire()
    answer = await wire.request(head(f"POST {target}/bayeux HTTP/1.1", HOST, LENGTH, body=BODY))
    assert answer.messages == [{"channel": "/canary", "successful": True}]
    await refusal(
        served,
        head(f"POST {target}/bayeux HTTP/1.1", "Host: c4n4ry.example", LENGTH, body=BODY),
        400,
        "this Host is not served here",
    )


@pytest.mark.parametrize("method", ["PUT", "DELETE", "HEAD", "PATCH", "TRACE", "PROPFIND"])
@pytest.mark.parametrize("path", ["/bayeux", "/bayeux/", "/cometd/handshake"])
async def test_s7_other_methods_get_405_with_allow(served, method, path):
    """S7: the response to another method names the methods that are allowed."""
    wire = await served.wire()
    await wire.send(request(method, path))
    if method == "HEAD":
        answer = await wire.reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 405 ")
        assert b"\r\nallow: GET, POST, OPTIONS\r\n" in answer
    else:
        answer = await refusal(served, request(method, path), 405, "method not allowed; expected GET, POST or OPTIONS")
        assert answer.headers["allow"] == "GET, POST, OPTIONS"


@pytest.mark.parametrize(
    "host",
    [
        "c4n4ry.example",
        "127.0.0.1.c4n4ry.example",
        "localhost.c4n4ry.example:80",
        "127.0.0.1@c4n4ry.example",
        "[2001:db8::1]",
        "0.0.0.0",
        "[::1",
        "c4n4ry",
    ],
)
@pytest.mark.parametrize("path", ["/bayeux", "/"])
async def test_s7_a_host_that_is_not_ours_gets_400(served, host, path):
    """S7: a name that was made to point to this machine (DNS rebinding) is refused, on every path."""
    await refusal(served, request("GET", path, host=host), 400, "this Host is not served here")


@pytest.mark.parametrize(
    "host",
    [
        "c4n4ry@127.0.0.1",
        "127.0.0.1/c4n4ry",
        "127.0.0.1?c4n4ry",
        "127.0.0.1#c4n4ry",
        "127.0.0.1:c4n4ry",
        "127.0.0.1:99999",
    ],
)
async def test_s7_a_host_that_is_no_host_gets_400(served, host):
    """RFC 9112, 3.2: a Host with a user, path, query, fragment or invalid port is 400."""
    await refusal(served, request("POST", "/bayeux", BODY, host=host), 400, "this Host is not served here")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "127.1.2.3", "[::1]:8080", "[::1]"])
async def test_s7_loopback_names_are_served(served, host):
    """Loopback names are accepted with any port, because a proxy or tunnel can have another one."""
    wire = await served.wire()
    assert (await wire.request(request("POST", "/bayeux", BODY, host=host))).status == 200
