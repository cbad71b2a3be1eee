"""Hours in the life of a server: three protocols, clients that come and go, replay, the pipeline, and kills.

    python tests/process/soak.py --hours 12

A real `halley serve` gets events by Bayeux, by `POST /events` and by WAMP, each with a number and an idempotency key,
and values by NetworkTables. A Bayeux client and a reader of event streams follow all events through every kill -9 of
the server, another one reads the history from random places, and sessions of all kinds are opened and left behind.
`halley pipeline ingest` copies the log into a lake, and is killed too; at the end the lake is compared with the log.

Each minute has a line; the last lines say what memory and descriptors did between the kills. The exit code is 1 if an
acknowledged event was lost, came twice or in another order, if the server has logged a fault, or if the lake is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import asynccontextmanager, suppress
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "app")]

import httpx  # noqa: E402 - found by the path above, as the rest is
from support.process import environment, launched  # noqa: E402
from support.streams import EventSource  # noqa: E402
from websockets.exceptions import WebSocketException  # noqa: E402

from halley.client import Client, ClientError, IdempotentPublish  # noqa: E402
from halley.client.nt4 import INT, Nt4Client  # noqa: E402
from halley.client.wamp import WampClient  # noqa: E402
from halley.processes import free_port  # noqa: E402

GONE = (ClientError, OSError, httpx.HTTPError, WebSocketException, TimeoutError, EOFError)
AGAIN_S = 0.2
LINE_S = 60.0
SAMPLE_S = 5.0
_LAST_S = 120.0
_MOST_SHOWN = 10
WARM_UP_S = 120.0
"""After a start memory is not compared before this time: caches and the interpreter's arenas fill first."""

SETTINGS = {
    "HALLEY_HISTORY_MAX_BYTES": "400000000",
    "HALLEY_HISTORY_SEGMENT_BYTES": "16000000",
    "HALLEY_LIMITS_SESSIONS_PER_ADDRESS": "10000",
    "HALLEY_BAYEUX_MAX_INTERVAL_S": "20",
    "HALLEY_LOG_LEVEL": "warning",
}


class Ledger:
    """What was acknowledged of each publisher, and what each receiver has of it: numbers, which must have no hole.

    `wrong` are sentences about what was lost, came twice or in another order.
    """

    def __init__(self):
        self.acknowledged = Counter()
        self.received = defaultdict(Counter)
        self.counts = Counter()
        self.wrong = []

    def take(self, receiver, publisher, number):
        """Note that a receiver has an event; its first one of a publisher may have any number."""
        known = self.received[receiver]
        if publisher in known and number != known[publisher] + 1:
            self.wrong.append(f"{receiver} has {publisher} {number} after {known[publisher]}")
        known[publisher] = number
        self.counts[receiver] += 1

    def behind(self):
        """Return the number of acknowledged events that a receiver has not got yet."""
        return sum(
            max(0, self.acknowledged[publisher] - number)
            for known in self.received.values()
            for publisher, number in known.items()
        )


