"""Requests from pages of other sites: refused before the engine sees them, or allowed for their origin (S19-S21)."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from support.messages import HANDSHAKE, publish
from support.refusals import CANARY, refusal
from support.server import PARSED, SHORT_WAY, brisk, serving
from support.wire import head, post, request

from halley.settings import Access

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.faces(SHORT_WAY, PARSED)]

BODY = json.dumps(publish("/canary", CANARY)).encode()
FOREIGN = [
    "https://c4n4ry.example",
    "null",
    "http://127.0.0.1.c4n4ry.example",
    "http://localhost.c4n4ry.example",
    "http://127.0.0.1@c4n4ry.example",
    "https://example.org.c4n4ry.example",
    "file://",
    "chrome-extension://c4n4ry",
    "c4n4ry",
    "//127.0.0.1",
    "ftp://127.0.0.1",
    "http://[::1",
    "http://127.0.0.1:99999",
    "http://127.0.0.1:x",
]


@pytest.mark.parametrize("origin", FOREIGN)
@pytest.mark.parametrize("content_type", ["application/json", "text/plain;charset=UTF-8", ""])
async def test_s19_a_post_from_an_origin_that_is_not_listed_gets_403(served, origin, content_type):
    """S19: any content type is refused; forms and text/plain need no preflight, so nothing else prevents CSRF."""
    data = post(BODY, origin=origin, content_type=content_type)
    answer = await refusal(served, data, 403, "origin not allowed")
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("origin", FOREIGN)
async def test_s19_so_does_a_get(served, origin):
    """S19: a GET, as by a `fetch` of the JSONP address from another site's page, is 403 too."""
    await refusal(served, request("GET", "/bayeux?message=%5B%5D", origin=origin), 403, "origin not allowed")


@pytest.mark.parametrize(
    "origins",
    [
        ("http://127.0.0.1", "https://c4n4ry.example"),
        ("https://c4n4ry.example", "http://127.0.0.1"),
        ("http://127.0.0.1", "http://127.0.0.1"),
        ("http://127.0.0.1", ""),
        ("null", "null"),
    ],
)
@pytest.mark.parametrize(
    "line", ["POST /bayeux", "GET /bayeux?message=%5B%5D", "OPTIONS /bayeux", "GET /history/a", "GET /", "GET /ws"]
)
async def test_s19_two_origins_get_403_whatever_they_say(served, line, origins):
    """S19: of two origins a proxy may check the one that this server does not go by; on every path."""
    fields = [f"Origin: {origin}" for origin in origins]
    if line == "GET /ws":
        fields += ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"]
        fields += ["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol: wamp.2.json"]
    body = BODY if line.startswith("POST") else b""
    data = head(f"{line} HTTP/1.1", "Host: 127.0.0.1", *fields, f"Content-Length: {len(body)}", body=body)
    await refusal(served, data, 403, "origin not allowed", closes=line == "GET /ws")


@pytest.mark.parametrize("origin", FOREIGN)
async def test_s20_a_preflight_from_a_foreign_origin_gets_400_and_no_permission(served, origin):
    """S20: the response to a preflight from an Origin that is not listed has no Access-Control header."""
    data = request(
        "OPTIONS",
        "/bayeux",
        origin=origin,
        access_control_request_method="POST",
        access_control_request_headers="x-c4n4ry",
    )
    answer = await refusal(served, data, 400, "origin not allowed")
    assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize("origin", ["http://127.0.0.1", "https://localhost:3000", "http://[::1]:8080"])
async def test_s21_a_loopback_origin_gets_itself_back(served, origin):
    """S21: the response names exactly that origin, with `Vary: Origin` and credentials; never `*`."""
    wire = await served.wire()
    answer = await wire.request(post(BODY, origin=origin))
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == origin
    assert answer.headers["access-control-allow-credentials"] == "true"
    assert answer.headers["vary"] == "Origin"


