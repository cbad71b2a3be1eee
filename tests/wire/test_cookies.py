"""The browser cookie on the wire: its attributes, when it is set, how it is read (B1, E12).

The sessions that it protects are tested in `hardening/test_foreign_sessions.py`.
"""

from __future__ import annotations

import re

import pytest
from support.messages import HANDSHAKE, connect, disconnect, publish, subscribe
from support.server import PARSED, SHORT_WAY, brisk, serving

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.faces(SHORT_WAY, PARSED)]

KNOWN = "0123456789abcdef0123456789abcdef"
EVERYTHING = {
    "name": "BROWSER",
    "path": "/bayeux",
    "domain": "app.example",
    "max_age_s": 3600,
    "same_site": "None",
    "secure": "on",
    "partitioned": True,
}


@pytest.mark.parametrize(
    ("cookie", "expected"),
    [
        pytest.param({}, "BAYEUX_BROWSER={}; Path=/; HttpOnly; SameSite=Lax", id="default"),
        pytest.param({"name": "TAB"}, "TAB={}; Path=/; HttpOnly; SameSite=Lax", id="name"),
        pytest.param({"path": "/bayeux"}, "BAYEUX_BROWSER={}; Path=/bayeux; HttpOnly; SameSite=Lax", id="path"),
        pytest.param(
            {"domain": "app.example"},
            "BAYEUX_BROWSER={}; Path=/; Domain=app.example; HttpOnly; SameSite=Lax",
            id="domain",
        ),
        pytest.param({"max_age_s": 60}, "BAYEUX_BROWSER={}; Path=/; Max-Age=60; HttpOnly; SameSite=Lax", id="max-age"),
        pytest.param({"max_age_s": 0}, "BAYEUX_BROWSER={}; Path=/; Max-Age=0; HttpOnly; SameSite=Lax", id="max-age-0"),
        pytest.param({"http_only": False}, "BAYEUX_BROWSER={}; Path=/; SameSite=Lax", id="for-scripts"),
        pytest.param({"same_site": "Strict"}, "BAYEUX_BROWSER={}; Path=/; HttpOnly; SameSite=Strict", id="strict"),
        pytest.param({"same_site": ""}, "BAYEUX_BROWSER={}; Path=/; HttpOnly", id="no-same-site"),
        pytest.param({"secure": "on"}, "BAYEUX_BROWSER={}; Path=/; HttpOnly; Secure; SameSite=Lax", id="secure"),
        pytest.param({"secure": "off"}, "BAYEUX_BROWSER={}; Path=/; HttpOnly; SameSite=Lax", id="insecure"),
        pytest.param(
            EVERYTHING,
            "BROWSER={}; Path=/bayeux; Domain=app.example; Max-Age=3600; HttpOnly; Secure; SameSite=None; Partitioned",
            id="everything",
        ),
    ],
)
async def test_the_cookie_has_exactly_the_attributes_of_the_settings(cookie, expected):
    """B1, E12: it has 160 random bits and the attributes of the settings, by both transports."""
    async with serving(brisk(cookie=cookie)) as served:
        wire = await served.wire()
        for answer in (await wire.post(HANDSHAKE), await wire.get(HANDSHAKE)):
            (set_cookie,) = answer.set_cookies
            value = re.search(r"=([0-9a-f]{40});", set_cookie)[1]
            assert set_cookie == expected.format(value)


async def test_a_cookie_of_another_name_is_looked_for_under_that_name():
    """B1: the session is bound by the cookie with the name of the settings, and by no other."""
    async with serving(brisk(cookie={"name": "TAB"})) as served:
        wire = await served.wire()
        shaken = await wire.post(HANDSHAKE)
        client_id, cookie = shaken.messages[0]["clientId"], shaken.set_cookies[0].partition(";")[0]
        for sent, is_known in [
            (cookie, True),
            ("", False),
            (cookie.replace("TAB", "BAYEUX_BROWSER"), False),
            (f"BAYEUX_BROWSER={KNOWN}; {cookie}", True),
        ]:
            (reply,) = (await wire.post(subscribe(client_id, "/a"), cookie=sent)).messages
            assert reply["successful"] is is_known, sent