class Soak:
    """The server's address and the ledger, for all who talk to it."""

    def __init__(self, folder, rate, seed):
        self.folder = folder
        self.rate = rate
        self.chance = random.Random(seed)
        self.port, self.operations_port, self.nt4_port = free_port(), free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.ledger = Ledger()
        self.counts = Counter()
        self.lives = []
        self.faults = []

    # Publishers: each repeats what was not acknowledged, with the same key

    async def publish_by_bayeux(self):
        following = self._numbers("bayeux")
        async with Client(self.url) as client:
            while True:
                numbers = [following() for _ in range(5)]
                events = [IdempotentPublish("/soak/bayeux", ["bayeux", each], f"bayeux-{each}") for each in numbers]
                while True:
                    with suppress(*GONE):
                        if not any(await client.publish_keyed(events, is_strict=True)):
                            break
                    await asyncio.sleep(AGAIN_S)
                self.ledger.acknowledged["bayeux"] = numbers[-1]
                await asyncio.sleep(5 / self.rate)

    async def publish_by_post(self):
        following = self._numbers("post")
        async with httpx.AsyncClient(timeout=30) as http:
            while True:
                number = following()
                headers = {"Idempotency-Key": f"post-{number}"}
                while True:
                    with suppress(*GONE):
                        answer = await http.post(f"{self.url}/events/soak/post", json=["post", number], headers=headers)
                        if answer.status_code == 200:
                            break
                        if answer.status_code < 500:
                            self.ledger.wrong.append(f"POST /events was answered {answer.status_code}: {answer.text}")
                            return
                    await asyncio.sleep(AGAIN_S)
                self.ledger.acknowledged["post"] = number
                await asyncio.sleep(1 / self.rate)

    async def publish_by_wamp(self):
        following = self._numbers("wamp")
        number = following()
        while True:
            with suppress(*GONE):
                async with WampClient(self.url) as client:
                    while True:
                        await client.publish("soak.wamp", ["wamp", number], _idempotency_key=f"wamp-{number}")
                        self.ledger.acknowledged["wamp"] = number
                        number = following()
                        await asyncio.sleep(1 / self.rate)
            await asyncio.sleep(AGAIN_S)

    async def publish_by_nt4(self):
        """Publish values, and read them by another client: of values the newest counts."""
        value = 0
        while True:
            with suppress(*GONE):
                server = f"http://127.0.0.1:{self.nt4_port}"
                async with Nt4Client(server, "robot") as robot, Nt4Client(server, "dashboard") as dashboard:
                    await robot.publish("/robot/value", 1, "int")
                    await dashboard.subscribe("/robot/value", periodic=0.05)
                    while True:
                        value += 1
                        await robot.put(1, await robot.time(), value, INT)
                        async with asyncio.timeout(30):
                            while (await anext(dashboard)).value < value:
                                pass
                        self.counts["values"] += 1
                        await asyncio.sleep(1 / self.rate)
            await asyncio.sleep(AGAIN_S)

    def _numbers(self, publisher):
        def following():
            self.counts[publisher] += 1
            return self.counts[publisher]

        return following

    # Receivers: each goes on where it was

    async def receive_by_bayeux(self):
        async with Client(self.url) as client:
            await client.subscribe("/soak/**", after=0)
            async for event in client:
                self.ledger.take("bayeux", *self._parts(event.data))

    async def receive_by_stream(self):
        source = EventSource()
        async with httpx.AsyncClient(timeout=60) as http:
            while True:
                with suppress(*GONE):
                    headers = {"Last-Event-ID": source.last_id} if source.last_id else {}
                    target = f"{self.url}/events/soak/**" + ("" if source.last_id else "?after_position=0")
                    async with http.stream("GET", target, headers=headers) as answer:
                        fresh = EventSource(source.last_id)
                        async for piece in answer.aiter_bytes():
                            for block in fresh.feed(piece):
                                source.last_id = block.id
                                if block.type == "message":
                                    self.ledger.take("stream", *self._parts(block.data["data"]))
                                elif block.type == "gap":
                                    self.ledger.wrong.append(f"the stream has a gap: {block.data}")
                await asyncio.sleep(AGAIN_S)

    async def replay(self):
        """Read some of the history from a random place, every few seconds, by a new client each time."""
        while True:
            await asyncio.sleep(self.chance.uniform(2, 10))
            with suppress(*GONE):
                async with Client(self.url) as client, asyncio.timeout(30):
                    most = max(self.counts["position"] - 1, 0)
                    await client.subscribe("/soak/**", after=self.chance.randint(max(0, most - 20_000), most))
                    last = {}
                    for _ in range(200):
                        event = await anext(client)
                        publisher, number = self._parts(event.data)
                        if publisher in last and number != last[publisher] + 1:
                            self.ledger.wrong.append(f"a replay has {publisher} {number} after {last[publisher]}")
                        last[publisher] = number
                        self.counts["position"] = max(self.counts["position"], event.position or 0)
                    self.counts["replays"] += 1

    @staticmethod
    def _parts(data):
        """Return the publisher and number of an event, which WAMP's publisher sends as arguments."""
        publisher, number = data["args"] if isinstance(data, dict) else data
        return publisher, number

    # Those who come and go

    async def churn(self):
        while True:
            with suppress(*GONE):
                await self.chance.choice([self._leave_bayeux, self._leave_wamp, self._leave_nt4])()
                self.counts["visitors"] += 1
            await asyncio.sleep(self.chance.expovariate(10))

    async def _leave_bayeux(self):
        """Open a session with a subscription of its own, and never come back."""
        shake = {"channel": "/meta/handshake", "version": "1.0", "supportedConnectionTypes": ["long-polling"]}
        async with httpx.AsyncClient(timeout=10) as http:
            (reply,) = (await http.post(f"{self.url}/bayeux", json=[shake])).json()
            channel = f"/visitors/{self.chance.randrange(10**9)}"
            more = {"clientId": reply["clientId"], "subscription": channel}
            await http.post(f"{self.url}/bayeux", json=[{"channel": "/meta/subscribe", **more}])

    async def _leave_wamp(self):
        async with WampClient(self.url) as client:
            await client.subscribe(f"visitors.v{self.chance.randrange(10**9)}")

    async def _leave_nt4(self):
        async with Nt4Client(f"http://127.0.0.1:{self.nt4_port}", "visitor") as client:
            await client.publish(f"/visitors/{self.chance.randrange(10**9)}", 1, "int")
            await client.put(1, await client.time(), 1, INT)

    # The server, and the pipeline

    @asynccontextmanager
    async def serving(self):
        """Run the server for one life; note its faults."""
        ports = "--port", str(self.port), "--operations-port", str(self.operations_port)
        nt4 = "--nt4", "--nt4-port", str(self.nt4_port), "--data-dir", str(self.folder / "data")
        async with launched(*ports, *nt4, cwd=self.folder, **SETTINGS) as server:
            try:
                yield server
            finally:
                self.faults += [line for line in server.lines if '"event":"fault"' in line]

    async def live(self, life_s):
        """Run the server again and again, each life ended by kill -9."""
        while True:
            async with self.serving() as server:
                life = []
                self.lives.append(life)
                ends_s = time.monotonic() + life_s
                while time.monotonic() < ends_s:
                    await asyncio.sleep(min(SAMPLE_S, life_s))
                    life.append(usage_of(server.process.pid))
                server.send_signal(signal.SIGKILL)
                await server.exit_code()
                self.counts["kills"] += 1

    async def ingest(self, life_s):
        """Run the ingest again and again, each life ended by kill -9."""
        while True:
            process = await asyncio.create_subprocess_exec(
                *self.pipeline("ingest"), stdout=-3, stderr=-3, start_new_session=True, env=environment()
            )
            try:
                async with asyncio.timeout(life_s):
                    await process.wait()
                    self.counts["ends of the ingest"] += 1
                    await asyncio.sleep(5)
            except TimeoutError:
                self.counts["kills of the ingest"] += 1
            finally:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    def pipeline(self, *verb):
        """Return the command of a verb of the pipeline for this log."""
        data = ("--data-dir", str(self.folder / "data"))
        return [sys.executable, "-m", "halley", "pipeline", *verb, *data]

    def line(self, began_s):
        """Return the line of this minute."""
        usage = self.lives[-1][-1] if self.lives and self.lives[-1] else (0, 0, 0)
        return (
            f"{(time.monotonic() - began_s) / 60:6.0f} {sum(self.ledger.acknowledged.values()):12,} "
            f"{self.ledger.counts['bayeux']:10,} {self.ledger.counts['stream']:10,} {self.ledger.behind():7,} "
            f"{self.counts['values']:9,} {self.counts['replays']:8,} {self.counts['visitors']:9,} "
            f"{self.counts['kills']:6} {usage[0] / 2**20:8.1f} {usage[1]:6} {usage[2]:8} {len(self.ledger.wrong):6}"
        )


