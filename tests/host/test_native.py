"""Which requests a connection serves without a task, and which of them without parsing their heads."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any
from unittest.mock import patch

import httptools
import pytest
from support import authority
from support.messages import HANDSHAKE, connect, publish, subscribe
from support.server import brisk, serving
from support.wire import chunked, head, post, request

from halley.host.http import Connection
from halley.host.listener import HttpServer, bind, config_of
from halley.host.relay import CONFIRMATION
from halley.host.relayed import NodeAuthentication, RelayedConnection
from halley.host.requests import Site
from halley.host.timeouts import ServerContext

LARGE = "x" * 60_000
"""More than the kernel takes for a peer with a small buffer."""


class Seen:
    """Counts what one server does for its requests."""

    def __init__(self, server):
        self.calls = Counter()
        tasks = server.server_state.tasks
        add, make = tasks.add, httptools.HttpRequestParser

        def counted_add(task):
            self.calls["tasks"] += 1
            add(task)

        def counted_make(receiver):
            self.calls["parsed"] += isinstance(receiver, Connection)
            return make(receiver)

        tasks.add = counted_add
        self.counting = patch.object(httptools, "HttpRequestParser", counted_make)


class Consenting:
    """A policy that has to wait for each decision about a publish."""

    async def can_publish(self, session, channel, message):
        await asyncio.sleep(0)
        return True


@dataclass
class Kind:
    """A kind of requests: the server's settings, what each has; how many tasks are begun, and how many heads parsed.

    Of each of two connections two heads are: it remembers none before it has served one.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    policy: Any = None
    is_relayed: bool = False
    reads_slowly: bool = False
    tasks: int = 0
    parsed: int = 4


def behind(*proxies):
    """Return the settings of a server behind these proxies, which anyone may use."""
    return {"proxies": proxies, "open": True, "bayeux": {"anonymous_publish": "on"}}


PROXIED = {"x_forwarded_for": "192.0.2.1, 192.0.2.2", "x_forwarded_proto": "https", "x_real_ip": "192.0.2.2"}
OURS = {"origin": "http://127.0.0.1"}
KINDS = {
    "plain": Kind(),
    "with-a-proxy": Kind(behind("127.0.0.1"), PROXIED, parsed=1),
    "from-a-page-of-ours": Kind({}, OURS),
    "from-a-page-of-a-listed-origin": Kind(
        {"cors": {"origins": ("https://a.example",)}}, {"origin": "https://a.example"}
    ),
    "tls": Kind({"tls": authority.settings()}),
    "tls-from-a-page": Kind({"tls": authority.settings()}, {"origin": "https://127.0.0.1"}),
    "with-a-proxy-from-a-page": Kind(
        behind("127.0.0.1"), {**PROXIED, "origin": "https://127.0.0.1", "x_forwarded_port": "443"}, parsed=1
    ),
    "relayed": Kind(headers={"halley_node": "key node http 192.0.2.1"}, is_relayed=True),
    "relayed-from-a-page": Kind(headers={"halley_node": "key node http 192.0.2.1", **OURS}, is_relayed=True),
    "awaiting-a-hook": Kind(policy=Consenting(), tasks=3),  # one for each time that it waits
    "slow-reader": Kind(reads_slowly=True),
}


@asynccontextmanager
async def relayed_to(served):
    """Serve as a node's listener for other nodes does; gives its server and port."""
    house, settings = served.house, served.house.settings
    protocol = partial(
        RelayedConnection,
        shared=ServerContext(settings.limits, house.broker.hits),
        site=Site(house.routes, house.proxies),
        authentication=NodeAuthentication("key", "node", 5),
    )
    server = HttpServer(config_of(settings, protocol, 2))
    bound = bind("127.0.0.1", 0, "--port")
    port = bound.getsockname()[1]
    running = asyncio.create_task(server.serve([bound]))
    await served.until(lambda: server.started)
    try:
        yield server, port
    finally:
        server.begin_shutdown()
        await running


