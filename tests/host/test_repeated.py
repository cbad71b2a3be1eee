"""Repeated heads: requests that are served without parsing, and that nothing is served which parsing would refuse."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from itertools import count, product
from types import SimpleNamespace
from unittest.mock import patch

import httptools
import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.messages import HANDSHAKE, connect, publish, subscribe
from support.server import brisk, serving
from support.wire import post
from uvicorn.server import ServerState

from halley.host.http import Connection
from halley.host.listener import config_of
from halley.host.repeated import ProxiedHeads, RememberedRequest, head_of
from halley.host.requests import Site
from halley.host.timeouts import ServerContext
from halley.protocols.bayeux import fast
from halley.server.composition import Server
from halley.settings import Access, Token
from halley.transports.bayeux import PostHead
from halley.transports.exchange import Endpoint
from halley.transports.routes import Admitted

POST = Admitted(Endpoint(), PostHead(b"application/json", (), None))
SOURCE = "192.0.2.1", "http"
HEAD = b"POST /bayeux HTTP/1.1\r\nHost: a\r\nCookie: b=c\r\nContent-Length: %d\r\nAccept: */*\r\n\r\n"


def remembered(head, headers, most_bytes=1_000):
    return RememberedRequest.of(head, headers, most_bytes, POST, SOURCE)


@pytest.mark.parametrize("nbytes", [2, 9, 10, 99, 100, 999])
def test_a_body_of_any_length_is_found(nbytes):
    """The digits of Content-Length may differ, also in their number; and none is found that they do not tell."""
    known = remembered(HEAD % nbytes + b"x" * nbytes, 4)
    for said in (*range(1, 13), *range(95, 105), *range(995, 1_005), 99_999):
        for sent in range(max(said - 3, 0), said + 4):
            body = b"x" * sent
            assert known.body_of(HEAD % said + body) == (body if sent == said else None)


@pytest.mark.parametrize(
    "data",
    [
        HEAD % 2 + b"{",
        HEAD % 2 + b"{}" + b"G",
        HEAD % 2 + b"{}" + HEAD % 2 + b"{}",
        (HEAD % 2).replace(b": 2", b": +2") + b"{}",
        (HEAD % 2).replace(b": 2", b": 2 ") + b"{}",
        (HEAD % 2).replace(b": 2", b": ") + b"{}",
        (HEAD % 2).replace(b"b=c", b"b=d") + b"{}",
        (HEAD % 2).replace(b"Accept", b"accept") + b"{}",
        (HEAD % 2).replace(b"*/*\r\n", b"*/*\n") + b"{}",
        HEAD % 2,
        b"",
    ],
)
def test_any_other_difference_is_not_known(data):
    """A request is known only if all of it came at once, and equals the head before in all other bytes."""
    assert remembered(HEAD % 2 + b"{}", 4).body_of(data) is None


@pytest.mark.parametrize(
    ("head", "headers"),
    [
        ((HEAD % 2).replace(b"\r\n", b"\n"), 4),
        ((HEAD % 2).replace(b"b=c\r\n", b"b=c\n"), 4),
        (b"\r\n" + HEAD % 2, 4),
        (HEAD % 2, 3),
        (b"POST /bayeux HTTP/1.1\nHost: a\nContent-Length: 9\n\n\r\nContent-Length: 2\r\n\r\n", 2),
        (b"POST /bayeux HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", 2),
        ((HEAD % 2).replace(b": 2", b": 02"), 4),
        (HEAD % 2 + b"Accept: x\r\n" * 90, 4 + 90),
        ((HEAD % 2).replace(b"c\r\n", b"c" * 950 + b"\r\n"), 4),
    ],
)
def test_a_head_whose_end_is_not_sure_is_not_remembered(head, headers):
    """Such heads are refused by the parser or would be too long with more digits; a second check costs nothing."""
    assert remembered(head + b"{}", headers) is None


def test_the_fields_can_be_seen():
    """Hooks and the log see the head as it was sent, with its own Content-Length."""
    head = head_of(HEAD % 10 + b"x" * 10, ("192.0.2.1", "http"), 7)
    assert (head.method, head.path, head.address, head.scheme) == ("POST", "/bayeux", "192.0.2.1", "http")
    assert head.fields == {b"host": b"a", b"cookie": b"b=c", b"content-length": b"10", b"accept": b"*/*"}


def test_the_heads_of_proxies_are_bounded():
    """Clients choose them; the oldest goes, and a proxy's are not another's."""
    known = remembered(HEAD % 2 + b"{}", 4)
    heads = ProxiedHeads(4_000)
    requests = [HEAD.replace(b"b=c", b"b=%d" % number) % 2 + b"{}" for number in range(3)]
    for request in requests:
        heads.remember("192.0.2.9", request, known)
    assert [heads.recall("192.0.2.9", request) for request in requests] == [None, known, known]
    assert heads.recall("192.0.2.8", requests[2]) is None


class Parsers:
    """Counts the parsers of connections: a request without one is served by what its connection remembers."""

    def __init__(self):
        self.made = 0
        self._make = httptools.HttpRequestParser

    def __call__(self, receiver):
        self.made += isinstance(receiver, Connection)
        return self._make(receiver)


async def test_which_requests_are_not_parsed():
    """The head of a connection's second request is remembered; a request in pieces or behind another one is parsed."""
    with patch.object(httptools, "HttpRequestParser", Parsers()) as parsers:
        async with serving(brisk()) as served:
            wire = await served.wire()
            for data, made in enumerate((1, 2, 2, 2)):
                assert (await wire.post(publish("/a", 10**data))).messages[0]["successful"]
                assert parsers.made == made
            whole = post(json.dumps(publish("/a", 1)).encode())
            await wire.send(whole[:-1])
            await served.until(lambda: parsers.made == 3)
            await wire.send(whole[-1:])
            assert (await wire.read()).messages[0]["successful"]
            await wire.send(whole + whole)
            for _ in range(2):
                assert (await wire.read()).messages[0]["successful"]
            assert parsers.made == 4
            assert (await wire.request(whole)).messages[0]["successful"]
            assert parsers.made == 4
            assert served.house.broker.published == 8


