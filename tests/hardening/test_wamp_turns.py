"""One WAMP peer's messages are processed in turns, so that other peers are served in between."""

from __future__ import annotations

import asyncio
import gc
import time

import pytest
from support.frames import next_frame, shake, text
from support.server import brisk, serving
from support.switchboard import SILENT, speaking, speaking_plainly
from support.wamp import PUBLISH, PUBLISHED, join
from support.wire import DEADLINE_S, Wire

from halley.protocols.wamp.session import WampSession
from halley.transports.websocket import TURN_S

MESSAGES = 5


class Turns:
    """Counts the event loop's turns and records the turn of each message; each costs more than one peer's turn."""

    def __init__(self):
        self.count = 0
        self.taken = []
        self.loop = asyncio.get_running_loop()
        self.loop.call_soon(self.next)

    def next(self):
        self.count += 1
        if len(self.taken) < MESSAGES:
            self.loop.call_soon(self.next)

    def burden(self, engine):
        """Make each of the engine's messages cost more than the time of a turn."""
        receive = engine.receive

        def costly(message, now):
            self.taken.append(self.count)
            time.sleep(TURN_S * 1.5)
            receive(message, now)

        engine.receive = costly

    async def all_taken(self):
        async with asyncio.timeout(DEADLINE_S):
            while len(self.taken) < MESSAGES:
                await asyncio.sleep(0)


@pytest.mark.parametrize("face_of_it", ["plain", "tls", "foreign"])
async def test_what_came_at_once_is_taken_in_turns(face_of_it):
    """S32: messages from one read of a socket are processed in order, each in its own turn of the loop."""
    served_by = speaking_plainly() if face_of_it == "foreign" else speaking(tls=face_of_it == "tls")
    async with served_by as served:
        wire = await (Wire.open(served.port) if face_of_it == "foreign" else served.wire())
        await shake(wire)
        async with asyncio.timeout(DEADLINE_S):
            while not served.board.engines:
                await asyncio.sleep(0)
        turns = Turns()
        turns.burden(served.board.last)
        await wire.send(b"".join([text(SILENT)] * (MESSAGES - 1)) + text(b"[1]"))
        await turns.all_taken()
        assert (await next_frame(wire)).data == b"[1]"
        assert len(set(turns.taken)) == MESSAGES, turns.taken
        assert served.board.last.received == [SILENT] * (MESSAGES - 1) + [b"[1]"]
        await wire.close()


@pytest.mark.parametrize("serializer", ["json", "msgpack", "cbor"])
async def test_a_batch_of_a_thousand_is_answered_whole_and_in_order(serializer):
    """W60, W50: all messages of a batch are answered in order, and those before an invalid message are processed."""
    async with serving(brisk()) as served, await join(served.url, f"wamp.2.{serializer}.batched") as client:
        requests = [client.next_request() for _ in range(1_000)]
        await client.send(*([PUBLISH, request, {"acknowledge": True}, f"t{request}", [1]] for request in requests))
        assert [(await client.receive())[:2] for _ in requests] == [[PUBLISHED, request] for request in requests]
        await client.send([PUBLISH, 2_000, {"acknowledge": True}, "t", [1]], [99], [PUBLISH, 2_001, {}, "t"])
        assert (await client.receive())[:2] == [PUBLISHED, 2_000]
        assert (await client.receive())[2] == "wamp.error.protocol_violation"
        assert await client.closed() == 1002


async def test_tls_and_the_end_behind_messages():
    """All messages of a peer are processed, even if it closes the connection right after sending them."""
    async with speaking(tls=True) as served:
        wire = await served.wire()
        await shake(wire)
        turns = Turns()
        turns.burden(served.board.last)
        wire.writer.write(b"".join([text(SILENT)] * MESSAGES))
        wire.writer.close()
        await turns.all_taken()
        async with asyncio.timeout(DEADLINE_S):
            while not served.board.last.lost_times:
                await asyncio.sleep(0.005)


async def test_sessions_that_have_ended_leave_nothing():
    """S29: engines of ended sessions are freed, immediately or by the next garbage collection."""
    async with serving(brisk()) as served:
        for _ in range(20):
            async with await join(served.url):
                pass
        async with asyncio.timeout(DEADLINE_S):
            while served.house.broker.sessions:
                await asyncio.sleep(0.005)
        gc.collect()
        assert sum(isinstance(each, WampSession) for each in gc.get_objects()) <= 1
