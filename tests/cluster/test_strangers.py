"""What a user of the NATS servers can send who has the rights of a node, and is none: nodes drop it, and go on."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import orjson
import pytest
from support.nats import nats_servers, node, taken, url_of
from support.wire import DEADLINE_S

from halley.client import Client
from halley.cluster.exchange import NodeExchange, question
from halley.cluster.frames import Row, SharedFields, UnrecordedFields, pack
from halley.cluster.members import MOST_NODES, Members, id_of
from halley.nats.jetstream import Connection
from halley.nats.wire import Message
from halley.settings import Cluster

MOST_LINES = 36
"""Which a node may log of all this, besides those about nodes: it lasts some seconds, with few lines of each event."""


@asynccontextmanager
async def stranger(urls):
    """Yield a function that sends bytes as they are, and waits until the server has handled them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(urls.rpartition(":")[2]))

    async def send(data):
        writer.write(data + b"PING\r\n")
        await writer.drain()
        async with asyncio.timeout(DEADLINE_S):
            while (line := await reader.readline()) != b"PONG\r\n":
                assert line.startswith((b"INFO", b"PING")), line

    try:
        await send(b'CONNECT {"verbose": false, "headers": true}\r\n')
        yield send
    finally:
        writer.transport.abort()


def message(subject, data, reply=b""):
    """Return what publishes a message."""
    return b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(data), data)


ODD = (
    b"",
    b"x",
    b"\xff\xfe",
    b"null",
    b"[[[[",
    b'{"node":[],"news":{}}',
    b'{"node":"z","news":[[[],1],["settings"],5,["nt4",[1,2]],["nt4",[9,1,[],true]]]}',
    b'{"node":"z","id":"zzzz","key":"k","kept":{"head":"x"},"nt4":5,"state":[],"keeps":{},"url":7,"went_back":0}',
    b'{"what":"rows","first":"x"}',
    b'{"what":["read"]}',
    b'{"what":"read","query":{"wanted":5},"within_s":1e999}',
    b'{"what":"read","query":{"wanted":[]},"within_s":-1}',
    b"[5,5]\n" + pack("z", 0, []),
    pack(
        "z",
        0,
        [Row("/chat/a", b"{", SharedFields("?", "?", "{", None, None, None), None, UnrecordedFields(-1, -1, None, ()))],
    ),
    pack("z", 1, [Row("", b"", SharedFields("", "", None, None, None, None))]),
    b"999999999999999999999999",
)
REPLIES = (b"", b"a..b", b"*", b">", b"\xff\x85", b"$SYS.x", b"halley.q", b"halley.k", b"halley.h.z", b"_INBOX.x")


@pytest.mark.slow
async def test_a_node_outlives_whatever_is_sent_to_it(tmp_path):
    """Its connection to NATS too; and its log stays short."""
    async with nats_servers(tmp_path) as nats, node(tmp_path, nats, "a") as server, stranger(nats.urls) as send:
        own = id_of("a").encode()
        names = (b"c.z", b"h.z", b"q", b"k", b"k.a", b"w.z", b"w.\xff", b"a.z", b"d.z", b"r.z", b"n." + own)
        subjects = [b"halley." + name for name in (*names, b"v.set", b"v.all", b"f.z", b"c.\xff\x00")]
        for subject in subjects:
            await send(b"".join(message(subject, data, reply) for data in ODD for reply in REPLIES))
        await send(
            message(b"halley.q", question("z", "settings", None)[:-2] + b',["settings",0]' * 60_000 + b"]}", b"x")
        )
        for number in range(300):
            await send(message(b"halley.h.x", b'{"node":"z%d","id":"zzzz","key":"k"}' % number))
        async with Client(url_of(server)) as client:
            await client.subscribe("/chat/**")
            await client.publish("/chat/room", "after")
            assert [event.data for event in await taken(client, 1)] == ["after"]
        logged = [json.loads(line)["event"] for line in server.lines if line.startswith("{")]
        assert "cluster_away" not in logged
        assert "cluster_diverged" not in logged
        came, gone = logged.count("cluster_member"), logged.count("cluster_member_gone")  # silent, on a slow machine
        assert came - gone <= MOST_NODES
        assert len(logged) - came - gone < MOST_LINES, logged


def test_more_news_than_a_node_sends_at_once_are_dropped():
    """A stranger's message could ask for a hundred thousand answers."""
    nats = Connection(Cluster(node="a"))
    exchange = NodeExchange(Members(nats, 0.0))
    heard = []
    exchange.answer("x", lambda node, body: heard.append(body))
    for count in (100, 101):
        data = orjson.dumps({"node": "z", "news": [["x", count]] * count})
        exchange._received(Message("halley.q", "", b"", data))
    assert heard == [100] * 100
