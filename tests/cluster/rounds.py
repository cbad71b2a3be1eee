"""Kill rounds: nodes and NATS servers are killed at random moments while clients publish; nothing acknowledged is lost.

    python tests/cluster/rounds.py [ROUNDS] [--servers 1|3] [--nodes N] [--fronts N] [--seed SEED]

In each round publishers send events with idempotency keys to all nodes, and send those without an answer again, to any
node. Meanwhile something is killed, or stopped for a while, and started again. At the end of the round all nodes must
have equal rows, with every acknowledged event at the position that was acknowledged, and each event once; and what a
live subscriber of each node received must be those rows, in order, each once and without a hole, whatever happened to
its node. Fronts are nodes besides, that have no rows. At the end of all rounds the rows are compared once more, with
all that was ever acknowledged. Exit code 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.nats import nats_servers, node
from support.wire import Wire

from halley.client import Client, ClientError, HistoryClient, Timeouts
from halley.processes import free_port

STRIKE_S, AGAIN_S, SETTLE_S = 0.5, 0.1, 60.0
PUBLISHERS, EVENTS = 4, 30
"""How many publish, and at least how many events each in a round; they go on until what was struck is back."""


class Node:
    """A node that can be killed and started again, and serves at `url`."""

    def __init__(self, folder, servers, name, *, keeps=True):
        self.folder, self.servers, self.name, self.keeps = folder, servers, name, keeps
        self.stack, self.server, self.port = AsyncExitStack(), None, free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    async def start(self, **settings):
        self.server = await self.stack.enter_async_context(self.run(settings))

    def run(self, settings):
        return node(self.folder, self.servers, self.name, keeps=self.keeps, port=self.port, **settings)

    async def kill(self):
        await self.stack.aclose()

    async def stop(self):
        """End it by SIGTERM; return the exit code."""
        self.server.send_signal(signal.SIGTERM)
        code = await self.server.exit_code()
        await self.kill()
        return code


class Round:
    """One round: what was acknowledged, by data with its position, and what was struck.

    Each publisher makes a pause of up to `pause_s` between events, of which `padding` is the end that is not looked at.
    """

    pause_s, padding = 0.03, ""

    def __init__(self, number, nodes, servers, chance):
        self.number, self.nodes, self.servers, self.chance = number, nodes, servers, chance
        self.acknowledged = {}
        self.sent = 0
        self.received, self.refused = Counter(), Counter()
        self.longest_s = 0.0
        self.listening = set()  # nodes whose subscribers hear all that is published
        self.is_over = False  # what was struck is back

    async def run(self, settings):
        ears = [asyncio.create_task(self.listen(each)) for each in self.nodes]
        async with asyncio.timeout(SETTLE_S):
            while len(self.listening) < len(self.nodes):
                await asyncio.sleep(AGAIN_S / 10)
        await asyncio.gather(*(self.publish(number) for number in range(PUBLISHERS)), self.strike_once(settings))
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                while not self.is_all_heard():
                    await asyncio.sleep(AGAIN_S)
        for ear in ears:
            ear.cancel()
        await asyncio.gather(*ears, return_exceptions=True)

    def is_all_heard(self):
        """Whether the subscriber of each node has the last event."""
        last = max(self.acknowledged.values())
        return {name for name, _, position in self.received if position == last} == {each.name for each in self.nodes}

    async def strike_once(self, settings):
        await self.strike(settings)
        self.is_over = True

    async def publish(self, number):
        """Publish with keys, one after another, until each is acknowledged by some node."""
        for count in itertools.count():
            if self.is_over and count >= EVENTS:
                return
            data = f"{self.number}.{number}.{count}"
            began = time.monotonic()
            self.sent += 1
            ext = {"idempotency_key": data}
            message = {"channel": f"/rounds/{number}", "data": data + self.padding, "ext": ext}
            while data not in self.acknowledged:
                with suppress(OSError, EOFError, ValueError, TimeoutError, AssertionError, IndexError):
                    async with asyncio.timeout(15):
                        reply = await sent(self.chance.choice(self.nodes), message)
                        if reply["successful"]:
                            self.acknowledged[data] = reply["ext"]["position"]
                            break
                        self.refused[reply["error"]] += 1
                await asyncio.sleep(AGAIN_S)
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            await asyncio.sleep(self.chance.random() * self.pause_s)

    async def listen(self, listened):
        """Note every delivery of a live subscriber, with its position; a killed node's clients come back by replay."""
        last = None
        while True:
            with suppress(ClientError):
                async with Client(listened.url, timeouts=Timeouts(backoff_s=AGAIN_S)) as client:
                    await client.subscribe("/rounds/**", after=last)
                    self.listening.add(listened.name)
                    async for event in client:
                        last = event.position
                        self.received[listened.name, plain(event.data), event.position] += 1
            await asyncio.sleep(AGAIN_S)

    async def strike(self, settings):
        await asyncio.sleep(STRIKE_S * (0.5 + self.chance.random()))
        self.what = self.chance.choice(["node", "node stopped", "nats", "nats stopped", "all nats"])
        if self.what == "node":
            struck = self.chance.choice(self.nodes)
            await struck.kill()
            await struck.start(**settings)
        elif self.what == "node stopped":
            struck = self.chance.choice(self.nodes).server
            struck.send_signal(signal.SIGSTOP)
            await asyncio.sleep(3 * self.chance.random())
            struck.send_signal(signal.SIGCONT)
        elif self.what == "nats stopped":
            struck = self.chance.choice(list(self.servers.running))
            self.servers.signal(struck, signal.SIGSTOP)
            await asyncio.sleep(4 * self.chance.random())
            self.servers.signal(struck, signal.SIGCONT)
        else:
            running = list(self.servers.running)
            struck = running if self.what == "all nats" else [self.chance.choice(running)]
            for number in struck:
                self.servers.kill(number)
            await asyncio.sleep(2 * self.chance.random())
            for number in struck:
                self.servers.start(number)

    async def check(self, first):
        """Return what is wrong with the rows from an offset on, as lines."""
        keepers = [each for each in self.nodes if each.keeps]
        stored = [await rows_of(each, first, max(self.acknowledged.values())) for each in keepers]
        wrong = [f"{each.name} has other rows" for each, rows in zip(keepers, stored, strict=True) if rows != stored[0]]
        ours = {row["offset"]: plain(json.loads(row["payload"])) for row in stored[0] if _is_ours(row)}
        if [row["offset"] for row in stored[0]] != [*range(first, first + len(stored[0]))]:
            wrong.append("positions have holes")
        times = Counter(ours.values())
        wrong += [f"doubled: {data}" for data, count in times.items() if count > 1]
        wrong += [f"lost: {data}" for data, at in self.acknowledged.items() if ours.get(at) != data]
        wrong += [f"heard elsewhere: {key}" for key in self.received if ours.get(key[2], key[1]) != key[1]]
        for each in self.nodes:
            heard = [key[2] for key, count in self.received.items() for _ in range(count) if key[0] == each.name]
            if self.received and heard != [*ours]:
                wrong.append(f"{each.name} delivered {len(heard)} events instead of {len(ours)}")
        return wrong