async def talk(served, kind, port):
    """Publish thrice and have three connects held, on two connections; the heads of each repeat."""
    confirmation = CONFIRMATION if kind.is_relayed else b""

    async def ask(wire, message, before=b""):
        await wire.send(before + post(json.dumps([message]).encode(), **kind.headers))

    async def answer(wire, message, before=confirmation):
        await ask(wire, message, before)
        return (await wire.read()).messages

    options = {"receive_buffer_bytes": 4_096} if kind.reads_slowly else {}
    subscriber, publisher = await served.wire(port, **options), await served.wire(port)
    (reply,) = await answer(subscriber, HANDSHAKE, b"")
    client_id = reply["clientId"]
    assert (await answer(subscriber, subscribe(client_id, "/a")))[0]["successful"]
    assert (await answer(subscriber, connect(client_id)))[0]["successful"]
    data = LARGE if kind.reads_slowly else "x"
    for number in range(3):
        await ask(subscriber, connect(client_id, id=str(number)), confirmation)
        await served.until(lambda: served.house.engine.sessions.holds == 1)
        replies = await answer(publisher, publish("/a", data), confirmation if number else b"")
        assert [reply["successful"] for reply in replies] == [True]
        if kind.reads_slowly:
            await served.until(lambda: len(served.watch.writes) == 1)
        event, reply = sorted((await subscriber.read()).messages, key=lambda message: "data" not in message)
        assert (event["data"], reply["id"]) == (data, str(number))


@pytest.mark.parametrize("name", KINDS)
async def test_a_request_of_this_kind_takes_the_short_way(name):
    """No task; and nothing is parsed of a head that is like the one before on its connection."""
    kind = KINDS[name]

    def register(halley):
        if kind.policy is not None:
            halley.set_policy(kind.policy)

    async with serving(brisk(**kind.settings), register) as served, relayed_to(served) as (node, port):
        seen = Seen(node if kind.is_relayed else served.server)
        with seen.counting:
            await talk(served, kind, port if kind.is_relayed else None)
        assert (seen.calls["tasks"], seen.calls["parsed"]) == (kind.tasks, kind.parsed)


async def test_what_another_node_does_not_confirm_comes_again():
    """A reply has left only when that node's client has it: with the connection of the node, an event would be lost."""
    headers = KINDS["relayed"].headers
    async with serving(brisk()) as served, relayed_to(served) as (_, port):
        wires = [await served.wire(port) for _ in range(3)]

        async def ask(wire, message, before=b""):
            await wire.send(before + post(json.dumps([message]).encode(), **headers))

        async def answer(wire, message, before=b""):
            await ask(wire, message, before)
            return (await wire.read()).messages

        first, second, publisher = wires
        (reply,) = await answer(first, HANDSHAKE)
        client_id = reply["clientId"]
        await answer(first, subscribe(client_id, "/a"), CONFIRMATION)
        await answer(first, connect(client_id), CONFIRMATION)
        await ask(first, connect(client_id), CONFIRMATION)
        await served.until(lambda: served.house.engine.sessions.holds == 1)
        await answer(publisher, publish("/a", 1))
        assert [each["data"] for each in (await first.read()).messages if "data" in each] == [1]
        await first.close()
        await served.until(lambda: served.house.engine.sessions.put_back == 1)
        assert [each["data"] for each in await answer(second, connect(client_id)) if "data" in each] == [1]


