"""Servers that are broken, hostile, or end a connection at a bad moment, on both event loops: `halley.nats.client`."""

from __future__ import annotations

import asyncio
import gc
import json
import warnings
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog
import uvloop
from support.wire import until

from halley.nats.client import Client
from halley.nats.wire import Message
from halley.settings import Cluster

both_loops = pytest.mark.parametrize("run", [asyncio.run, uvloop.run])

FILES = Path("/proc/self/fd")
TLS_INFO = {"tls_required": True}

_TURNS = 10
"""How often the loop turns, at most, from where a connection is accepted to where a coroutine serves it."""


class Server:
    """Speaks to clients as a NATS server does, except for what it is told.

    It sends `first` behind INFO, `later` behind the PONG with which it lets a client in, and then hangs up if it
    `hangs_up`. It speaks until it has to begin TLS, and then says nothing if `mute`, else hangs up. `lines` are what
    clients have sent, `count` is how many have come, and `begun` how many of them have sent anything.
    """

    def __init__(self, *, info=None, first=b"", later=b"", hangs_up=False, mute=False):
        self.info = {"version": "2.15.1", "max_payload": 1_000} if info is None else info
        self.first, self.later, self.hangs_up, self.mute = first, later, hangs_up, mute
        self.lines = []
        self.count = self.begun = 0
        self.writers = []
        self.port = 0

    @property
    def url(self):
        """Where it is."""
        return f"nats://127.0.0.1:{self.port}"

    async def serve(self, reader, writer):
        """Serve one client."""
        self.count += 1
        self.writers.append(writer)
        writer.write(b"INFO %b\r\n%b" % (json.dumps(self.info).encode(), self.first))
        if self.info.get("tls_required"):
            self.begun += await reader.read(1) != b""
            await (reader.read() if self.mute else writer.drain())
            writer.close()
            return
        while line := await reader.readline():
            self.lines.append(line)
            self.begun += line.startswith(b"CONNECT")
            if line == b"PING\r\n":
                writer.write(b"PONG\r\n" + self.later)
                if self.hangs_up:
                    break
        writer.close()


@asynccontextmanager
async def serving(**options):
    """Run such a server within the block; options are those of `Server`."""
    server = Server(**options)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        for writer in server.writers:
            writer.transport.abort()


def client_of(*servers, **options):
    """Return a client of these servers, which is not open."""
    return Client(Cluster(urls=tuple(server.url for server in servers), node="a", **options))


async def closed_in(client):
    """Close a client, and return how many seconds that took."""
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    await client.close()
    return loop.time() - began_at


def open_files():
    """Return how many files and sockets this process has open."""
    return len([*FILES.iterdir()])


@both_loops
def test_a_client_can_be_closed_at_any_moment(run):
    """Nothing is left of it, and nothing is said by the interpreter."""

    async def all_moments():
        async with serving() as good, serving(info=TLS_INFO, mute=True) as mute:
            await client_of(good).close()  # which was never open
            for at_once in (True, False):
                for server in (good, mute):
                    for _ in range(5):
                        client = client_of(server)
                        opening = asyncio.create_task(client.open())
                        await asyncio.sleep(0)
                        if not at_once:
                            seen = server.begun
                            await until(lambda seen=seen, server=server: server.begun > seen)
                        assert await closed_in(client) < 1
                        opening.cancel()
                        await asyncio.gather(opening, return_exceptions=True)
            client = client_of(good)
            await client.open()
            client.subscribe("a", lambda _message: asyncio.sleep(9))
            client._subscriptions.deliver(b"2", a_message())  # its handler has not begun
            assert await closed_in(client) < 1
            client = client_of(good)
            await client.open()
            for writer in good.writers:
                writer.transport.abort()
            await until(lambda: client.away_since is not None)
            assert await closed_in(client) < 1
            assert len(asyncio.all_tasks()) <= 1 + good.count + mute.count

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(all_moments())
        gc.collect()


def a_message(data=b"", subject="a"):
    """Return a message as the wire makes it."""
    return Message(subject, "", b"", data)


@pytest.mark.slow
@both_loops
def test_renewing_during_the_handshake_of_tls(run):
    async def renew():
        async with serving(info=TLS_INFO, mute=True) as server:
            client = client_of(server)
            opening = asyncio.create_task(client.open())
            for number in range(1, 4):
                await until(lambda number=number: server.begun == number)
                client.renew()
            await until(lambda: server.count == 4)
            opening.cancel()
            await client.close()

    run(renew())