@pytest.mark.parametrize("proxies", [(), ("127.0.0.1",)])
async def test_a_head_with_a_trace_is_not_remembered(proxies):
    """The next request is in another trace: heads that do not come again would take the places of those that do."""
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    with patch.object(httptools, "HttpRequestParser", Parsers()) as parsers:
        async with serving(brisk(proxies=proxies, open=True)) as served:
            wire = await served.wire()
            made = []
            for traceparent in (trace, trace, trace, "", "", "", trace):
                assert (await wire.post(publish("/a", 1), traceparent=traceparent)).status == 200
                made.append(parsers.made)
    assert made == [1, 2, 3, 4, 4, 4, 5]


async def connects(served, *sent, before_last=lambda: None):
    """Connect with these ids on one connection, and have each connect answered by an event; return the replies' ids."""
    client_id = await served.open_session("/a")
    publisher, wire = await served.wire(), await served.wire()
    ids = []
    for number, message_id in enumerate(sent, 1):
        if number == len(sent):
            before_last()
        await wire.send(post(json.dumps([connect(client_id, id=message_id)]).encode()))
        await served.until(lambda: served.house.engine.sessions.holds == 1)
        await publisher.post(publish("/a", 1))
        ids.append((await wire.read()).messages[0]["id"])
    return ids


@pytest.mark.parametrize(("ids", "parsed"), [("0 1 2 3 4", "0 1"), ("8 9 10 11 12", "8 9 10"), ("y z 10 11", "y z 10")])
async def test_connects_that_differ_only_in_their_ids(ids, parsed):
    """They are not parsed from the third on, except when the id becomes longer; the replies have their own ids."""
    read = []

    def loads(text):
        read.append(orjson.loads(text))
        return read[-1]

    async with serving(brisk()) as served:
        with patch.object(fast, "loads_quickly", loads):
            assert await connects(served, *ids.split()) == ids.split()
    messages = [each for body in read for each in (body if isinstance(body, list) else [body])]
    assert [each["id"] for each in messages if each["channel"] == "/meta/connect" and "id" in each] == parsed.split()


