"""F1: a server gets SIGTERM while hundreds of polls are held and several publishers continue."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import defaultdict

import pytest
from support.messages import HANDSHAKE, connect, publish, subscribe
from support.process import ended, launched
from support.wire import Wire

pytestmark = pytest.mark.slow

HEARERS, PUBLISHERS = 200, 3
LONGEST_S = 25.0
PUBLISH_EVERY_S = 0.1
COMES_BACK_S = 0.3
GONE = (ConnectionError, asyncio.IncompleteReadError)


class Publisher:
    """Publishes 0, 1, 2 ... until the server has ended; `acknowledged` counts the positive replies."""

    def __init__(self, port, name):
        self.name = name
        self.acknowledged = 0
        self.unknown = 0  # sent, but without a reply
        self.wire = None
        self.port = port

    async def run(self):
        while True:
            try:
                self.wire = self.wire or await Wire.open(self.port)
            except ConnectionError:
                return
            try:
                answer = await self.wire.post(publish("/news", [self.name, self.acknowledged]))
            except GONE:
                self.unknown = 1
                await self.wire.close()
                return
            assert answer.messages[0]["successful"]
            self.acknowledged += 1
            if answer.headers.get("connection") == "close":
                self.wire = await self.wire.close()
            await asyncio.sleep(PUBLISH_EVERY_S)


class Hearer:
    """Polls until the server has ended; reconnects after COMES_BACK_S at the latest, even if the advice was longer."""

    def __init__(self, port):
        self.port = port
        self.heard = []
        self.statuses = []
        self.unanswered_holds = 0

    async def join(self):
        self.wire = await Wire.open(self.port)
        self.client_id = (await self.wire.post(HANDSHAKE)).messages[0]["clientId"]
        await self.wire.post(connect(self.client_id))
        await self.wire.post(subscribe(self.client_id, "/news"))

    async def run(self):
        is_leaving = False
        while True:
            try:
                self.wire = self.wire or await Wire.open(self.port)
                answer = await self.wire.post(connect(self.client_id))
            except GONE:
                self.unanswered_holds += not is_leaving
                if self.wire is not None:
                    await self.wire.close()
                return
            self.statuses.append(answer.status)
            self.heard += answer.data
            if answer.headers.get("connection") == "close":
                is_leaving = True
                self.wire = await self.wire.close()
                interval_s = answer.replies[0]["advice"]["interval"] / 1000
                await asyncio.sleep(min(interval_s, COMES_BACK_S))


@pytest.mark.parametrize("history", ["on", "off"])
async def test_f1_nothing_that_was_acknowledged_is_lost_unaccounted_for(history, tmp_path):
    """P7, F1: every hold gets 200; every event reaches each subscriber in order, or is counted in the last line.

    Every event that was acknowledged before the signal reaches all subscribers. Recorded events can be read after a
    restart, and are not counted.
    """
    async with launched("--history", history, cwd=tmp_path, HALLEY_DRAIN_CLIENTS_PER_S="100") as server:
        hearers = [Hearer(server.port) for _ in range(HEARERS)]
        publishers = [Publisher(server.port, name) for name in range(PUBLISHERS)]
        await asyncio.gather(*(hearer.join() for hearer in hearers))
        running = [asyncio.create_task(each.run()) for each in (*hearers, *publishers)]
        async with asyncio.timeout(LONGEST_S):
            while not all(hearer.heard for hearer in hearers):
                await asyncio.sleep(0.01)
        before = [publisher.acknowledged for publisher in publishers]
        server.send_signal(signal.SIGTERM)
        async with asyncio.timeout(LONGEST_S):
            await asyncio.gather(*running)
        assert await server.exit_code(LONGEST_S) == 0
    assert {status for hearer in hearers for status in hearer.statuses} == {200}
    assert sum(hearer.unanswered_holds for hearer in hearers) == 0
    delivered = 0
    for hearer in hearers:
        by_publisher = defaultdict(list)
        for name, number in hearer.heard:
            by_publisher[name].append(number)
        for publisher in publishers:
            numbers = by_publisher[publisher.name]
            assert numbers == list(range(len(numbers)))
            assert len(numbers) >= before[publisher.name]
            delivered += len(numbers)
    assert server.logged("drain_progress"), "two seconds without a word"
    stopped = json.loads(server.lines[-1])
    assert stopped["event"] == "stopped"
    acknowledged = sum(publisher.acknowledged for publisher in publishers)
    unknown = sum(publisher.unknown for publisher in publishers)
    assert acknowledged > sum(before), "nothing was published while it left"
    if history == "off":
        accounted = delivered + stopped["undelivered_events"]
        assert acknowledged * HEARERS <= accounted <= (acknowledged + unknown) * HEARERS
        return
    assert stopped["undelivered_events"] == 0
    async with launched(cwd=tmp_path) as server:
        _, printed, _ = await ended("history", "/news", "--server", f"http://127.0.0.1:{server.port}", cwd=tmp_path)
    recorded = [json.loads(line)["data"] for line in printed]
    for publisher in publishers:
        numbers = [number for name, number in recorded if name == publisher.name]
        assert numbers == list(range(len(numbers)))
        assert publisher.acknowledged <= len(numbers) <= publisher.acknowledged + publisher.unknown