@both_loops
def test_a_server_that_hangs_up_during_the_handshake_of_tls_is_asked_again(run):
    async def connect():
        before = open_files()
        async with serving(info=TLS_INFO) as server:
            client = client_of(server)
            opening = asyncio.create_task(client.open())
            await until(lambda: server.count == 5)
            opening.cancel()
            await client.close()
        await until(lambda: open_files() <= before + 1)

    run(connect())


async def test_before_a_server_has_proved_who_it_is_nothing_is_delivered():
    """Whoever can take its place could else say anything in the name of other nodes, and needs no certificate."""
    forged = b"MSG a 2 5\r\nforge\r\n"
    for info, first in (({}, forged), (TLS_INFO, forged), (TLS_INFO, forged[:-3])):
        async with serving(info={"version": "2.15.1"} | info, first=first, mute=True) as server:
            client = client_of(server)
            heard = []
            client.subscribe("a", heard.append)
            opening = asyncio.create_task(client.open())
            await until(lambda server=server: server.count == 2)
            assert (heard, client.opened.is_set()) == ([], False)
            assert client.last_error in (
                "the server does not speak NATS' protocol",
                "the server says more than INFO before TLS",
            )
            opening.cancel()
            await client.close()


async def test_a_server_that_lets_in_and_hangs_up_is_not_asked_without_end():
    async with serving(hangs_up=True) as server:
        client = client_of(server)
        await client.open()
        await asyncio.sleep(0.5)
        assert server.count <= 6
        await until(lambda: server.count >= 2)
        await client.close()


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"Stale Connection", "Stale Connection"),
        (b'Permissions Violation for Publish to "a"', "the connection is lost"),  # which has not ended it
        (b"\x1b[2J" + b"x" * 500, r"\x1b[2J" + "x" * 193),
    ],
)
async def test_why_a_server_has_hung_up_is_logged_escaped_and_not_at_length(said, reason):
    with structlog.testing.capture_logs() as lines:
        async with serving(later=b"-ERR '%b'\r\n" % said, hangs_up=True) as server:
            client = client_of(server)
            await client.open()
            await until(lambda: lines)
            await client.close()
    assert lines[0] == {
        "event": "cluster_away",
        "log_level": "warning",
        "server": f"127.0.0.1:{server.port}",
        "reason": reason,
    }


@pytest.mark.parametrize(
    "info",
    [
        {"connect_urls": 5},
        {"connect_urls": ["[::1", "a:99999999", "", 7, None]},
        {"max_payload": None},
        {"max_payload": "many"},
        {"nonce": 5, "version": []},
    ],
)
async def test_what_a_server_says_of_itself_may_be_odd(info):
    """The node stays with it, or goes on trying: it must never stop that."""
    async with serving(info=info) as odd, serving() as good:
        client = client_of(odd)
        opening = asyncio.create_task(client.open())
        await until(lambda: client.opened.is_set() or odd.count > 1)
        for writer in odd.writers:
            writer.transport.abort()
        seen = odd.count
        await until(lambda: odd.count > seen)
        opening.cancel()
        await client.close()
        assert good.count == 0


async def test_servers_that_are_named_later_are_known_too():
    """Also after many others, which are forgotten; those of the settings never are."""
    async with serving() as first, serving() as second:
        client = client_of(first)
        await client.open()
        names = [f"127.0.0.1:{port}" for port in range(1, 20)] + [f"127.0.0.1:{second.port}"]
        first.writers[-1].write(b"INFO %b\r\n" % json.dumps({"connect_urls": names}).encode())
        await until(lambda: client._wire.info.get("connect_urls"))
        first.writers[-1].transport.abort()
        await until(lambda: client.server == f"127.0.0.1:{second.port}")
        second.writers[-1].transport.abort()
        await until(lambda: client.server == f"127.0.0.1:{first.port}")
        assert len(client._learned) == 16
        await client.close()


async def test_a_message_without_a_reply_is_not_answered_and_a_large_one_not_sent(capsys):
    """Both would have the server end the connection."""
    async with serving() as server:
        client = client_of(server)
        await client.open()
        client.publish("", b"an answer")
        client.publish("a", b"x" * 1_001)
        client.publish("a", b"x" * 991, head=b"NATS/1.0\r\n")
        client.publish("a", b"x" * 1_000)
        await until(lambda: server.lines[-1] == b"x" * 1_000 + b"\r\n")
        assert [line for line in server.lines if b"PUB" in line] == [b"PUB a 1000\r\n"]
        await client.close()
    assert "larger than max_payload" in capsys.readouterr().out
