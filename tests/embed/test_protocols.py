"""A program chooses the protocols that its server speaks; those that it leaves out are not served, the others are."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from support import nt4, wamp
from support.messages import HANDSHAKE, connect, publish
from support.server import brisk, serving
from support.streams import StreamReader
from support.wire import request
from websockets.exceptions import InvalidStatus

from halley.server.metrics import exposition
from halley.server.protocols import PROTOCOLS

BAYEUX, WAMP, NT4 = "bayeux", "wamp", "nt4"


def without(*names):
    return [compose for compose in PROTOCOLS if compose.__name__ not in names]


async def speaks(served):
    """Return the names of the protocols that clients can use on the public port."""
    spoken = set()
    wire = await served.wire()
    handshake = await wire.post(HANDSHAKE)
    assert handshake.status in (200, 404, 405)
    if handshake.status == 200:
        client_id = handshake.messages[0]["clientId"]
        assert (await wire.post(connect(client_id))).messages[0]["successful"]
        spoken.add(BAYEUX)
    for name, join in ((WAMP, wamp.join), (NT4, nt4.connect)):
        with suppress(InvalidStatus):
            await (await join(served.url)).close()
            spoken.add(name)
    return spoken


@pytest.mark.parametrize("left_out", [(), (BAYEUX,), (WAMP,), (NT4,), (BAYEUX, WAMP), (WAMP, NT4), (BAYEUX, WAMP, NT4)])
async def test_each_protocol_can_be_left_out(left_out):
    settings, rest = brisk(nt4={"enabled": True, "port": 0}), {BAYEUX, WAMP, NT4} - {*left_out}
    async with serving(settings, protocols=without(*left_out)) as served:
        assert await speaks(served) == rest
        assert json.loads((await (await served.wire()).request(request("GET", "/rights"))).body)
        assert b"halley_sessions" in exposition(served.house)


async def test_each_protocol_keeps_only_the_beginning_of_a_user_agent():
    """Its length is the client's choice, and it stays in memory for as long as the session."""
    agent = "x" * 6_000
    async with serving(brisk(nt4={"enabled": True, "port": 0})) as served:
        await (await served.wire()).post(HANDSHAKE, user_agent=agent)
        await StreamReader.open(served, "/events/a", user_agent=agent)
        peers = [await each.connect(served.url, user_agent_header=agent) for each in (wamp, nt4)]
        await peers[0].join()
        kept = {session.protocol: session.user_agent for session in served.house.broker.sessions.values()}
        assert kept == {protocol.name: agent[:200] for protocol in served.house.protocols}
        for peer in peers:
            await peer.close()


async def test_a_program_publishes_and_hears_where_clients_have_no_bayeux():
    """The program's own sessions need no protocol of clients; hooks are called as ever."""
    heard, created = [], []

    def register(halley):
        halley.on("channel_created")(created.append)
        halley.local_session("ear").subscribe("/chat/*", lambda channel, data: heard.append((channel, data)))

        @halley.service("/service/echo")
        def echo(session, message):
            return message.data

    async with serving(register=register, protocols=without(BAYEUX)) as served, await wamp.join(served.url) as peer:
        await peer.subscribe("chat.a")
        assert (await served.halley.publish("/chat/a", "from the program"))["successful"]
        assert (await peer.receive())[-1] == ["from the program"]
        await peer.publish("chat.b", ["from WAMP"])
        await served.until(lambda: len(heard) == 2)
        assert heard == [("/chat/a", "from the program"), ("/chat/b", "from WAMP")]
        assert (await served.halley.publish("/service/echo", 1))["successful"]
        assert created == ["/chat/*", "/chat/a", "/service/echo"]
        assert (await (await served.wire()).post(publish("/chat/a", 1))).status in (404, 405)


async def test_what_networktables_has_kept_is_erased_where_it_is_left_out(tmp_path):
    """A purge reaches the file of an earlier run, whether NetworkTables is off or left out."""
    file = tmp_path / "networktables.json"
    item = {"name": "/secret", "type": "string", "value": "x", "properties": {"persistent": True}}
    file.write_text(json.dumps([item]))
    settings = brisk(data_dir=str(tmp_path), history={"enabled": True, "free_bytes": 0}, nt4={"enabled": True})
    async with serving(settings, protocols=without(NT4)) as served:
        await served.halley.publish("/secret", 1)
        wire = await served.wire()
        reply = await wire.request(
            request("POST", "/log/purge", b'{"channel": "/secret"}', content_type="application/json")
        )
        assert reply.status == 200, reply.body
    assert json.loads(file.read_text()) == []
