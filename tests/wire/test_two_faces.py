"""Both faces give the same bytes: one script of requests, on a server with the short way and on one without.

Only the session ids must be made equal. (That each face works as it should is shown by all other tests of this folder,
of `hardening/` and of `host/`.)
"""

from __future__ import annotations

import json
from itertools import count

import pytest
from support.messages import HANDSHAKE, connect, disconnect, publish, subscribe, unsubscribe
from support.server import brisk, facing, serving
from support.wire import chunked, post, request

ID, COOKIE = f"{0:040x}", f"BAYEUX_BROWSER={1:040x}"
FORM = "application/x-www-form-urlencoded"
ORIGIN = {"origin": "http://127.0.0.1:1"}


def body(*messages):
    return json.dumps(messages).encode()


def asked(*messages, **headers):
    """Return a POST of the session, with its cookie."""
    return post(body(*messages), **({"cookie": COOKIE} | headers))


EXACTLY_ONCE = [  # requests and what they are about; each is answered before the next is sent
    ("a handshake", post(body(HANDSHAKE | {"id": "1"}))),
    ("the first connect", asked(connect(ID, id="2"))),
    ("a subscription", asked(subscribe(ID, "/a", "/b/*", id=3))),
    ("one's own event rides on the reply", asked(publish("/a", {"x": [1, None, "<é>"]}, clientId=ID, id="4"))),
    ("nobody hears it", asked(publish("/nobody", "x", clientId=ID, id=5))),
    ("without an id", asked(publish("/nobody", "x", clientId=ID))),
    ("with a field more", asked(publish("/nobody", "x", clientId=ID, id="6", more=1))),
    ("no list", post(json.dumps(publish("/nobody", 1, clientId=ID, id="7")).encode(), cookie=COOKIE)),
    ("without a session", post(body(publish("/nobody", 1, id="8")))),
    ("a batch", asked(publish("/a", 1, clientId=ID, id="9"), publish("/b/c", 2, clientId=ID, id="10"))),
    (
        "a batch that takes several turns",
        asked(
            *(publish("/a" if number % 50 == 0 else "/b c", number, clientId=ID, id=number) for number in range(300))
        ),
    ),
    ("a connect that is not held", asked(connect(ID, id="11", advice={"timeout": 0}))),
    ("by CORS", asked(publish("/nobody", 1, clientId=ID, id="12"), **ORIGIN)),
    ("from a site that may not", asked(publish("/nobody", 1, clientId=ID, id="13"), origin="http://evil.example")),
    ("without the cookie", post(body(connect(ID, id="14")))),
    ("with another cookie", post(body(connect(ID, id="15")), cookie="BAYEUX_BROWSER=c4n4ryc4n4ryc4n4ry")),
    ("among other cookies", asked(publish("/nobody", 1, clientId=ID, id="16"), cookie=f'a=b; {COOKIE}; c="d"')),
    ("an id that is none", asked(publish("/nobody", 1, clientId=ID, id={"a": 1}))),
    ("an id of null", asked(publish("/nobody", 1, clientId=ID, id=None))),
    ("for some", asked(publish("/a", 1, clientId=ID, id="16a", ext={"audience": {"eligible_roles": ["staff"]}}))),
    ("for whom?", asked(publish("/a", 1, clientId=ID, id="16b", ext={"audience": ["ann"]}))),
    ("a wildcard", asked(publish("/a/*", 1, clientId=ID, id="17"))),
    ("a meta channel", asked(publish("/meta/x", 1, clientId=ID, id="18"))),
    ("the bare meta", asked(publish("/meta", 1, clientId=ID, id="18a"))),
    ("a service", asked(publish("/service/x", 1, clientId=ID, id="19"))),
    ("no channel's name", asked(publish("/a b", 1, clientId=ID, id="20"))),
    ("no data", asked({"channel": "/a", "clientId": ID, "id": "21", "ext": {}})),
    ("null", asked(publish("/nobody", None, clientId=ID, id="22"))),
    ("too much data", asked(publish("/nobody", "x" * 70_000, clientId=ID, id="23"))),
    ("a huge number", asked({"channel": "/a", "clientId": ID, "id": "24", "data": 2**70})),
    ("another session", asked(publish("/nobody", 1, clientId="0" * 39 + "9", id="25"))),
    ("no JSON", asked()[:-2] + b"[{"),
    ("an empty list", asked()),
    (
        "a form",
        post(b"message=" + body(publish("/nobody", 1, id="26")), content_type=FORM),
    ),
    ("another charset", post(body(publish("/nobody", 1, id="27")), content_type="application/json; charset=zip")),
    ("latin-1", post(b'{"channel":"/nobody","data":"\xe9"}', content_type="application/json;charset=iso-8859-1")),
    ("no UTF-8", post(b'{"channel":"/nobody","data":"\xe9"}')),
    ("compressed", asked(publish("/nobody", 1, clientId=ID, id="28"), content_encoding="identity")),
    ("chunks", chunked(body(publish("/nobody", 1, id="29")))),
    ("a longer path", asked(publish("/nobody", 1, clientId=ID, id="30")).replace(b"/bayeux ", b"/bayeux/publish ")),
    ("a query", asked(publish("/nobody", 1, clientId=ID, id="31")).replace(b"/bayeux ", b"/bayeux?x=1 ")),
    ("a preflight", request("OPTIONS", "/bayeux", **ORIGIN)),
    ("another connection type", asked(connect(ID, id="32") | {"connectionType": "eventsource"})),
    ("no longer", asked(unsubscribe(ID, "/a", id="33"))),
    ("the end", asked(disconnect(ID, id="34"))),
    ("after the end", asked(connect(ID, id="35"))),
]