BODY = json.dumps([publish("/a", 1)]).encode()
LENGTH = f"Content-Length: {len(BODY)}"
TYPE = "Content-Type: application/json"
EVENT = request("POST", "/events/a", b"1", content_type="application/json")
REMEMBERED = {
    "a publish": post(BODY),
    "an event": EVENT,
    "a connection": post(BODY, connection="keep-alive"),
    "a query": post(BODY, path="/bayeux?a=b"),
    "an escape": post(BODY, path="/bayeux/%61"),
    "a whole URL": post(BODY, path="http://127.0.0.1/bayeux"),
}
PARSED = {
    "chunks": chunked(BODY),
    "expect": post(BODY, expect="x"),
    "a trace": post(BODY, traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    "a header twice": head("POST /bayeux HTTP/1.1", "Host: 127.0.0.1", TYPE, LENGTH, "A: 1", "A: 2", body=BODY),
    "refused": post(BODY, origin="http://evil.example"),
    "callback-polling": request("GET", "/bayeux?jsonp=a&message=%5B%5D"),
    "preflight": request("OPTIONS", "/bayeux", origin="http://127.0.0.1"),
    "a page": request("GET", "/"),
}


@pytest.mark.parametrize("name", [*REMEMBERED, *PARSED])
async def test_which_heads_are_remembered(name):
    """That of a POST which is like nearly all: it is parsed twice, and any other each time. None needs a task."""
    async with serving(brisk()) as served:
        seen = Seen(served.server)
        wire, asked = await served.wire(), {**REMEMBERED, **PARSED}[name]
        with seen.counting:
            answers = [await wire.request(asked) for _ in range(4)]
        assert len({answer.status for answer in answers}) == 1
        assert (seen.calls["tasks"], seen.calls["parsed"]) == (0, 2 if name in REMEMBERED else 4)


async def test_requests_behind_another_one_need_no_task():
    """What was sent ahead is answered in its order, each without a task."""
    async with serving(brisk()) as served:
        seen = Seen(served.server)
        wire = await served.wire()
        await wire.send(post(BODY) + EVENT + request("GET", "/") + post(BODY))
        statuses = [(await wire.read()).status for _ in range(4)]
        assert (statuses, seen.calls["tasks"]) == ([200] * 4, 0)


async def test_proxies_behind_each_other_may_each_add_a_header():
    """HAProxy appends an `X-Forwarded-For` of its own, and `Via`; the client is the last that is not listed."""
    async with serving(brisk(**behind("127.0.0.1", "192.0.2.9"))) as served:
        seen = Seen(served.server)
        hops = ("X-Forwarded-For: 192.0.2.1, 192.0.2.2", "Via: 1.1 a", "X-Forwarded-For: 192.0.2.9", "Via: 1.1 b")
        wire = await served.wire()
        asked = head("POST /bayeux HTTP/1.1", "Host: 127.0.0.1", TYPE, LENGTH, *hops, body=BODY)
        with seen.counting:
            for _ in range(4):
                assert (await wire.request(asked)).messages[0]["successful"]
        assert seen.calls["parsed"] == 1


async def test_hooks_see_the_first_of_headers_that_proxies_repeat_however_a_request_is_served():
    """The head of a repeated request, which is parsed for hooks alone, gives them what the first one gave."""
    heard = []

    class Extension:
        def incoming(self, session, message):
            heard.append((message.context.headers["x-forwarded-for"], message.context.headers["via"]))
            return message

    def register(halley):
        halley.add_extension(Extension())

    async with serving(brisk(**behind("127.0.0.1", "192.0.2.9")), register) as served:
        hops = ("X-Forwarded-For: 192.0.2.1", "Via: 1.1 a", "X-Forwarded-For: 192.0.2.9", "Via: 1.1 b")
        wire = await served.wire()
        for target in ("/bayeux", "/bayeux", "/bayeux?by=another-head"):
            asked = head(f"POST {target} HTTP/1.1", "Host: 127.0.0.1", TYPE, LENGTH, *hops, body=BODY)
            assert (await wire.request(asked)).messages[0]["successful"]
    assert heard == [("192.0.2.1", "1.1 a")] * 3


async def test_the_clients_of_a_proxy_are_known_on_all_of_its_connections():
    """A proxy sends a request on any connection that is free: its head is parsed once, and is its own client's."""
    async with serving(brisk(**behind("127.0.0.1"))) as served:
        seen = Seen(served.server)
        wires = [await served.wire() for _ in range(3)]
        with seen.counting:
            for number in range(12):
                address = f"192.0.2.{number % 4}"
                wire = wires[number % len(wires)]
                reply = await wire.post(HANDSHAKE | {"id": str(10**number)}, x_forwarded_for=address)
                client_id = reply.messages[0]["clientId"]
                assert served.halley.session(client_id).address == address
        assert seen.calls["parsed"] == 4


async def test_a_connection_whose_first_request_is_not_parsed_has_met_its_deadline():
    """S3: a proxy opens a new connection for a known client's poll; the poll is held, and the next request served."""
    async with serving(brisk(**behind("127.0.0.1"))) as served:
        wires = [await served.wire() for _ in range(2)]
        client_id = (await wires[0].post(HANDSHAKE)).messages[0]["clientId"]
        await wires[0].post(connect(client_id))
        seen = Seen(served.server)
        with seen.counting:
            await wires[1].send(post(json.dumps([connect(client_id)]).encode()))
            await served.until(lambda: served.house.engine.sessions.holds == 1)
        assert seen.calls["parsed"] == 0
        served.watch.sweep(monotonic() + served.house.settings.limits.head_s)
        served.halley.session(client_id).disconnect()
        assert (await wires[1].read()).status == 200
        served.watch.sweep(monotonic() + served.house.settings.limits.head_s)
        assert (await wires[1].post(HANDSHAKE)).messages[0]["successful"]