async def test_s21_only_listed_and_own_origins_are_served_where_others_can_connect():
    """S21: on a public listener loopback origins are refused too, and `null` and `*` do not mean all origins."""
    settings = brisk(host="0.0.0.0", open=True, hosts=("halley.example",), cors={"origins": ("https://app.example",)})
    async with serving(settings) as served:
        wire = await served.wire()
        message = json.dumps(HANDSHAKE).encode()
        for host, origin, status in [
            ("halley.example", "https://app.example", 200),
            ("halley.example", "https://APP.example", 200),
            ("halley.example", "http://halley.example", 200),
            ("halley.example:8080", "http://halley.example:8080", 200),
            ("halley.example:443", "https://halley.example", 200),
            ("halley.example:8080", "http://halley.example:8081", 403),
            ("halley.example", "http://app.example", 403),
            ("halley.example", "https://app.example:444", 403),
            ("halley.example", "https://app.example.evil", 403),
            ("halley.example", "http://localhost", 403),
            ("halley.example", "null", 403),
            ("halley.example", "*", 403),
            ("127.0.0.1", "http://127.0.0.1", 400),
            ("evil.example", "http://evil.example", 400),
        ]:
            answer = await wire.request(post(message, host=host, origin=origin))
            assert answer.status == status, (host, origin)
            assert answer.headers.get("access-control-allow-origin") == (origin if status == 200 else None)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (post(b"c4n4ry", origin="http://localhost"), 400),
        (post(b"[]", origin="http://localhost"), 400),
        (post(BODY, origin="http://localhost", content_type="text/plain; charset=c4n4ry"), 415),
        (post(BODY, origin="http://localhost", content_encoding="gzip"), 415),
        (request("POST", "/bayeux", origin="http://localhost", content_length="300000"), 413),
        (request("GET", "/bayeux?jsonp=a(b&message=[]", origin="http://localhost"), 400),
        (request("GET", "/bayeux", origin="http://localhost", upgrade="websocket"), 400),
    ],
)
async def test_s21_error_answers_carry_it_too(served, data, status):
    """A62: errors have the CORS headers too, so that a page of an allowed origin can read them."""
    wire = await served.wire()
    answer = await wire.request(data)
    assert answer.status == status
    assert answer.headers["access-control-allow-origin"] == "http://localhost"
    assert answer.headers["access-control-allow-credentials"] == "true"
    assert answer.headers["vary"] == "Origin"
    assert answer.head.count(b"access-control-allow-origin") == 1


LISTED = {"origins": ("https://app.example",)}
OPENING = {
    "upgrade": "websocket",
    "connection": "Upgrade",
    "sec_websocket_version": "13",
    "sec_websocket_key": "dGhlIHNhbXBsZSBub25jZQ==",
    "sec_websocket_protocol": "wamp.2.json",
}


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        ({"cors": LISTED}, {"http://localhost:3000", "http://[::1]", "https://app.example"}),
        ({"cors": LISTED, "host": "0.0.0.0", "open": True}, {"https://app.example"}),
        (
            {"cors": LISTED, "access": (Access("*", "*", "/**"),)},
            {"http://localhost:3000", "http://[::1]", "https://app.example"},
        ),
        ({"cors": LISTED, "host": "0.0.0.0", "access": (Access("*", "*", "/**"),)}, {"https://app.example"}),
        ({"cors": LISTED, "proxies": ("10.0.0.0/8",), "open": True}, {"https://app.example"}),
    ],
    ids=["loopback", "open", "loopback-with-rules", "rules", "proxy"],
)
async def test_every_way_in_is_for_the_same_pages(settings, allowed):
    """The table of listeners: which pages of other sites can use POST, JSONP and WebSockets."""
    message = json.dumps([HANDSHAKE]).encode()
    async with serving(brisk(**settings)) as served:
        for origin in ("http://localhost:3000", "http://[::1]", "https://app.example", "https://evil.example", "null"):
            expected = 200 if origin in allowed else 403
            wire = await served.wire()
            assert (await wire.request(post(message, origin=origin))).status == expected, origin
            script = request("GET", f"/bayeux?message={quote(message)}", sec_fetch_site="cross-site")
            if origin != "null":
                script = script.replace(b"\r\n\r\n", f"\r\nReferer: {origin}/page\r\n\r\n".encode())
            assert (await wire.request(script)).status == expected, origin
            wire = await served.wire()
            opened = await wire.request(request("GET", "/ws", origin=origin, **OPENING))
            assert opened.status == (101 if origin in allowed else 403), origin