async def test_an_extension_sees_every_connect():
    """Also the first one after it was added, which would else be known."""
    seen = []
    extension = SimpleNamespace(incoming=lambda _session, message: seen.append(message) or message)
    async with serving(brisk()) as served:
        await connects(served, *"01234", before_last=lambda: served.halley.add_extension(extension))
    assert [each["id"] for each in seen if each["channel"] == "/meta/connect"] == ["4"]


# The same bytes with and without remembering

TOKEN = "secret-of-the-test"
RULES = (Access("*", "*", "/**"),)
OTHER_RULES = (Access("*", "publish", "/b", allow=False), *RULES)
SETTINGS = brisk(
    access=RULES,
    tokens=(Token("owner", "staff", "sha256:" + sha256(TOKEN.encode()).hexdigest()),),
    limits={"body_bytes": 1_024, "head_bytes": 600},
    bayeux={"hold_s": 60.0},
)
PROXIED = replace(SETTINGS, proxies=("127.0.0.1",))
"""The three connections are a proxy's, so each has the requests of all clients."""
FIELDS = (
    b"",
    b"Authorization: Bearer %b\r\n" % TOKEN.encode(),
    b"Origin: http://elsewhere.example\r\n",
    b"Expect: x\r\n",
    b"X-Forwarded-For: 192.0.2.1\r\n",
)
_EXPIRED = datetime(2001, 1, 1, tzinfo=UTC)


class Transport:
    """A transport that keeps what is written."""

    def __init__(self):
        self.written = []
        self.is_open = True

    def write(self, data):
        self.written.append(data)

    def close(self):
        self.is_open = False

    abort = write_eof = close

    def is_closing(self):
        return not self.is_open

    def get_extra_info(self, name, default=None):
        return {"peername": ("127.0.0.1", 5_000), "sockname": ("127.0.0.1", 8_000)}.get(name, default)

    def get_write_buffer_size(self):
        return 0

    def can_write_eof(self):
        return True

    def set_write_buffer_limits(self, *_):
        pass

    pause_reading = resume_reading = set_write_buffer_limits


class Side:
    """A server with three connections, which are fed without a network."""

    def __init__(self, settings, *, remembers):
        self.server = server = Server(settings)
        numbers = count(1)
        server.engine.sessions.new_id = lambda: f"{next(numbers):040x}"
        self.shared = ServerContext(SETTINGS.limits, server.broker.hits, is_dated=False)
        config = config_of(SETTINGS, Connection, 5)
        config.load()
        self._site = site = Site(server.routes, server.proxies)
        self._remembers = remembers
        self.transports = [Transport() for _ in range(3)]
        self.connections = []
        for transport in self.transports:
            connection = Connection(
                config=config, server_state=ServerState(), app_state={}, shared=self.shared, site=site
            )
            connection.connection_made(transport)
            self.connections.append(connection)

    async def feed(self, number, data):
        if self.transports[number].is_open:
            if not self._remembers:
                self.connections[number]._known = None
                self._site.proxied = ProxiedHeads()
            self.connections[number].data_received(data)
        for _ in range(4):
            await asyncio.sleep(0)

    def seen(self):
        """What the peers have received, and the server's books."""
        engine, broker = self.server.engine, self.server.broker
        sessions = {
            each.id: (each.state, each.closed, len(each.outbox), frozenset(each.subscriptions), each.authid)
            for each in broker.sessions.values()
            if hasattr(each, "cursor")
        }
        return (
            [(b"".join(each.written), each.is_open) for each in self.transports],
            sessions,
            (
                broker.published,
                engine.sessions.connects,
                engine.sessions.holds,
                engine.replies.refused,
                engine.sessions.put_back,
            ),
            (broker.hits, self.shared.refused, self.shared.cut),
        )

    def change(self, what):
        """Change something between two requests that a remembered head must not hide."""
        engine, server = self.server.engine, self.server
        sessions = [each for each in server.broker.sessions.values() if hasattr(each, "cursor")]
        if what == "bind":
            for session in sessions:
                session.join(("ff" * 20,), engine.sessions.new_id)
        elif what == "expire":
            for session in sessions:
                session.expiry = 0.0
        elif what == "rules":
            server.reloading.apply_access(replace(server.settings, access=OTHER_RULES))
        elif what == "withdraw":
            server.reloading.apply_access(
                replace(server.settings, tokens=(replace(SETTINGS.tokens[0], expires=_EXPIRED),))
            )
        elif what == "drain":
            for session in engine.sessions.drain(lambda: 1.0):
                engine.sessions.release(session, 0.0)


