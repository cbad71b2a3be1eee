"""Questions between nodes, without a network: to all others, and to one alone."""

from __future__ import annotations

import asyncio
import json

from halley.cluster.exchange import NodeExchange, question
from halley.cluster.members import Members, id_of
from halley.nats.jetstream import Connection
from halley.nats.wire import Message
from halley.settings import Cluster


class Nats(Connection):
    """A connection that keeps what is sent."""

    def __init__(self, options):
        self.handlers = {}
        super().__init__(options)
        self.away_since = None
        self.sent = []

    def subscribe(self, subject, handler, queue=""):
        self.handlers[subject] = handler
        return super().subscribe(subject, handler, queue)

    def publish(self, subject, data, reply="", _head=b""):
        self.sent.append((subject, json.loads(data), reply))


def exchange():
    """The exchange of node a, which knows b and c, and answers with what it is asked."""
    options = Cluster(node="a")
    nats = Nats(options)
    members = Members(nats, 0.0)
    for name in ("b", "c"):
        members.receive(json.dumps({"node": name, "id": id_of(name)}).encode(), 0.0)
    made = NodeExchange(members)
    made.answer("echo", lambda node, body: [node, body])
    return made, nats


def message(data, subject="halley.q", reply="halley.r.x.1"):
    return Message(subject, reply, b"", data)


async def test_a_question_to_one_node_is_answered_by_that_one():
    _, nats = exchange()
    for to in ("c", "x", 7, ""):
        nats.handlers["halley.q"](message(question("b", "echo", 1, to)))
    assert nats.sent == []
    for to in ("a", None):
        nats.handlers["halley.q"](message(question("b", "echo", 1, to)))
    assert nats.sent == [("halley.r.x.1", {"node": "a", "body": ["b", 1]}, "")] * 2


async def test_an_answer_of_one_node_is_complete():
    """That of another one does not count: an older version does not know that it was not asked."""
    made, nats = exchange()
    asking = asyncio.create_task(made.ask("echo", 1, "b"))
    await asyncio.sleep(0)
    ((subject, asked, reply),) = nats.sent
    assert (subject, asked) == ("halley.q", {"node": "a", "news": [["echo", 1]], "to": "b"})
    for node, body in (("c", "no"), ("b", "yes")):
        nats.handlers[reply](message(json.dumps({"node": node, "body": body}).encode(), reply, ""))
    assert await asking == ({"b": "yes"}, True)


async def test_a_node_that_is_not_there_is_not_asked():
    made, nats = exchange()
    assert await made.ask("echo", 1, "d") == ({}, True)
    assert nats.sent == []
