"""Simulate a day in one process, to see whether the age of a server and of its sessions costs time or memory.

    python tests/bench/day.py [--hours 24]

Server and clients are those of `instructions_load.py`: real connections, engines and the broker, without a kernel, and
with a clock that is moved from here. So a day of held polls, sweeps, and sessions that come and go takes seconds. Each
line of the table has what was done so far, the calls of functions that a delivery takes, with the next poll, and the
blocks of memory that the interpreter has allocated. The last two should not grow.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # in which this folder is the package `bench`

from bench import instructions_load as load  # first, since it replaces the clock
from bench.instructions_load import Session, Simulation

from halley import telemetry
from halley.server.sweeper import Sweep
from halley.settings import Log

RECEIVERS = 10
_STEP_S, _MINUTE_S, _HOUR_S = 2, 60, 3_600


class Day:
    """A server and sessions whose polls are held; one more each minute subscribes, publishes to them, and is lost."""

    def __init__(self) -> None:
        self.simulation = Simulation()
        self.receivers: list[Session] = []
        self.polls = self.events = 0
        self.calls = 0
        sweeper = self.simulation.halley.server.sweeper
        self._sweeps: list[Sweep] = [*(part.sweep for part in sweeper._parts), *sweeper._slow]

    async def begin(self) -> None:
        """Open the receivers."""
        self.receivers = [await self.simulation.session(0) for _ in range(RECEIVERS)]

    async def hour(self) -> None:
        """Let an hour pass, and count the calls of the functions that its last event takes."""
        for second in range(0, _HOUR_S, _STEP_S):
            load._NOW_S[0] += _STEP_S
            for sweep in self._sweeps:
                while sweep(load._NOW_S[0]) is True:
                    pass
            await self._turn()
            if second % _MINUTE_S == 0:
                await self._event()

    async def _event(self) -> None:
        publisher = Session(self.simulation._host)
        await publisher.open()
        await publisher.subscribe(1, patterns=2)
        before = self.polls
        with self._counted():
            publisher.send(publisher.publish(0))
            await self._turn()
        assert self.polls == before + RECEIVERS, "an event was not delivered"
        self.events += 1

    async def _turn(self) -> None:
        """Let the server work, and answer each response to a poll with the next poll."""
        await load._turns()
        for receiver in self.receivers:
            if received := receiver.take():
                assert b'"successful":true' in received, received
                self.polls += 1
                receiver.send(receiver.poll())

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self.calls = 0

        def note(_frame: object, event: str, _: object) -> None:
            self.calls += event in ("call", "c_call")

        sys.setprofile(note)
        try:
            yield
        finally:
            sys.setprofile(None)


async def simulate(hours: int) -> None:
    """Print a line for each hour."""
    day = Day()
    await day.begin()
    print("hours   polls  events  calls for a delivery  blocks of memory")
    for hour in range(1, hours + 1):
        await day.hour()
        gc.collect()
        print(f"{hour:5} {day.polls:7,} {day.events:7,} {day.calls / RECEIVERS:21.1f} {sys.getallocatedblocks():17,}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=int, default=24)
    telemetry.configure(Log(level="error"))
    asyncio.run(simulate(parser.parse_args().hours))
