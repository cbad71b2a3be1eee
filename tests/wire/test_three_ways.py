"""Each way to serve gives the same bytes: with remembered heads, with all heads parsed, and by another ASGI server.

Only the session ids must be made equal. (That each way works as it should is shown by all other tests of this folder,
of `hardening/`, of `host/` and of `transports/`.)
"""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from itertools import count

import pytest
from support.foreign import foreign
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


OTHERS = [  # requests of other endpoints, of which the bodies of some have not come yet
    ("a page", request("GET", "/jsonp.html")),
    ("the head of a page", request("HEAD", "/jsonp.html")),
    ("the head of a page by gzip", request("HEAD", "/jsonp.html", accept_encoding="gzip")),
    ("a page by a wrong method", request("PATCH", "/", b"x")),
    ("no page", request("GET", "/nowhere")),
    ("no page for a body", request("POST", "/nowhere", b"x")),
    ("rights", request("GET", "/rights", **ORIGIN)),
    ("the head of rights", request("HEAD", "/rights")),
    ("rights by a wrong method", request("DELETE", "/rights")),
    ("rights with a parameter", request("GET", "/rights?a=1")),
    ("the history, which is off", request("GET", "/history/a")),
    ("the log, which is off", request("GET", "/log/head")),
    ("an event", request("POST", "/events/a", b'{"a":1}', **ORIGIN)),
    ("an event with a query", request("POST", "/events/a?a=1", b"1")),
    ("an event that is none", request("POST", "/events/a", b"{")),
    ("an event for nobody", request("POST", "/events/", b"1")),
    ("an event of meta", request("POST", "/events/meta/a", b"1")),
    ("an event in chunks", chunked(b"[1]", path="/events/a")),
    ("the head of a stream", request("HEAD", "/events/a", **ORIGIN)),
    ("a stream of what is none", request("GET", "/events/a*")),
    ("a stream that is not accepted", request("GET", "/events/a", accept="text/html")),
    ("from a site that may not", request("POST", "/events/a", b"1", origin="http://evil.example")),
    ("only WebSockets", request("GET", "/wamp")),
    ("a WAMP poll", request("POST", "/wamp/open", b"{}")),
    ("an unknown WAMP poll", request("POST", "/wamp/unknown/receive", b"")),
    ("a preflight", request("OPTIONS", "/events/a", **ORIGIN)),
    ("a preflight of a page", request("OPTIONS", "/rights", **ORIGIN)),
    ("a script", request("GET", "/bayeux?jsonp=cb&message=%5B%7B%22channel%22:%22/a%22,%22data%22:1%7D%5D")),
    ("a script with a wrong name", request("GET", "/bayeux?jsonp=a(b&message=%5B%5D")),
    (
        "a script for a page that may not",
        request("GET", "/bayeux?jsonp=a&message=%5B%5D", referer="http://evil.example/"),
    ),
    ("a body that is too large", request("POST", "/bayeux", content_length="999999999")),
]
REMEMBERS, PARSES, UVICORN = "short-way", "parsed", "uvicorn"


@asynccontextmanager
async def served_by(way):
    """Serve in one of the ways; gives the server, whose sessions have ids that count."""
    ids = count()
    with facing(REMEMBERS if way == UVICORN else way):
        changed = {"bayeux": {"hold_s": 3600}}
        async with foreign(**changed) if way == UVICORN else serving(brisk(**changed)) as served:
            served.halley.server.engine.sessions.new_id = lambda: f"{next(ids):040x}"
            yield served


def bytes_of(answer):
    """Return a response but for its own servers' names for themselves, and Date."""
    lines = answer.head.split(b"\r\n")
    return b"\r\n".join(line for line in lines if not line.startswith((b"server:", b"date:"))) + answer.body


async def answers(way, requests):
    """Return the raw responses of a fresh server to these requests, which are sent one after the other."""
    async with served_by(way) as served:
        wire, found = await served.wire(), []
        for asked_for in requests:
            answer = await wire.request(asked_for)
            found.append(bytes_of(answer))
            if answer.headers.get("connection") == "close":
                wire = await served.wire()
        return found


@pytest.mark.parametrize("rows", [EXACTLY_ONCE, OTHERS], ids=["bayeux", "others"])
@pytest.mark.parametrize("way", [PARSES, UVICORN])
async def test_every_request_gets_the_same_bytes(way, rows):
    """Status, headers and body are equal, byte by byte."""
    names, requests = zip(*rows, strict=True)
    for name, one, other in zip(names, await answers(REMEMBERS, requests), await answers(way, requests), strict=True):
        assert one == other, name


@pytest.mark.parametrize("fields", [{"id": "7"}, {"id": 7}, {}, {"id": None}, {"id": "a.b:c_d-e"}])
@pytest.mark.parametrize("ends", ["event", "replaced", "disconnected"])
async def test_a_held_connect_is_answered_by_the_same_bytes(fields, ends):
    """A34: the bytes are equal for each way in which a hold ends."""
    found = {}
    for way in (REMEMBERS, PARSES, UVICORN):
        async with served_by(way) as served:
            sessions = served.halley.server.engine.sessions
            wire, other = await served.wire(), await served.wire()
            for first in (post(body(HANDSHAKE)), asked(connect(ID, id=1)), asked(subscribe(ID, "/a", id=2))):
                await wire.request(first)
            await wire.send(asked(connect(ID, **fields)))
            await served.until(lambda sessions=sessions: sessions.holds == 1)
            last = {
                "event": publish("/a", {"x": 1}),
                "replaced": connect(ID, id="new", advice={"timeout": 0}),
                "disconnected": disconnect(ID),
            }[ends]
            await other.request(asked(last))
            found[way] = bytes_of(await wire.read())
    assert found[REMEMBERS] == found[PARSES] == found[UVICORN]