HEADER = (
    "minute acknowledged     bayeux     stream  behind    values  replays  visitors  kills"
    "      MiB  files  threads  wrong"
)


def usage_of(pid):
    """Return a process's resident bytes, open files and threads; zeros if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        resident = next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]
        threads = next(line for line in status.splitlines() if line.startswith("Threads")).split()[1]
        return int(resident) * 1_024, len([*Path(f"/proc/{pid}/fd").iterdir()]), int(threads)
    except (OSError, StopIteration):
        return 0, 0, 0


def growth(lives):
    """Yield a line for each life that was long enough: its memory and files after the warm-up, and at its end."""
    for number, life in enumerate(lives, 1):
        steady = [each for each in life[int(WARM_UP_S / SAMPLE_S) :] if each[0]]
        if len(steady) < 8:
            continue
        share = max(2, len(steady) // 8)
        first, last = steady[:share], steady[-share:]
        mib = [sum(each[0] for each in part) / len(part) / 2**20 for part in (first, last)]
        files = [max(each[1] for each in part) for part in (first, last)]
        yield (
            f"life {number}: {len(life) * SAMPLE_S / 60:.0f} min, memory {mib[0]:.1f} to {mib[1]:.1f} MiB, "
            f"files {files[0]} to {files[1]}"
        )


async def soak(run, hours, life_s, *, has_pipeline):
    """Let all of it go on for these hours, and then until the receivers have what was acknowledged."""
    began_s = time.monotonic()
    living = asyncio.create_task(run.live(life_s))
    running = [living]
    try:
        while not (run.lives and run.lives[-1]):  # until the first server serves
            await asyncio.wait(running, timeout=0.2)
            if living.done():
                living.result()
        publish = [run.publish_by_bayeux, run.publish_by_post, run.publish_by_wamp, run.publish_by_nt4]
        follow = [run.receive_by_bayeux, run.receive_by_stream, run.replay, run.churn, run.churn]
        publishers = [asyncio.create_task(each()) for each in publish]
        running += [*publishers, *(asyncio.create_task(each()) for each in follow)]
        if has_pipeline:
            running.append(asyncio.create_task(run.ingest(life_s * 0.7)))
        print(HEADER, flush=True)
        while (left_s := began_s + hours * 3_600 - time.monotonic()) > 0:
            done, _ = await asyncio.wait(running, timeout=min(LINE_S, left_s), return_when=asyncio.FIRST_COMPLETED)
            for task in done:  # none ends by itself: what went wrong in it is raised
                task.result()
                raise RuntimeError(f"{task} has ended")
            print(run.line(began_s), flush=True)
        for task in publishers:
            task.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_S):
                while run.ledger.behind():
                    await asyncio.sleep(0.5)
        print(run.line(began_s), flush=True)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def checked(run, *, has_pipeline):
    """Print what came of it, compare the lake with the log, and return sentences about what is wrong."""
    wrong = [*run.ledger.wrong[:_MOST_SHOWN], *run.faults[:_MOST_SHOWN]]
    print(*growth(run.lives), sep="\n")
    if run.ledger.behind():
        wrong.append(f"{run.ledger.behind()} acknowledged events did not come")
    for verb in (("ingest", "--once"), ("verify", "--all")) if has_pipeline else ():
        done = subprocess.run(run.pipeline(*verb), capture_output=True, text=True, env=environment(), check=False)
        print(f"halley pipeline {' '.join(verb)}: exit code {done.returncode}", done.stdout.strip(), sep="\n")
        if done.returncode:
            wrong.append(done.stderr.strip()[-1_000:])
    print(json.dumps({"counts": run.counts, "acknowledged": run.ledger.acknowledged, "received": run.ledger.counts}))
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--rate", type=float, default=50.0, help="events a second of each publisher [%(default)g]")
    parser.add_argument("--life-s", type=float, default=1_800.0, help="of the server between two kills [%(default)g]")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--no-pipeline", action="store_true", help="without Spark")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    has_pipeline = not arguments.no_pipeline
    with tempfile.TemporaryDirectory(prefix="halley-soak-") as folder:
        run = Soak(Path(folder), arguments.rate, arguments.seed)
        asyncio.run(soak(run, arguments.hours, arguments.life_s, has_pipeline=has_pipeline))
        wrong = checked(run, has_pipeline=has_pipeline)
    print("\n".join(wrong) if wrong else "nothing was lost, doubled or moved")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