async def whole(wire):
    answer = await wire.read()
    return answer.head + answer.body


async def answers(name, *requests):
    """Return the raw responses of a fresh server of that face to these requests, which are sent one after the other."""
    with facing(name):
        settings = brisk(bayeux={"hold_s": 3600})
    async with serving(settings) as served:
        ids = count()
        served.house.engine.sessions.new_id = lambda: f"{next(ids):040x}"
        wire, found = await served.wire(), []
        for asked_for in requests:
            answer = await wire.request(asked_for)
            found.append(answer.head + answer.body)
            if answer.headers.get("connection") == "close":
                wire = await served.wire()
        return found


async def test_every_request_gets_the_same_bytes():
    """Status, headers and body are equal, byte by byte."""
    names, requests = zip(*EXACTLY_ONCE, strict=True)
    short, asgi = await answers("short-way", *requests), await answers("asgi", *requests)
    for name, one, other in zip(names, short, asgi, strict=True):
        assert one == other, name


@pytest.mark.parametrize("fields", [{"id": "7"}, {"id": 7}, {}, {"id": None}, {"id": "a.b:c_d-e"}])
@pytest.mark.parametrize("ends", ["event", "replaced", "disconnected"])
async def test_a_held_connect_is_answered_by_the_same_bytes(fields, ends):
    """A34: the bytes are equal for each way in which a hold ends."""
    found = {}
    for name in ("short-way", "asgi"):
        with facing(name):
            settings = brisk(bayeux={"hold_s": 3600})
        async with serving(settings) as served:
            ids = count()
            served.house.engine.sessions.new_id = lambda ids=ids: f"{next(ids):040x}"
            wire, other = await served.wire(), await served.wire()
            for first in (post(body(HANDSHAKE)), asked(connect(ID, id=1)), asked(subscribe(ID, "/a", id=2))):
                await wire.request(first)
            await wire.send(asked(connect(ID, **fields)))
            await served.until(lambda served=served: served.house.engine.sessions.holds == 1)
            last = {
                "event": publish("/a", {"x": 1}),
                "replaced": connect(ID, id="new", advice={"timeout": 0}),
                "disconnected": disconnect(ID),
            }[ends]
            await other.request(asked(last))
            found[name] = await whole(wire)
    assert found["short-way"] == found["asgi"]