def whole(body, field=b"", cookie=b""):
    lines = b"POST /bayeux HTTP/1.1\r\nHost: 127.0.0.1:8000\r\n" + field + cookie
    return lines + b"Content-Length: %d\r\nContent-Type: application/json\r\n\r\n" % len(body) + body


async def polls(side, *turns):
    """Have two sessions without cookies poll: each turn is a connection, and the session that polls by it.

    Each turn ends with an event for the first session only. Returns what the peers have received.
    """
    ids = []
    for number in (0, 1):
        await side.feed(2, whole(json.dumps(HANDSHAKE).encode()))
        ids.append(max(side.server.broker.sessions))
        await side.feed(2, whole(json.dumps(connect(ids[number])).encode()))
    await side.feed(2, whole(json.dumps(subscribe(ids[0], "/a")).encode()))
    for turn, (connection, session) in enumerate(turns):
        await side.feed(connection, whole(json.dumps([connect(ids[session], id=str(turn))]).encode()))
        await side.feed(2, whole(json.dumps(publish("/a", turn)).encode()))
    return side.seen()


@pytest.mark.parametrize(
    "turns", [*product(product((0, 1), (0, 1)), repeat=3), ((0, 0), (1, 1), (0, 1), (1, 0), (0, 0), (1, 1))]
)
async def test_a_connect_is_that_of_the_session_that_it_names(turns):
    """Clients without cookies have the same heads, so all connections of a proxy remember one connect for them."""
    assert await polls(Side(PROXIED, remembers=True), *turns) == await polls(Side(PROXIED, remembers=False), *turns)


CHANGES = ("bind", "expire", "rules", "withdraw", "drain")