def plain(data):
    """What an event's data is without its padding."""
    return data.partition(" ")[0]


def _is_ours(row):
    return row["topic"].startswith("rounds/")


async def sent(node, message):
    """Send a message on a connection of its own; return the reply."""
    wire = await Wire.open(node.port)
    try:
        return (await wire.post(message)).messages[0]
    finally:
        await wire.close()


async def rows_of(node, first, last):
    """Return the rows of a node between two offsets, as soon as it has them."""
    async with asyncio.timeout(SETTLE_S):
        while True:
            with suppress(ClientError):
                async with HistoryClient(node.url) as client:
                    if (await client.log_head())["next"] > last:
                        return [json.loads(line) async for _, lines in client.rows(first, last) for line in lines]
            await asyncio.sleep(AGAIN_S)


async def rounds(folder, count, servers_count, nodes_count, fronts_count, seed):
    """Play the rounds; return the number of wrong things."""
    chance = random.Random(seed)
    totals, wrong_count, longest_s = Counter(), 0, 0.0
    settings = {
        "HALLEY_CLUSTER_SETTLED_BY": "stream" if servers_count == 3 else "keeper",
        "HALLEY_LOG_LEVEL": "warning",
        "HALLEY_CLUSTER_STREAM_KEEP_S": "5",  # so that the stream is trimmed meanwhile
    }
    async with nats_servers(folder, servers_count) as servers, AsyncExitStack() as stack:
        nodes = [Node(folder, servers, f"n{number}") for number in range(nodes_count)]
        nodes += [Node(folder, servers, f"f{number}", keeps=False) for number in range(fronts_count)]
        for each in nodes:
            await each.start(**settings)
            stack.push_async_callback(each.kill)
        first, whole = 1, Round("all", nodes, servers, chance)
        for number in range(count):
            began = time.monotonic()
            played = Round(number, nodes, servers, chance)
            await played.run(settings)
            await servers.healthy()
            wrong = await played.check(first)
            first = max(played.acknowledged.values()) + 1
            whole.acknowledged |= played.acknowledged
            totals.update(sent=played.sent, acknowledged=len(played.acknowledged), received=len(played.received))
            totals[played.what] += 1
            wrong_count += len(wrong)
            longest_s = max(longest_s, played.longest_s)
            print(
                f"round {number}: {played.what}; {time.monotonic() - began:.1f} s, "
                f"longest answer {played.longest_s:.1f} s; wrong: {len(wrong)}",
                flush=True,
            )
            for line in wrong[:10]:
                print(f"  {line}", flush=True)
        wrong = await whole.check(1)
        wrong_count += len(wrong)
        for line in wrong[:10]:
            print(f"  at the end: {line}", flush=True)
    print(dict(totals), f"longest answer {longest_s:.1f} s; wrong: {wrong_count}; seed {seed}")
    return wrong_count


def main():
    """Read the arguments, and play."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rounds", type=int, nargs="?", default=5)
    parser.add_argument("--servers", type=int, choices=(1, 3), default=1)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--fronts", type=int, default=0)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wrong = asyncio.run(rounds(Path(folder), given.rounds, given.servers, given.nodes, given.fronts, given.seed))
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
