"""ASGI applications on a connection: what they send in the wrong order or too fast, over a socket."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from functools import partial

import pytest
from support.server import brisk
from support.wire import DEADLINE_S, Wire, request, until

from halley.host.bayeux import BayeuxContext
from halley.host.http import Connection
from halley.host.listener import HttpServer, bind, config_of
from halley.host.relayed import NodeAuthentication, RelayedConnection
from halley.host.timeouts import ServerContext
from halley.server.composition import Server

KEY, NODE = "k" * 64, "node"
CHUNK = b"x" * 262_144


@asynccontextmanager
async def serving(app, make=Connection, **parts):
    """Serve an application; gives a function that opens a connection, and the server's context."""
    settings = brisk()
    shared = ServerContext(settings.limits, is_dated=False)
    listener = bind("127.0.0.1", 0, "--port")
    server = HttpServer(config_of(app, settings, partial(make, shared=shared, **parts), 0))
    running = asyncio.create_task(server.serve([listener]))
    await until(lambda: server.started)
    wires = []

    async def connect(**options):
        wires.append(await Wire.open(listener.getsockname()[1], **options))
        return wires[-1]

    try:
        yield connect
    finally:
        for wire in wires:
            wire.reset()
        await until(lambda: not server.server_state.connections)
        server.begin_shutdown()
        async with asyncio.timeout(DEADLINE_S):
            await running


def start(*headers, status=200):
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body(data=b"", *, is_last=True):
    return {"type": "http.response.body", "body": data, "more_body": not is_last}


async def test_a_peer_that_neither_reads_nor_sends_any_more_does_not_get_all(caplog):
    """A response waits for a peer that has closed its sending half, as for any other: its memory stays bounded."""
    links, sent, goes_on = [], [], asyncio.Event()

    async def app(scope, receive, send):
        links.append(scope["extensions"]["halley"])
        await send(start())
        await send(body(CHUNK * 16, is_last=False))
        await goes_on.wait()
        for _ in range(1_000):
            await send(body(CHUNK, is_last=False))
            sent.append(len(CHUNK))

    async with serving(app) as connect:
        wire = await connect(receive_buffer_bytes=4_096)
        await wire.send(request("GET", "/"))
        await until(lambda: links and links[0].is_paused)
        wire.half_close()
        await until(lambda: links[0].is_over)
        goes_on.set()
        for _ in range(100):
            await asyncio.sleep(0)
        assert not sent


async def test_another_node_gets_an_answer_that_is_more_than_its_kernel_takes():
    """The other node says that its client has all of it when it has all of it: nothing waits for that before."""

    async def app(scope, receive, send):
        await send(start())
        for _ in range(16):
            await send(body(CHUNK, is_last=False))
        await send(body())

    server = Server(brisk())
    parts = {"bayeux": BayeuxContext(server, server.endpoint), "authentication": NodeAuthentication(KEY, NODE, 10)}
    async with serving(app, RelayedConnection, **parts) as connect:
        wire = await connect(receive_buffer_bytes=4_096)
        await wire.send(request("GET", "/", halley_node=f"{KEY} {NODE} http 192.0.2.1"))
        async with asyncio.timeout(DEADLINE_S):
            came = await wire.reader.readuntil(b"\r\n\r\n")
            assert came.startswith(b"HTTP/1.1 200 ")
            for _ in range(16):
                assert await wire.reader.readuntil(b"\r\n") == b"40000\r\n"
                assert await wire.reader.readexactly(len(CHUNK) + 2) == CHUNK + b"\r\n"
            assert await wire.reader.readexactly(5) == b"0\r\n\r\n"


REFUSED = {
    "a name with a space": start((b"bad name", b"x")),
    "a value with a line end": start((b"a", b"b\r\nc: d")),
    "a length that is no number": start((b"content-length", b"x")),
    "a status of two digits": start(status=99),
    "an unknown class of status": start(status=600),
    "no status": {"type": "http.response.start"},
    "a body": body(b"too early"),
    "an unknown type": {"type": "http.response.unknown"},
}


@pytest.mark.parametrize("what", REFUSED)
async def test_a_head_that_is_refused_changes_nothing(what, caplog):
    """Nothing is written, so the client gets 500, or what the application sends instead."""

    async def app(scope, receive, send):
        try:
            await send(REFUSED[what])
        except (RuntimeError, ValueError, KeyError):
            if scope["path"] == "/careless":
                raise
        await send(start((b"content-length", b"4")))
        await send(body(b"fine"))

    async with serving(app) as connect:
        wire = await connect()
        answer = await wire.request(request("GET", "/careful"))
        assert (answer.status, answer.text) == (200, "fine")
        assert not caplog.records
        answer = await wire.request(request("GET", "/careless"))
        assert (answer.status, answer.text) == (500, "Internal Server Error")
        assert await wire.is_closed()
        assert [each.exc_info is not None for each in caplog.records if each.levelno == logging.ERROR] == [True]


async def test_a_part_that_is_too_long_is_not_counted():
    """An application that sends more than its Content-Length may send the right part instead."""

    async def app(scope, receive, send):
        await send(start((b"content-length", b"4")))
        with pytest.raises(RuntimeError, match="longer than Content-Length"):
            await send(body(b"too long"))
        await send(body(b"fine"))

    async with serving(app) as connect:
        wire = await connect()
        for _ in range(2):
            assert (await wire.request(request("GET", "/"))).text == "fine"


FAULTY = {
    "nothing": ([], b"HTTP/1.1 500 Internal Server Error\r\n", "returned without starting response"),
    "a head": ([start((b"content-length", b"4"))], b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n", "completing"),
    "too little": (
        [start((b"content-length", b"4")), body(b"ab")],
        b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab",
        "Exception",
    ),
    "a body twice": (
        [start((b"content-length", b"2")), body(b"ab"), body(b"ab")],
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nab",
        "Exception",
    ),
}


@pytest.mark.parametrize("what", FAULTY)
async def test_an_application_that_does_not_answer_as_asgi_says(what, caplog):
    """The log says what it did, and its client sees that the connection is closed: the response has no other end."""
    messages, written, complaint = FAULTY[what]

    async def app(scope, receive, send):
        for message in messages:
            await send(message)

    async with serving(app) as connect:
        wire = await connect()
        await wire.send(request("GET", "/"))
        assert (await wire.rest()).startswith(written)
        (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
        assert complaint in record.getMessage()