async def test_only_a_successful_handshake_sets_it(served):
    """B1, E12: no other reply sets the cookie, and neither does a refused handshake."""
    wire = await served.wire()
    shaken = await wire.post(HANDSHAKE)
    client_id, cookie = shaken.messages[0]["clientId"], shaken.set_cookies[0].partition(";")[0]
    for message in (
        HANDSHAKE | {"version": "0.1"},
        HANDSHAKE | {"supportedConnectionTypes": []},
        connect(client_id, advice={"timeout": 0}),
        subscribe(client_id, "/a"),
        publish("/a", 1, clientId=client_id),
        publish("/a", 1),
        disconnect(client_id),
        connect(client_id),
    ):
        assert (await wire.post(message)).set_cookies == []
        assert (await wire.post(message, cookie=cookie)).set_cookies == []


@pytest.mark.parametrize(
    "header",
    [
        f"BAYEUX_BROWSER={KNOWN}",
        f"a=b; BAYEUX_BROWSER={KNOWN}; c=d",
        f"a=b;BAYEUX_BROWSER={KNOWN}",
        f'BAYEUX_BROWSER="{KNOWN}"',
        f"BAYEUX_BROWSER=; BAYEUX_BROWSER={KNOWN}",
        f"=; ;;a; BAYEUX_BROWSER={KNOWN}",
    ],
)
async def test_a_browser_that_is_known_keeps_its_cookie(served, header):
    """B1: the cookie is found among others and not set again; the session is bound to it from the handshake on."""
    wire = await served.wire()
    shaken = await wire.post(HANDSHAKE, cookie=header)
    assert shaken.set_cookies == []
    client_id = shaken.messages[0]["clientId"]
    for sent, is_known in [("", False), (f"BAYEUX_BROWSER={KNOWN}", True)]:
        (reply,) = (await wire.post(connect(client_id, advice={"timeout": 0}), cookie=sent)).messages
        assert reply["successful"] is is_known


@pytest.mark.parametrize("value", ["", "x", "a" * 65, "ä" * 20, "<script>alert(1)</script>", "a b c d e f g h i j"])
async def test_a_cookie_that_is_not_of_our_making_is_replaced(served, value):
    """B1: length and characters are checked, and no part of it is in the response."""
    wire = await served.wire()
    shaken = await wire.post(HANDSHAKE, cookie=f"BAYEUX_BROWSER={value}")
    (set_cookie,) = shaken.set_cookies
    assert re.fullmatch(r"BAYEUX_BROWSER=[0-9a-f]{40}; .*", set_cookie)


async def test_a_session_goes_from_one_transport_to_the_other_with_its_cookie(served):
    """B1: the HTTP transports share sessions and the cookies that protect them."""
    wire = await served.wire()
    shaken = await wire.get(HANDSHAKE)
    client_id, cookie = shaken.called[1][0]["clientId"], shaken.set_cookies[0].partition(";")[0]
    poll = connect(client_id, connectionType="callback-polling", advice={"timeout": 0})
    assert (await wire.post(poll, cookie=cookie)).messages[0]["successful"] is True
    assert (await wire.get(poll, cookie=cookie)).called[1][0]["successful"] is True
    assert (await wire.get(poll)).called[1][0]["error"] == "402::session_unknown"


async def test_a_client_that_keeps_no_cookies_is_served_by_its_id(served):
    """Aiohttp keeps no cookies of numeric addresses, and curl keeps none at all."""
    wire = await served.wire()
    client_id = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
    for message in (connect(client_id), subscribe(client_id, "/a"), publish("/a", 1, clientId=client_id)):
        assert (await wire.post(message)).messages[0]["successful"] is True
