"""Bayeux under a foreign ASGI server, which reports less about connections than Halley's own host.

`wire/test_dead_polls.py` tests the same under Halley's own host, which knows what happened to every byte.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, suppress

from support.messages import HANDSHAKE, connect, publish, subscribe
from support.server import brisk

from halley.server import create_app

DEADLINE_S = 10
HOUR = {"hold_s": 3600}


class Peer:
    """One request as an ASGI server passes it, without extensions; `departs` disconnects its peer."""

    def __init__(self, house, *messages):
        self._house = house
        self._body = json.dumps(messages).encode()
        self._was_read = False
        self.departs = asyncio.Event()
        self.sent = []

    async def serve(self):
        """Let the house serve the request."""
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/bayeux",
            "query_string": b"",
            "scheme": "http",
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        }
        async with asyncio.timeout(DEADLINE_S):
            await self._house(scope, self.receive, self.send)

    async def ask(self):
        """Let the house serve the request; return the messages of the reply, or None if there was none."""
        await self.serve()
        return json.loads(self.sent[1]["body"]) if self.sent else None

    async def receive(self):
        if not self._was_read:
            self._was_read = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self.departs.wait()
        return {"type": "http.disconnect"}

    async def send(self, event):
        self.sent.append(event)


class LostPeer(Peer):
    """A peer whose connection is lost when the response is written."""

    async def send(self, event):
        raise ConnectionResetError


class StuckPeer(Peer):
    """A peer that reads nothing, so that its server waits."""

    async def send(self, event):
        await asyncio.Event().wait()


@asynccontextmanager
async def housing(**changed):
    """A house that is open during the block; at its end nothing may be left of it."""
    house = create_app(brisk(**changed))
    before = asyncio.all_tasks()
    async with house.application.lifespan():
        yield house
    assert asyncio.all_tasks() == before
    assert house.engine.sessions.holds == 0


async def open_session(house, *channels):
    (shaken,) = await Peer(house, HANDSHAKE).ask()
    client_id = shaken["clientId"]
    await Peer(house, connect(client_id), subscribe(client_id, *channels)).ask()
    return client_id


async def until(condition):
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)


def data_of(messages):
    return [message["data"] for message in messages if "data" in message]


async def test_a_held_connect_is_answered_when_an_event_comes():
    """A34: under any ASGI server."""
    async with housing(bayeux=HOUR) as house:
        me = await open_session(house, "/a")
        asked = asyncio.create_task(Peer(house, connect(me)).ask())
        await until(lambda: house.engine.sessions.holds == 1)
        await Peer(house, publish("/a", 1)).ask()
        assert data_of(await asked) == [1]
        assert house.broker.sessions[me].unsettled is None


async def test_a_peer_that_leaves_during_a_hold_is_noticed():
    """B15: ASGI reports `http.disconnect`; nothing is sent, and the next connect gets the events."""
    async with housing(bayeux=HOUR) as house:
        me = await open_session(house, "/a")
        peer = Peer(house, connect(me))
        asked = asyncio.create_task(peer.ask())
        await until(lambda: house.engine.sessions.holds == 1)
        peer.departs.set()
        assert await asked is None
        assert house.engine.sessions.holds == 0
        await Peer(house, publish("/a", 1)).ask()
        assert data_of(await Peer(house, connect(me)).ask()) == [1]


async def test_a_peer_that_leaves_as_its_event_comes_loses_nothing():
    """Both happen in one turn of the loop; the event is delivered once, by this connect or by the next."""
    async with housing(bayeux=HOUR) as house:
        me = await open_session(house, "/a")
        peer = Peer(house, connect(me))
        asked = asyncio.create_task(peer.ask())
        await until(lambda: house.engine.sessions.holds == 1)
        published = asyncio.create_task(Peer(house, publish("/a", 1)).ask())
        peer.departs.set()
        came = await asked
        await published
        again = await Peer(house, connect(me, advice={"timeout": 0})).ask()
        assert data_of(came or []) + data_of(again) == [1]


async def test_events_of_an_answer_that_could_not_be_sent_come_again():
    """`send` raises, so the peer received nothing."""
    async with housing(bayeux=HOUR) as house:
        me = await open_session(house, "/a")
        await Peer(house, publish("/a", 1), publish("/a", 2)).ask()
        lost = LostPeer(house, connect(me))
        with suppress(ConnectionResetError):
            await lost.serve()
        assert house.engine.sessions.put_back == 2
        assert data_of(await Peer(house, connect(me)).ask()) == [1, 2]


async def test_a_server_that_waits_for_ever_does_not_keep_the_events():
    """P5: after `write_s` the reply counts as not sent, and the session can continue."""
    async with housing(bayeux=HOUR, limits={"write_s": 0.1}) as house:
        me = await open_session(house, "/a")
        await Peer(house, publish("/a", 1)).ask()
        assert await StuckPeer(house, connect(me)).ask() is None
        assert data_of(await Peer(house, connect(me)).ask()) == [1]


async def test_a_request_that_is_cancelled_during_a_hold_leaves_no_hold():
    """S42: a foreign server cancels its tasks when it shuts down."""
    async with housing(bayeux=HOUR) as house:
        me = await open_session(house, "/a")
        asked = asyncio.create_task(Peer(house, connect(me)).ask())
        await until(lambda: house.engine.sessions.holds == 1)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        assert house.engine.sessions.holds == 0
        await Peer(house, publish("/a", 1)).ask()
        assert data_of(await Peer(house, connect(me)).ask()) == [1]


async def test_an_early_refusal_asks_that_server_to_close():
    """S5: Halley's own host closes the connection itself; a foreign one gets `Connection: close`."""
    async with housing(limits={"body_bytes": 1_024}) as house:
        peer = Peer(house, publish("/a", "x" * 2_000))
        await peer.serve()
        start, body = peer.sent
        assert (start["status"], body["body"]) == (413, b"request body too large")
        assert dict(start["headers"])[b"connection"] == b"close"