@st.composite
def steps(draw):
    """A step: to change something, or to send bytes: on which connection, which message, and how it is spoiled."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.sampled_from(CHANGES))
    return (
        draw(st.sampled_from([0, 0, 0, 0, 0, 1, 2])),
        draw(st.sampled_from(["connect", "connect", "connect", "publish", "publish", "subscribe", "text", "large"])),
        draw(st.sampled_from([0] * 12 + [1, 1, 2, 3, 4])),
        draw(st.sampled_from(["own"] * 6 + ["none", "other"])),
        draw(
            st.sampled_from([None, None, "byte", "byte", "byte", "cut", "join", "twice", "length", "split", "insert"])
        ),
        draw(st.integers(0, 350)),
        draw(st.one_of(st.integers(0, 255), st.sampled_from(b'0129 \r\n:x"\\'))),
    )


LENGTHS = (b"0", b"1", b"007", b"99", b"1025", b"+5", b"5 ", b"", b"99999999999999999999")


def spoil(data, how, place, value):
    """Return the pieces in which a request is sent, spoiled in one way."""
    at = place % len(data)
    pieces = {
        "byte": [data[:at] + bytes([value]) + data[at + 1 :]],
        "insert": [data[:at] + bytes([value]) + data[at:]],
        "cut": [data[:at]],
        "split": [data[:at], data[at:]],
        "join": [data + data[:at]],
        "twice": [data + data],
        "length": [re.sub(rb"(Content-Length: )\d+", rb"\g<1>" + LENGTHS[value % len(LENGTHS)], data)],
    }
    return pieces.get(how, [data])


RELEASE = whole(json.dumps([publish("/a", 1)]).encode())
"""Published by another client, so that a held connect is answered; sent only if one is held."""


def pieces_of(step, client_id, numbers):
    """Yield what is sent in a step, and on which connection: three requests as they should be, then the spoiled one."""
    number, kind, field, cookie, spoiled, place, value = step
    header = {"own": b"", "none": b"Cookie: x=y\r\n", "other": b"Cookie: BAYEUX_BROWSER=%b\r\n" % (b"ff" * 20)}[cookie]
    for how in (None, None, None, spoiled):
        message = {
            "connect": {"id": str(next(numbers))} | connect(client_id)
            if place % 2
            else connect(client_id, id=str(next(numbers))),
            "publish": publish("/ab"[:: 1 + value % 2][:2], place, clientId=client_id, id=str(next(numbers))),
            "subscribe": subscribe(client_id, "/c"),
            "text": "text",
            "large": publish("/a", "x" * place * 4, clientId=client_id),
        }[kind]
        data = whole(json.dumps([message]).encode(), FIELDS[field], header)
        for piece in spoil(data, how, place, value):
            yield number, piece
        if kind == "connect":
            yield (number + 1) % 3, RELEASE


def after(change, field=0, cookie="own"):
    """A plan: connects, a change, and connects again."""
    connects = (0, "connect", field, cookie, None, 0, 0)
    return [connects, connects, change, connects]


SPOILED = "connect", 0, "own", "byte"


@example(plan=after("bind"), has_token=False)
@example(plan=["bind", *after("bind", cookie="other"), *after("bind")], has_token=False)
@example(plan=[(1, *SPOILED, 0, 0), (0, *SPOILED, 28, 33), (2, *SPOILED, 0, 0)], has_token=False)  # not answered yet
@example(plan=after("expire"), has_token=False)
@example(plan=after("withdraw", 1), has_token=True)
@example(plan=after("drain"), has_token=False)
@example(plan=after((0, "connect", 0, "own", "byte", -4, ord(":"))), has_token=False)  # an id that is another text
@example(plan=after((0, "connect", 0, "own", "byte", -4, ord('"'))), has_token=False)
@example(plan=after((0, "connect", 0, "own", "byte", -8, ord("x"))), has_token=False)  # no long-polling
@given(plan=st.lists(steps(), min_size=1, max_size=12), has_token=st.booleans())
@settings(max_examples=4 * settings().max_examples)
@pytest.mark.parametrize("settings_", [SETTINGS, PROXIED], ids=["direct", "proxied"])
def test_nothing_else_is_served(settings_, plan, has_token):
    """The same bytes bring the same answers, and leave the same sessions and counts, as when every head is parsed.

    Heads are cut, joined and changed in a byte; sessions get bound to another browser, tokens and rules change.
    """
    with patch("halley.server.lifecycle.Lifecycle.start"):  # the sweeper would wait for its next turn
        asyncio.run(compared(settings_, plan, FIELDS[1] if has_token else b""))


async def rest():
    """Let both sides finish what they do: the first one has had more turns than the second."""
    for _ in range(20):  # for requests that are passed to the application
        await asyncio.sleep(0)


async def compared(settings_, plan, field):
    """Carry out the plan on two sides, and compare them after each step."""
    sides = [Side(settings_, remembers=True), Side(settings_, remembers=False)]
    for side in sides:
        await side.feed(0, whole(json.dumps([HANDSHAKE]).encode(), field))
        client_id = re.search(rb'"clientId":"(\w+)"', side.transports[0].written[-1])[1].decode()
        for number in range(3):
            for channel in ("/a", "/b"):
                await side.feed(number, whole(json.dumps(subscribe(client_id, channel)).encode()))
        await side.feed(0, whole(json.dumps([connect(client_id)]).encode()))  # a session's first connect is not held
    numbers = count(92)  # the ids become longer
    for step in plan:
        for number, piece in [] if isinstance(step, str) else pieces_of(step, client_id, numbers):
            for side in sides:
                if piece is not RELEASE or side.server.engine.sessions.holds:
                    await side.feed(number, piece)
            await rest()
        for side in sides:
            side.change(step)
        await rest()
        assert sides[0].seen() == sides[1].seen(), step
    for side in sides:
        for connection, transport in zip(side.connections, side.transports, strict=True):
            if transport.is_open:
                connection.connection_lost(None)
