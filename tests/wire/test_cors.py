"""Pages of other sites, over long-polling (A62).

Refused origins, and the sites that a public listener serves, are in `hardening/test_origins.py`.
"""

from __future__ import annotations

import json

import pytest
from support.messages import HANDSHAKE, connect, publish
from support.server import PARSED, SHORT_WAY, brisk, serving
from support.wire import post, request

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.faces(SHORT_WAY, PARSED)]

APP = "https://app.example"
LISTED = {"origins": (APP, "https://other.example:8443")}
NEEDED = ["content-type", "pragma", "x-requested-with", "authorization", "accept", "cache-control"]


def preflight(origin, path="/bayeux", **headers):
    asked = {"access_control_request_method": "POST", "access_control_request_headers": "content-type,pragma"}
    return request("OPTIONS", path, origin=origin, **asked, **headers)


def assert_readable(answer, origin):
    """Assert that a page of `origin`, and of no other, can read the response, with credentials."""
    assert answer.headers["access-control-allow-origin"] == origin
    assert answer.headers["access-control-allow-credentials"] == "true"
    assert answer.headers["vary"] == "Origin"
    assert answer.head.lower().count(b"access-control-allow-origin") == 1


def list_of(value):
    return [item.strip().lower() for item in value.split(",")]


@pytest.mark.parametrize("path", ["/bayeux", "/cometd/", "/cometd/handshake", "/bayeux/connect"])
@pytest.mark.parametrize("origin", ["http://localhost:3000", "http://127.0.0.1", "http://[::1]:5173"])
async def test_a_preflight_allows_what_clients_ask_for(served, origin, path):
    """A62: 200 and empty; POST, credentials, and the headers of cometd.js (`Content-Type`) and Faye (`Pragma`)."""
    wire = await served.wire()
    answer = await wire.request(preflight(origin, path))
    assert (answer.status, answer.body) == (200, b"")
    assert_readable(answer, origin)
    assert "post" in list_of(answer.headers["access-control-allow-methods"])
    assert set(NEEDED) <= set(list_of(answer.headers["access-control-allow-headers"]))
    assert answer.headers["access-control-max-age"] == "7200"


async def test_options_without_an_origin_name_the_methods(served):
    """A62, A69: the response is 200 and empty, and grants no site anything."""
    wire = await served.wire()
    answer = await wire.request(request("OPTIONS", "/bayeux"))
    assert (answer.status, answer.body) == (200, b"")
    assert list_of(answer.headers["allow"]) == ["get", "post", "options"]
    assert not [name for name in answer.headers if name.startswith("access-control-")]


async def test_without_an_origin_nothing_is_said_of_any(served):
    """A62: curl, robots and a page's own GET send no Origin, and get no CORS headers."""
    wire = await served.wire()
    answer = await wire.post(HANDSHAKE)
    assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize("origin", LISTED["origins"])
async def test_a_listed_origin_goes_through_a_whole_session(origin):
    """A62: preflight, handshake with a cookie, a held connect, and an event can all be read by the listed page."""
    async with serving(brisk(cors=LISTED)) as served:
        wire, held = await served.wire(), await served.wire()
        assert_readable(await wire.request(preflight(origin)), origin)
        shaken = await wire.post(HANDSHAKE, origin=origin)
        assert_readable(shaken, origin)
        client_id, cookie = shaken.messages[0]["clientId"], shaken.set_cookies[0].partition(";")[0]
        page = {"origin": origin, "cookie": cookie}
        subscribe = {"channel": "/meta/subscribe", "clientId": client_id, "subscription": "/cors"}
        assert_readable(await wire.post(connect(client_id), subscribe, **page), origin)
        await held.send(post(json.dumps([connect(client_id)]).encode(), **page))
        await served.until(lambda: served.house.engine.sessions.holds == 1)
        assert_readable(await wire.post(publish("/cors", 1), **page), origin)
        answer = await held.read()
        assert_readable(answer, origin)
        assert answer.data == [1]


@pytest.mark.parametrize("origin", ["https://app.example.evil", "http://app.example", "https://app.example:444"])
async def test_a_list_opens_the_door_to_nobody_else(origin):
    """A62, S19, S20: another scheme, port or suffix is another site."""
    async with serving(brisk(cors=LISTED)) as served:
        wire = await served.wire()
        for data, status in ((preflight(origin), 400), (post(b"[{}]", origin=origin), 403)):
            answer = await wire.request(data)
            assert answer.status == status
            assert not [name for name in answer.headers if name.startswith("access-control-")]


async def test_how_long_a_preflight_holds_is_a_setting():
    """A62: the lifetime of a preflight's result is a setting."""
    async with serving(brisk(cors={"max_age_s": 60})) as served:
        wire = await served.wire()
        answer = await wire.request(preflight("http://localhost"))
        assert answer.headers["access-control-max-age"] == "60"


async def test_a_page_of_this_very_server_needs_no_list(served):
    """An Origin that equals Host is the same site; browsers send it with each POST."""
    wire = await served.wire()
    for host in (f"127.0.0.1:{served.port}", f"localhost:{served.port}"):
        answer = await wire.post(HANDSHAKE, host=host, origin=f"http://{host}")
        assert answer.messages[0]["successful"] is True


async def test_faye_is_told_of_the_transport_it_calls_cross_origin(served):
    """Faye 1.4.3: a page of another site uses POST only under that name, which its connects then carry."""
    wire = await served.wire()
    offer = HANDSHAKE | {"supportedConnectionTypes": ["cross-origin-long-polling"]}
    (reply,) = (await wire.post(offer, origin="http://localhost:3000")).messages
    assert "cross-origin-long-polling" in reply["supportedConnectionTypes"]
    poll = connect(reply["clientId"], connectionType="cross-origin-long-polling")
    (reply,) = (await wire.post(poll, origin="http://localhost:3000")).messages
    assert reply["successful"] is True


async def test_where_no_other_site_is_served_that_transport_is_not_offered():
    """Otherwise Faye would try `cross-origin-long-polling` without success instead of JSONP."""
    async with serving(brisk(host="0.0.0.0", open=True)) as served:
        wire = await served.wire()
        (reply,) = (await wire.post(HANDSHAKE)).messages
        assert reply["supportedConnectionTypes"] == ["long-polling", "callback-polling", "websocket"]
