"""A publisher's `traceparent` at the nodes of a cluster: with the event, and with a request that is passed on."""

from __future__ import annotations

import json

import pytest
from support.bayeux_sockets import BayeuxWire
from support.messages import publish
from support.nats import rows
from support.relayed import metric, running, session
from support.wire import request

pytestmark = [pytest.mark.slow]

ONE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TWO = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
MALFORMED = 'halley_traceparents_malformed_total{protocol="bayeux"}'


async def test_it_comes_with_the_event_to_all_nodes(tmp_path):
    """A request for a session of another node has its own header there; the one that opens a WebSocket is no such."""
    async with running(tmp_path) as cluster:
        a, b, c = cluster.nodes
        client_id = await session(a)
        wire = await b.wire()
        assert (await wire.post(publish("/chat/a", 1, clientId=client_id), traceparent=ONE)).messages[0]["successful"]
        assert (await wire.post(publish("/chat/a", 2, clientId=client_id), traceparent="x")).messages[0]["successful"]
        assert (await wire.post(publish("/chat/a", 3, clientId=client_id))).messages[0]["successful"]
        socket = await BayeuxWire.open(b, traceparent=ONE)
        for number, ext in ((4, {}), (5, {"ext": {"traceparent": TWO}})):
            (reply,) = await socket.ask(publish("/chat/a", number, clientId=client_id, id="1", **ext))
            assert reply["successful"]
        told = [(1, ONE), (2, None), (3, None), (4, None), (5, TWO)]
        for node in (a, b, c):
            await rows(node, len(told))  # a publish does not wait for the other nodes
            answer = await (await node.wire()).request(request("GET", "/history/chat/a"))
            events = json.loads(answer.body)["events"]
            assert [(each["data"], each.get("ext", {}).get("traceparent")) for each in events] == told
        assert [await metric(node, MALFORMED) for node in (a, b, c)] == [1, 0, 0]
