"""What endpoints do to the exchanges of a connection: in pieces, too fast, too late, twice or not at all."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial

import pytest
from structlog.testing import capture_logs
from support.server import brisk
from support.wire import DEADLINE_S, Wire, request, until

from halley.host.http import Connection
from halley.host.listener import HttpServer, bind, config_of
from halley.host.relayed import NodeAuthentication, RelayedConnection
from halley.host.requests import Site
from halley.host.timeouts import ServerContext
from halley.transports.addresses import Proxies
from halley.transports.exchange import Endpoint, respond_by
from halley.transports.guard import Rejection
from halley.transports.head import Headers
from halley.transports.routes import Route, Routes

KEY, NODE = "k" * 64, "node"
CHUNK = b"x" * 262_144
TEXT = Headers((b"content-type", b"text/plain"))


class Served(Endpoint):
    """An endpoint that runs a coroutine function with each exchange."""

    def __init__(self, work):
        self._work = work

    def serve(self, exchange, prepared, body, head):
        exchange.run(self._work(exchange), head)


class Direct(Served):
    """An endpoint that calls a function with each exchange."""

    def serve(self, exchange, prepared, body, head):
        self._work(exchange)


@asynccontextmanager
async def serving(endpoint, make=Connection, **parts):
    """Serve an endpoint; gives a function that opens a connection."""
    settings = brisk()
    shared = ServerContext(settings.limits, is_dated=False)
    site = Site(Routes([], Route("", endpoint, None), lambda *_: None), Proxies(()))
    listener = bind("127.0.0.1", 0, "--port")
    server = HttpServer(config_of(settings, partial(make, shared=shared, site=site, **parts), 0))
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


async def pieces(count, piece=CHUNK):
    for _ in range(count):
        yield piece


async def test_a_peer_that_neither_reads_nor_sends_any_more_does_not_get_all():
    """A response waits for a peer that has closed its sending half, as for any other: its memory stays bounded."""
    exchanges, sent, goes_on = [], [], asyncio.Event()

    async def work(exchange):
        exchanges.append(exchange)
        exchange.begin_response(200, TEXT)
        await exchange.send(CHUNK * 16)
        await goes_on.wait()
        for _ in range(1_000):
            await exchange.send(CHUNK)
            sent.append(len(CHUNK))

    async with serving(Served(work)) as connect:
        wire = await connect(receive_buffer_bytes=4_096)
        await wire.send(request("GET", "/"))
        await until(lambda: exchanges and exchanges[0].is_paused)
        wire.half_close()
        await until(lambda: exchanges[0].is_over)
        goes_on.set()
        for _ in range(100):
            await asyncio.sleep(0)
        assert not sent


async def test_another_node_gets_an_answer_that_is_more_than_its_kernel_takes():
    """The other node says that its client has all of it when it has all of it: nothing waits for that before."""

    async def work(exchange):
        await respond_by(exchange, 200, TEXT, pieces(16))

    authentication = NodeAuthentication(KEY, NODE, 10)
    async with serving(Served(work), RelayedConnection, authentication=authentication) as connect:
        wire = await connect(receive_buffer_bytes=4_096)
        await wire.send(request("GET", "/", halley_node=f"{KEY} {NODE} http 192.0.2.1"))
        async with asyncio.timeout(DEADLINE_S):
            came = await wire.reader.readuntil(b"\r\n\r\n")
            assert came.startswith(b"HTTP/1.1 200 ")
            for _ in range(16):
                assert await wire.reader.readuntil(b"\r\n") == b"40000\r\n"
                assert await wire.reader.readexactly(len(CHUNK) + 2) == CHUNK + b"\r\n"
            assert await wire.reader.readexactly(5) == b"0\r\n\r\n"


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_body_in_pieces_is_what_the_version_has(method, version):
    """Chunks, or up to the end of the connection; an empty piece is no end, and HEAD gets none."""

    async def work(exchange):
        await respond_by(exchange, 200, TEXT, pieces(3, b"abc"), [(b"x-more", b"1")])

    async def empty_ones():
        for piece in (b"", b"abc", b"", b"def"):
            yield piece

    async def other_work(exchange):
        await respond_by(exchange, 200, TEXT, empty_ones(), [(b"x-more", b"1")])

    for each, body, chunks in (
        (work, b"abc" * 3, b"3\r\nabc\r\n" * 3 + b"0\r\n\r\n"),
        (other_work, b"abcdef", b"3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n"),
    ):
        async with serving(Served(each)) as connect:
            wire = await connect()
            await wire.send(b"%b / HTTP/%b\r\nHost: a\r\n\r\n" % (method.encode(), version.encode()))
            lines = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nx-more: 1\r\n"
            if version == "1.0":
                lines += b"connection: close\r\n\r\n"
                assert await wire.rest() == lines + (body if method == "GET" else b"")
                continue
            lines += b"transfer-encoding: chunked\r\n\r\n" + chunks if method == "GET" else b"\r\n"
            assert await wire.reader.readexactly(len(lines)) == lines


def raises(_exchange):
    raise ValueError("a fault of ours")


def rejects(_exchange):
    raise Rejection(409, "not now")


def answers_and_raises(exchange):
    exchange.respond(200, TEXT, b"fine")
    raise ValueError("a fault of ours")


def answers_twice(exchange):
    exchange.respond(200, TEXT, b"fine")
    exchange.respond(200, TEXT, b"again")
    exchange.reject(Rejection(500, "again"))
    exchange.begin_response(200, TEXT)
    exchange.end_response()


async def later(exchange, work):
    await asyncio.sleep(0)
    work(exchange)


FAULTY = {
    "raises": (raises, 500, "internal error", 1),
    "rejects": (rejects, 409, "not now", 0),
    "answers and raises": (answers_and_raises, 200, "fine", 1),
    "answers twice": (answers_twice, 200, "fine", 0),
}


@pytest.mark.parametrize("is_later", [False, True])
@pytest.mark.parametrize("what", FAULTY)
async def test_there_is_one_answer_and_the_next_request_is_served(what, is_later):
    """Now or in a task: the connection goes on, and a fault is logged once."""
    work, status, text, faults = FAULTY[what]
    endpoint = Served(lambda exchange: later(exchange, work)) if is_later else Direct(work)
    with capture_logs() as log:
        async with serving(endpoint) as connect:
            wire = await connect()
            for _ in range(3):
                answer = await wire.request(request("GET", "/"))
                assert (answer.status, answer.text) == (status, text)
    assert len([line for line in log if line["event"] == "fault"]) == 3 * faults


@pytest.mark.parametrize("error", [ValueError("a fault of ours"), Rejection(403, "no more"), TimeoutError()])
async def test_a_body_that_cannot_be_finished_has_no_end(error):
    """So no client takes it for complete; only a fault is logged as one."""

    async def broken():
        yield b"abc"
        raise error

    async def work(exchange):
        await respond_by(exchange, 200, TEXT, broken())

    with capture_logs() as log:
        async with serving(Served(work)) as connect:
            wire = await connect()
            await wire.send(request("GET", "/"))
            assert not (await wire.rest()).endswith(b"0\r\n\r\n")
    faults = [line for line in log if line["event"] == "fault"]
    assert len(faults) == (1 if isinstance(error, ValueError) else 0)
