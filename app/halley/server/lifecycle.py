"""The life of a server: opened, started, drained and stopped."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from time import monotonic
from typing import Any

from halley import telemetry
from halley.broker.broker import Broker
from halley.protocols.contract import Part, WireProtocol
from halley.server.pump import Pump
from halley.server.sweeper import Sweeper
from halley.settings import Drain
from halley.transports.waits import Waits

_PROGRESS_S = 1.0
"""Interval of the `drain_progress` lines in the log."""

_FORCE_S = 0.1
"""How soon a second signal is noticed while draining waits."""


class Lifecycle:
    """Has the parts of a server begin, runs the sweeper and a program's tasks, and ends all without losing anything.

    `protocols` are those among the `parts`. `drain_s` returns over how many seconds the release of clients is spread.
    """

    def __init__(
        self,
        broker: Broker,
        parts: Sequence[Part],
        protocols: Sequence[WireProtocol],
        pump: Pump,
        sweeper: Sweeper,
        waits: Waits,
        options: Drain,
        drain_s: Callable[[], float],
    ) -> None:
        self.is_draining = False
        self._background: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._broker = broker
        self._parts = parts
        self._protocols = protocols
        self._pump = pump
        self._sweeper = sweeper
        self._waits = waits
        self._options = options
        self._drain_s = drain_s
        self._tasks: list[asyncio.Task[None]] = []  # the sweeper, then the program's own
        self._dropped_before = 0  # events, when the drain began
        self._progress_logged_at = 0.0

    @property
    def is_running(self) -> bool:
        """Whether the server has started and has not stopped."""
        return bool(self._tasks)

    @property
    def is_ready(self) -> bool:
        """Whether new clients are accepted: the server has started and does not drain."""
        return self.is_running and not self.is_draining

    def run_in_background(self, job: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine function while the server runs, from the next start on."""
        self._background.append(job)

    def open(self) -> None:
        """Open all parts that are not open yet. Raises `BadRecord`, `FolderLocked`, `FolderUnusable`."""
        for part in self._parts:
            part.open()

    def start(self) -> None:
        """Begin and open the parts, and begin sweeping, once; the first request does it where no lifespan has.

        After `stop` the server can be started again, on another event loop too: one lifespan may follow another.
        """
        if not self._tasks:
            self.is_draining = False
            for part in self._parts:
                part.begin(monotonic())
            self.open()
            self._sweeper.begin()
            jobs = [self._sweeper.run(), *(self._run(job) for job in self._background)]
            self._tasks = [asyncio.get_running_loop().create_task(job) for job in jobs]
            self._pump.begin()

    async def _run(self, job: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await job()
        except Exception as error:  # noqa: BLE001 - a program's task may raise anything
            telemetry.fault("background", error)

    async def drain(self, is_forced: Callable[[], bool] = lambda: False) -> None:
        """Release all clients: answer the held connects, spread over time and in random order.

        Events published before a hold is answered are sent with the reply. Clients that connect meanwhile are
        answered immediately with their waiting events, and with advice when to reconnect. All waiting ends as soon as
        `is_forced` returns True.
        """
        if self.is_draining:
            return
        self.is_draining = True
        self._dropped_before = self._broker.dropped
        self._progress_logged_at = monotonic()
        telemetry.log.info("draining", holds=self._holds())
        await self._pause(self._options.not_ready_s, is_forced)
        spread_s = self._drain_s()
        releases = [release for part in self._parts for release in part.drain(spread_s)]
        random.shuffle(releases)
        began = monotonic()
        for count, release in enumerate(releases):
            await self._pause(spread_s * count / len(releases) - (monotonic() - began), is_forced)
            release(monotonic())
            await asyncio.sleep(0)  # other tasks must run even where there is no time to spread over
        await self._pause(spread_s - (monotonic() - began), is_forced)  # for clients that were between two polls
        for part in self._parts:
            part.end(monotonic())
        telemetry.log.info("drained", seconds=round(monotonic() - began, 3))

    def _holds(self) -> int:
        return sum(each.holds for each in self._protocols)

    async def _pause(self, seconds: float, is_forced: Callable[[], bool]) -> None:
        until = monotonic() + seconds
        while (left_s := until - monotonic()) > 0 and not is_forced():
            await asyncio.sleep(min(_FORCE_S, left_s))  # a signal handler sets no events
            if monotonic() - self._progress_logged_at > _PROGRESS_S:
                self._progress_logged_at = monotonic()
                telemetry.log.info("drain_progress", holds=self._holds())

    async def stop(self, *, is_cut_short: bool = False) -> None:
        """End what runs on the loop, close the parts, and log how many events were lost.

        `is_cut_short` is logged too: a second signal ended the drain, so more may be lost than was counted.
        """
        tasks, self._tasks = self._tasks, []
        if not tasks:
            return
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._waits.stop()
        for part in reversed(self._parts):
            await part.close()
        self._pump.turn()  # for those who have waited for the last commits
        self._pump.stop()
        telemetry.report_suppressed()
        dropped = self._broker.dropped - self._dropped_before if self.is_draining else 0
        lost = sum(session.outbox.undelivered for session in self._broker.sessions.values()) + dropped
        telemetry.log.info("stopped", undelivered_events=lost, is_cut_short=is_cut_short)
