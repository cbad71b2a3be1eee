"""Behind a proxy: what cookies, hooks, origins and the log take from the headers of listed and of other proxies."""

from __future__ import annotations

import json

import pytest
from support.messages import HANDSHAKE, publish
from support.server import brisk, serving
from support.wire import post

CLIENT = "198.51.100.9"
TOLD = {"x_forwarded_for": f"203.0.113.1, {CLIENT}", "x_forwarded_proto": "https"}


def behind(*proxies, **more):
    """Return the settings of a server behind these proxies."""
    return brisk(proxies=proxies, open=True, hosts=("app.example",), **more)


@pytest.mark.parametrize("short_way", [True, False], ids=["short-way", "parsed"])
@pytest.mark.parametrize("is_listed", [True, False])
async def test_s44_everything_sees_the_real_client(is_listed, short_way):
    """S44: address, scheme and the cookie's Secure are those that a listed peer states, and no other, on both faces."""
    seen = []

    def register(halley):
        @halley.listener("/a")
        def look(session, message):
            seen.append((message.context.address, message.context.scheme))

    async with serving(behind("127.0.0.0/8" if is_listed else "10.0.0.1", short_way=short_way), register) as served:
        wire = await served.wire()
        answer = await wire.post(HANDSHAKE, **TOLD)
        client_id = answer.messages[0]["clientId"]
        await wire.post(publish("/a", 1, clientId=client_id), cookie=answer.set_cookies[0].partition(";")[0], **TOLD)
        (opened,) = [line for line in served.log if line["event"] == "session_opened"]
        assert ("Secure" in answer.set_cookies[0].split("; ")) is is_listed
        assert opened["address"] == (CLIENT if is_listed else "127.0.0.1")
        assert seen == [(CLIENT, "https") if is_listed else ("127.0.0.1", "http")]


@pytest.mark.parametrize(
    ("proto", "origin", "status"),
    [
        ("https", "https://app.example", 200),
        ("https", "https://app.example:443", 200),
        ("https", "http://app.example", 403),
        ("https", "http://app.example:443", 403),
        ("http", "http://app.example", 200),
    ],
)
async def test_the_same_site_is_that_of_the_scheme_the_client_used(proto, origin, status):
    """Host is the public name, without a port; the site also depends on the scheme that the client used."""
    async with serving(behind("127.0.0.1")) as served:
        wire = await served.wire()
        body = json.dumps([HANDSHAKE]).encode()
        answer = await wire.request(post(body, host="app.example", origin=origin, x_forwarded_proto=proto))
        assert answer.status == status


async def test_strangers_who_come_through_a_proxy_are_no_locals():
    """A loopback listener with a proxy in front is open to others, and grants no more than other listeners."""
    async with serving(behind("127.0.0.1")) as served:
        wire = await served.wire()
        (refused,) = (await wire.post(publish("/a", 1))).messages
        assert refused["successful"] is False
        body = json.dumps([HANDSHAKE]).encode()
        assert (await wire.request(post(body, host="other.example"))).status == 400
        assert (await wire.request(post(body, origin="http://localhost:3000"))).status == 403


@pytest.mark.parametrize(
    ("same_site", "partitioned", "attributes"),
    [
        ("Lax", False, "Secure; SameSite=Lax"),
        ("None", True, "Secure; SameSite=None; Partitioned"),
        ("Strict", False, "Secure; SameSite=Strict"),
    ],
)
async def test_the_cookies_other_attributes_are_settings(same_site, partitioned, attributes):
    """Section 7: a site whose pages are another site's needs None and Partitioned, which need Secure."""
    cookie = {"same_site": same_site, "partitioned": partitioned}
    async with serving(behind("127.0.0.1", cookie=cookie)) as served:
        (set_cookie,) = (await (await served.wire()).post(HANDSHAKE, **TOLD)).set_cookies
        assert set_cookie.endswith(f"; Path=/; HttpOnly; {attributes}")
