"""H1 over the wire: publishers, a server that is killed with kill -9 at any time, and the log that is left."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections import defaultdict

from support.messages import HANDSHAKE, connect, publish, subscribe
from support.process import launched
from support.wire import Wire, request

GONE = (ConnectionError, asyncio.IncompleteReadError)
SEGMENT_BYTES = (65_536, 262_144, 67_108_864)
KILLED_AT_ONCE = 0.1
"""The share of rounds in which the server is killed as soon as it serves."""

ALL_EVERY = 20
"""The whole log is read once in this number of rounds; in the others only the new part is."""


class Publisher:
    """Publishes to its own channel and to a shared one, a few events per request, until the connection breaks.

    `acknowledged` has what was acknowledged, as (position, channel, data), and `unanswered` the messages of the last
    request.
    """

    def __init__(self, port, round_, name, chance):
        self.port, self.name, self._round, self._chance = port, name, round_, chance
        self._number = 0
        self.acknowledged = []
        self.unanswered = []

    async def run(self):
        try:
            wire = await Wire.open(self.port)
        except ConnectionError:
            return
        try:
            while True:
                self.unanswered = [self._message() for _ in range(self._chance.choice((1, 1, 2, 5, 20)))]
                self.take(await wire.post(*self.unanswered), self.unanswered)
                self.unanswered = []
        except GONE:
            wire.writer.transport.abort()

    def _message(self):
        self._number += 1
        channel = self._chance.choice(("/shared", f"/own/{self.name}"))
        message = publish(channel, [self._round, self.name, self._number])
        if self._chance.random() < 0.5:
            message["ext"] = {"idempotency_key": f"{self._round}-{self.name}-{self._number}"}
        return message

    def take(self, response, messages):
        assert len(response.messages) == len(messages)
        for message, reply in zip(messages, response.messages, strict=True):
            assert reply["successful"], reply
            self.acknowledged.append((reply["ext"]["position"], message["channel"], message["data"]))


class Account:
    """The events that were acknowledged, with which the log is compared."""

    def __init__(self):
        self.told = {}  # position -> (channel, data)
        self.keyed = set()  # data of events that were published with a key, and must be stored once
        self.acknowledged = 0

    def take(self, publisher, round_):
        for position, channel, data in publisher.acknowledged:
            assert position not in self.told, f"round {round_}: position {position} was told twice"
            self.told[position] = channel, tuple(data)
            self.acknowledged += 1

    def check(self, rows, first, round_):
        """Check the log's rows from offset `first` on: complete, in order, with every acknowledged event once."""
        offsets = [row["offset"] for row in rows]
        missing = sorted(set(range(first, offsets[-1] + 1 if rows else first)) - set(offsets))
        assert not missing, f"round {round_}: offsets {missing[0]} to {missing[-1]} are missing"
        assert offsets == sorted(set(offsets)), f"round {round_}: offsets are out of order"
        ours = {row["offset"]: row for row in rows if row["topic"].split("/")[0] in ("shared", "own")}
        for position, (channel, data) in self.told.items():
            if position >= first:
                row = ours.get(position)
                assert row is not None, f"round {round_}: acknowledged {data} at {position} is lost"
                found = "/" + row["topic"], tuple(json.loads(row["payload"]))
                assert found == (channel, data), f"round {round_}: {found} stands at {position} instead of {data}"
        numbers = defaultdict(list)
        for row in ours.values():
            of_round, name, number = json.loads(row["payload"])
            numbers[of_round, name].append(number)
        for whose, each in numbers.items():
            assert len(each) == len(set(each)), f"round {round_}: doubled by {whose}"
            assert each == sorted(each), f"round {round_}: out of order by {whose}"


async def rows_from(wire, offset):
    """Return all rows of the log from `offset` on."""
    rows = []
    while True:
        response = await read_chunked(wire, request("GET", f"/log?from_offset={offset}", accept="application/x-ndjson"))
        more = [json.loads(line) for line in response.splitlines()]
        rows += more
        if len(more) < 100_000:
            return rows
        offset = rows[-1]["offset"] + 1


