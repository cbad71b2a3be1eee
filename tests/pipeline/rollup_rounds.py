"""Rollups under kills: the job is killed at random moments, the server once.

    PYTHONPATH=app:tests python tests/pipeline/rollup_rounds.py [SECONDS] [SEED]

It publishes for SECONDS, waits until all windows are final, and compares the rollups that a subscriber received with
the table, and the table with a recount of the log. The exit code is 0 if each window was published as final once, and
all are equal.
"""

import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

from support.log import OpenLog
from support.process import environment, launched, started
from support.rollups import recount, rolled_up

from halley.broker.events import to_text
from halley.client import ALL, Client, ClientError, IdempotentPublish

SETTINGS = {"HALLEY_PIPELINE_LATE_S": "2", "HALLEY_PIPELINE_MASTER": "local[2]", "HALLEY_PIPELINE_DRIVER_MEMORY": "1g"}
FINAL_S = 75
CHANNELS = 4


PATHS = os.pathsep.join(str(Path(path).absolute()) for path in sys.path if path)
"""Import paths for the processes, which have another working folder."""


class Round:
    """A server and a rollup in a temporary folder."""

    def __init__(self, folder, stack, rng):
        self.folder, self.data = folder, folder / "data"
        self.kills = self.published = 0
        self._stack, self._rng = stack, rng
        self._kill_at = None

    async def serve(self, port="0"):
        ports = ("--port", port, "--operations-port", "0")
        server = launched("--data-dir", str(self.data), *ports, cwd=self.folder, PYTHONPATH=PATHS)
        self.server = await self._stack.enter_async_context(server)
        self.url = f"http://127.0.0.1:{self.server.port}"

    async def roll_up(self):
        arguments = ("pipeline", "rollup", "--data-dir", str(self.data), "--server", self.url)
        process = started(*arguments, cwd=self.folder, env=environment(PYTHONPATH=PATHS, **SETTINGS))
        self.rollup = await self._stack.enter_async_context(process)
        self._kill_at = None

    async def publish(self, until):
        """Publish until the monotonic time `until`, checking on the rollup in between."""
        async with Client(self.url) as client:
            while time.monotonic() < until:
                number = self.published
                events = [
                    IdempotentPublish(f"/room/{each}", {"n": number}, f"{number}/{each}") for each in range(CHANNELS)
                ]
                assert await client.publish_keyed(events) == [None] * CHANNELS
                self.published += 1
                await asyncio.sleep(0.1)
                await self._look()

    async def _look(self):
        """Kill the rollup and start it again, at a random time after it has begun to work."""
        assert self.rollup.process.returncode is None, self.rollup.lines
        if self._kill_at is None and any("rollup at" in line for line in self.rollup.lines):
            self._kill_at = time.monotonic() + self._rng.uniform(2, 14)
        if self._kill_at is not None and time.monotonic() > self._kill_at:
            self.rollup.process.kill()
            await self.rollup.exit_code()
            self.kills += 1
            await self.roll_up()

    async def told(self):
        """Return how often each window was published as final, with its count, and the number of other rollups."""
        finals, partial = Counter(), 0
        async with Client(self.url) as client:
            await client.subscribe("/stats/**", after=ALL)
            await client.publish("/stats/end", None)
            async for event in client:
                if event.channel == "/stats/end":
                    return finals, partial
                data = event.data
                if data["final"]:
                    finals[data["window"], data["start"], data["channel"], data["events"]] += 1
                else:
                    partial += 1
        raise AssertionError("the last event was not received")


async def main(seconds=100.0, seed=1):
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        this = Round(folder, stack, random.Random(int(seed)))
        await this.serve()
        end = time.monotonic() + float(seconds)
        async with Client(this.url) as client:
            await client.publish("/room/0", {"n": -1})
        await this.roll_up()
        await this.publish(end - float(seconds) / 2)
        port = str(this.server.port)
        this.server.send_signal(signal.SIGKILL)
        await this.server.exit_code()
        await this.serve(port)
        await this.publish(end)
        await asyncio.sleep(FINAL_S)
        this.rollup.send_signal(signal.SIGTERM)
        code = await this.rollup.exit_code()
        finals, partial = await this.told()
        this.server.send_signal(signal.SIGTERM)
        await this.server.exit_code()
        with OpenLog(this.data) as log:
            wanted = recount(log.rows())
        table = rolled_up(this.data / "lake")
        expected = Counter((key[0], to_text(key[1]), f"/{key[2]}", each["events"]) for key, each in table.items())
        print(
            f"{this.published * CHANNELS} events, {this.kills} kills, {len(table)} windows, {partial} partial; {code=}"
        )
        print(f"table as recounted: {table == wanted}; told as in the table, once each: {finals == expected}")
        return 0 if code == 0 and table == wanted and finals == expected else 1


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main(*sys.argv[1:])))
    except ClientError as error:
        sys.exit(str(error))
