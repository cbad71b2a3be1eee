"""H5 over the wire: publishers at full speed, while subscribers attach with replay at random positions."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

from support.messages import HANDSHAKE, connect, subscribe
from support.process import launched
from support.wire import Wire

PUBLISHING = Path(__file__).with_name("publishing.py")
BACK = 600
"""The maximum distance behind the head at which a subscriber attaches."""

PUBLISHING_S = 1.0
ERA_ROUNDS = 10
"""The number of rounds that a server serves, with settings that make every path through the seam likely."""

ROUND_S = 90.0
PATTERNS = ["/seam/*", "/seam/**", "/**", *(f"/seam/{number}" for number in range(10))]


def settings_of(chance):
    """Return random settings: segments that roll, a short tail, small pages and queues, or the usual sizes."""
    return {
        "HALLEY_HISTORY_SEGMENT_BYTES": str(chance.choice((65_536, 67_108_864))),
        "HALLEY_HISTORY_TAIL_BYTES": str(chance.choice((0, 4_096, 1_048_576))),
        "HALLEY_HISTORY_PAGE_EVENTS": str(chance.choice((7, 300))),
        "HALLEY_LIMITS_QUEUE_EVENTS": str(chance.choice((20, 1_000))),
        "HALLEY_HISTORY_FREE_BYTES": "0",
        "HALLEY_HISTORY_READ_S": "2",  # on a busy machine connects are answered without a page
        "HALLEY_BAYEUX_HOLD_S": "1",
        "HALLEY_LOG_LEVEL": "warning",
    }


class Published:
    """Channel and data of acknowledged events by position, as far back as a subscriber can begin."""

    def __init__(self):
        self.at = {}
        self.is_complete = False

    @property
    def head(self):
        return max(self.at, default=0)

    def begin(self):
        """Begin a round: of the earlier events only the newest, at which a subscriber can begin, are kept."""
        self.is_complete = False
        low = self.head - BACK
        self.at = {position: found for position, found in self.at.items() if position > low}

    def complete(self):
        self.at = dict(sorted(self.at.items()))
        self.is_complete = True

    def expected(self, after):
        """Return the events that a session must receive with these patterns, each from after its position."""
        return {
            position: (channel, data)
            for position, (channel, data) in self.at.items()
            if any(position > offset and covers(pattern, channel) for pattern, offset in after.items())
        }


def covers(pattern, channel):
    return pattern == channel or pattern in ("/seam/*", "/seam/**", "/**")


async def publishing(server, published, publishers, seed):
    """Run a process that publishes for a while, and take note of the events that were acknowledged."""
    command = [sys.executable, str(PUBLISHING), str(server.port), str(publishers), str(PUBLISHING_S), str(seed)]
    paths = os.pathsep.join(path for path in sys.path if path)
    process = await asyncio.create_subprocess_exec(
        *command, stdout=PIPE, env=os.environ | {"PYTHONPATH": paths}, limit=1_048_576
    )
    async for line in process.stdout:
        for position, channel, data in json.loads(line):
            assert position not in published.at, f"position {position} was told twice"
            published.at[position] = channel, tuple(data)
    assert await process.wait() == 0, "a publisher has failed"


class Subscriber:
    """A subscriber that begins at a random position and behaves as clients do.

    It uses acknowledgements or not, loses its connection, and goes on in the same session or in another one.
    """

    def __init__(self, port, published, first, chance):
        self.port, self._published, self._chance = port, published, chance
        count = chance.choice((1, 1, 1, 2, 4))
        head = published.head
        self.after = {
            pattern: chance.choice((head, chance.randint(first, head))) for pattern in chance.sample(PATTERNS, count)
        }
        self.reached = dict(self.after)
        self.heard = {}
        self._expected = None
        self.has_ack = chance.random() < 0.3
        self._restlessness = chance.choice((0.0, 0.0, 0.05, 0.2))
        self.story = []

    async def run(self):
        """Poll until all published events have arrived, and one more poll has brought nothing."""
        wire, rest = None, 2
        try:
            while rest:
                if wire is None:
                    wire = await self._attach()
                if self._chance.random() < self._restlessness:
                    wire = await self._leave(wire)
                    continue
                is_done = self._published.is_complete and len(self.heard) >= len(self.expected)
                advice = {"advice": {"timeout": 0}} if is_done else {}
                self._take(await wire.post(self._connect(**advice)))
                rest -= is_done
        except TimeoutError:
            raise AssertionError(f"no answer: {self.has_ack=} {self.story[-6:]}") from None
        finally:
            if wire is not None:
                wire.writer.transport.abort()

    @property
    def expected(self):
        """The events that it must receive, once all have been published."""
        if self._expected is None:
            self._expected = self._published.expected(self.after)
        return self._expected

    async def _attach(self):
        """Begin a new session, at the position that the previous one had reached."""
        self._ack = None
        wire = await Wire.open(self.port)
        ext = {"replay": True} | ({"ack": True} if self.has_ack else {})
        self._client_id = (await wire.post(HANDSHAKE | {"ext": ext})).messages[0]["clientId"]
        answer = await wire.post(subscribe(self._client_id, *self.reached, ext={"replay": self.reached}))
        assert answer.messages[0]["successful"], answer.messages
        self.story.append(("attached", dict(self.reached)))
        return wire

    def _connect(self, **fields):
        if self.has_ack:
            fields["ext"] = {"ack": 0 if self._ack is None else self._ack}
        return connect(self._client_id, **fields)

    def _take(self, answer):
        reply = next(each for each in answer.messages if each["channel"] == "/meta/connect")
        assert reply["successful"], reply
        assert "replay_gap" not in reply["ext"], reply
        for event in answer.messages:
            if "data" not in event or not event["channel"].startswith("/seam/"):
                continue
            position = event["ext"]["replay"]
            assert position not in self.heard, f"{event} came twice: {self.story[-6:]}"
            assert not self.heard or position > max(self.heard), f"{event} came late: {self.story[-6:]}"
            self.heard[position] = event["channel"], tuple(event["data"])
        self._ack = reply["ext"].get("ack")
        self.reached.update(reply["ext"]["replay"])
        self.story.append((len(answer.messages) - 1, self._ack, dict(self.reached)))

    async def _leave(self, wire):
        """Lose the connection during a poll; continue in the session if it acknowledges, else in another."""
        await wire.send(b"")
        kind = self._chance.choice(("cut", "cut", "left"))
        self.story.append(kind)
        if kind == "cut":
            body_sent = asyncio.create_task(wire.post(self._connect()))
            await asyncio.sleep(self._chance.uniform(0, 0.02))  # the connection is cut at this time
            body_sent.cancel()
            wire.reset()
            await asyncio.gather(body_sent, return_exceptions=True)
            if self.has_ack:
                return await Wire.open(self.port)
        else:
            await wire.close()
        return None


async def one_round(server, published, subscribers, publishers, chance):
    """Let all subscribers attach and read to the end of a round; returns the number of events they received."""
    published.begin()
    before = published.head
    running = asyncio.create_task(publishing(server, published, publishers, chance.random()))
    attached, tasks = [], []
    try:
        while published.head == before:
            await asyncio.sleep(0.001)
            assert not running.done(), "no publisher"
        for number in range(subscribers):
            subscriber = Subscriber(server.port, published, min(published.at) - 1, chance)
            attached.append(subscriber)
            tasks.append(asyncio.create_task(subscriber.run()))
            if number % 10 == 9:
                await asyncio.sleep(PUBLISHING_S / subscribers * 5)
        await running
        published.complete()
        async with asyncio.timeout(ROUND_S):
            await asyncio.gather(*tasks)
    except TimeoutError:
        short = next(each for each, task in zip(attached, tasks, strict=True) if not task.done())
        missing = sorted(set(short.expected) - set(short.heard))
        raise AssertionError(f"{len(missing)} never came, the first at {missing[:3]}: {short.story[-6:]}") from None
    finally:
        for task in (*tasks, running):
            task.cancel()
        await asyncio.gather(*tasks, running, return_exceptions=True)
    for subscriber in attached:
        assert subscriber.heard == subscriber.expected, differs(subscriber, subscriber.expected)
    return sum(len(subscriber.heard) for subscriber in attached)


def differs(subscriber, expected):
    missing = sorted(set(expected) - set(subscriber.heard))
    alien = sorted(set(subscriber.heard) - set(expected))
    return f"missing {missing[:5]}, not asked for {alien[:5]}: after {subscriber.after}; {subscriber.story[-8:]}"


async def seam_rounds(
    folder, rounds, subscribers, publishers, seed, done=lambda round_, note: None, era_rounds=ERA_ROUNDS
):
    """Run that number of rounds; raises `AssertionError` if a promise was broken."""
    chance = random.Random(seed)
    published = Published()
    events = attached = 0
    for first in range(0, rounds, era_rounds):
        async with launched("--data-dir", str(folder), cwd=folder.parent, **settings_of(chance)) as server:
            for round_ in range(first, min(first + era_rounds, rounds)):
                events += await one_round(server, published, subscribers, publishers, chance)
                attached += subscribers
                done(round_ + 1, f"{attached:,} attached, {events:,} events received")
    return attached, events