async def read_chunked(wire, data):
    """Send a request and return the body of its chunked response."""
    await wire.send(data)
    async with asyncio.timeout(120):
        head = await wire.reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head[:20], head
        assert b"chunked" in head.lower(), head
        body = []
        while size := int(await wire.reader.readuntil(b"\r\n"), 16):
            body.append(await wire.reader.readexactly(size))
            await wire.reader.readexactly(2)
        await wire.reader.readexactly(2)
    return b"".join(body)


async def replayed(port, patterns, after, count):
    """Return the events of these patterns after a position, `count` or more, as a client that polls receives them."""
    wire = await Wire.open(port)
    try:
        client_id = (await wire.post(HANDSHAKE | {"ext": {"replay": True}})).messages[0]["clientId"]
        wish = {"replay": dict.fromkeys(patterns, after)}
        answer = await wire.post(subscribe(client_id, *patterns, ext=wish))
        assert answer.messages[0]["successful"], answer.messages
        found = []
        empty = 0
        while empty < 2:
            answer = await wire.post(connect(client_id, advice={"timeout": 0}))
            events = [each for each in answer.messages if "data" in each]
            found += [(each["ext"]["replay"], each["channel"], tuple(each["data"])) for each in events]
            empty = 0 if events or (len(found) < count and empty < 50) else empty + 1
        return found
    finally:
        await wire.close()


async def kill(server):
    """Kill the server with kill -9, and wait until it is dead."""
    os.kill(server.process.pid, signal.SIGKILL)  # Process.kill polls, and would take the exit status from its waiter
    assert await server.exit_code(30) == -signal.SIGKILL


async def kill_rounds(folder, rounds, publishers, seed, done=lambda round_, note: None):
    """Kill a server on that folder `rounds` times; raises `AssertionError` if a promise was broken."""
    chance = random.Random(seed)
    account = Account()
    seen = 0  # the highest offset that has been read
    repeated = 0
    left = []  # publishers of the previous round, whose last requests were not answered
    for round_ in range(rounds + 1):
        settings = {
            "HALLEY_HISTORY_SEGMENT_BYTES": str(chance.choice(SEGMENT_BYTES)),
            "HALLEY_HISTORY_FREE_BYTES": "0",
            "HALLEY_LOG_LEVEL": "warning",
        }
        async with launched("--data-dir", str(folder), cwd=folder.parent, **settings) as server:
            if round_ < rounds and chance.random() < KILLED_AT_ONCE:  # while it seals the segments of the previous one
                await kill(server)
                continue
            wire = await server.wire()
            # Repeat the unanswered events that have keys: each must be stored once, even if it was stored before.
            for publisher in left:
                keyed = [message for message in publisher.unanswered if "ext" in message]
                if keyed:
                    publisher.acknowledged.clear()
                    publisher.take(await wire.post(*keyed), keyed)
                    for position, channel, data in publisher.acknowledged:
                        assert account.told.get(position, (channel, tuple(data))) == (channel, tuple(data))
                        assert position not in account.told, f"round {round_}: a key was answered with another's place"
                    account.take(publisher, round_)
                    repeated += len(keyed)
            is_all = round_ % ALL_EVERY == 0 or round_ == rounds
            first = 1 if is_all else seen + 1
            rows = await rows_from(wire, first)
            account.check(rows, first, round_)
            expected = [
                (row["offset"], "/" + row["topic"], tuple(json.loads(row["payload"])))
                for row in rows
                if row["topic"].split("/")[0] in ("shared", "own")
            ]
            after = -2 if is_all else seen
            found = await replayed(server.port, ["/shared", "/own/*"], after, len(expected))
            assert found == expected, f"round {round_}: a replay differs from the log"
            seen = rows[-1]["offset"] if rows else seen
            if round_ == rounds:
                break
            running = [Publisher(server.port, round_, name, chance) for name in range(publishers)]
            tasks = [asyncio.create_task(each.run()) for each in running]
            await asyncio.sleep(chance.uniform(0.02, 0.8))  # the kill comes at this time
            await kill(server)
            async with asyncio.timeout(30):
                await asyncio.gather(*tasks)
            for each in running:
                account.take(each, round_)
            left = running
        done(round_ + 1, f"{account.acknowledged:,} acknowledged, {repeated:,} repeated, head {seen:,}")
    return account.acknowledged, repeated, seen
