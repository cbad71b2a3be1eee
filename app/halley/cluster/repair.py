"""Repairing a keeper's folder while it serves: what is damaged or lost there comes from the other keepers.

That is as good as what the folder had: rows have checksums, and the numbers of their publications are those of this log
alone. So that damage is found where nobody reads, one segment after the other is compared with its digests all the
time. What no keeper has is recorded as lost, and asked for again when another keeper is there, and now and then.

Only keepers are asked that have erased all that this one has: no row comes back that was to be erased.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from functools import partial
from time import time
from typing import Any

from halley import telemetry
from halley.cluster.copying import copied
from halley.cluster.keeper_client import KeeperRequests, LivingKeeper
from halley.cluster.members import Members
from halley.cluster.requests import NobodyAnswers, RequestRefused
from halley.cluster.tasks import Tasks
from halley.history.damage import joined
from halley.history.history import History
from halley.history.rules import NEVER
from halley.history.stored import Stored

_AGAIN_S, _LONGEST_S = 1.0, 300.0
_SEGMENT_S = 30.0
"""Seconds between two segments that are compared: 64 MiB take a tenth of a second, and the disk 2 MiB a second."""

_ANSWER_S = 15.0
"""A little more than a keeper is waited for."""


class Repair:
    """What one keeper does; `events` counts those that it has got. Its methods are for the event loop.

    `figures` says what is to be repaired, for other nodes and the operator; it is None if nothing is.
    """

    def __init__(self, members: Members, history: History, erased_to: Callable[[], int]) -> None:
        """`erased_to` returns up to where in the stream this node has erased."""
        self.figures: dict[str, Any] | None = None
        self.events = 0
        self._nats, self._members = members.nats, members
        self._history = history
        self._erased_to = erased_to
        self._tasks = Tasks("repair")
        self._asking: Future[Any] = Future()  # what the writing thread waits for
        self._known: tuple[list[tuple[int, int]], set[str]] = [], set()  # what is broken, and who may have it
        self._checked_at, self._checked_to = -_SEGMENT_S, 0
        self._again_at = 0.0
        self._pause_s = _AGAIN_S

    def check(self, now: float) -> None:
        """Begin to repair what is broken by now; to be called once a second."""
        if self._tasks:
            return
        broken = self._broken()
        keepers = self._helpful()
        if (broken, {*keepers}) != self._known:
            self._known, self._again_at, self._pause_s = (broken, {*keepers}), now, _AGAIN_S
        if not broken:
            self.figures = None
        elif now >= self._again_at:
            self._again_at, self._pause_s = now + self._pause_s, min(2 * self._pause_s, _LONGEST_S)
            self._tasks.start(self._repair(broken, keepers))
            return
        if now - self._checked_at >= _SEGMENT_S:
            self._checked_at = now
            self._tasks.start(self._check_next())

    async def close(self) -> None:
        """Stop; what is broken still is repaired after the next start."""
        self._asking.cancel()
        await self._tasks.cancel()

    def _helpful(self) -> list[str]:
        """The keepers that can be asked: those that are alive, and have erased what this one has."""
        return [
            member.name
            for member in self._members.others()
            if LivingKeeper.of(member) is not None
            and isinstance(erased := member.heartbeat.get("erased"), int)
            and erased >= self._erased_to()
        ]

    async def _check_next(self) -> None:
        self._checked_to = await asyncio.to_thread(self._history.check_next_segment, self._checked_to + 1)

    async def _repair(self, broken: list[tuple[int, int]], keepers: list[str]) -> None:
        first, last = broken[0][0], broken[-1][1]
        before = self.figures or {"since": int(time()), "waits": None}
        figures = before | {"first": first, "last": last, "keeper": ", ".join(keepers)}
        self.figures, waits = figures, ""
        if not keepers:
            waits = "no other keeper is running that has erased as much"
        else:
            if before["waits"] != "":
                telemetry.log.warning("cluster_healing", first=first, last=last, keeper=figures["keeper"], waits="")
            supply = partial(self._rows, asyncio.get_running_loop(), keepers)
            try:
                while count := await asyncio.to_thread(self._history.fill, supply):
                    self.events += count
            except (OSError, sqlite3.Error, CancelledError) as error:
                waits = str(error) or "no answer"
        still = self._broken()
        if still and not waits:
            waits = "no keeper has them"
        if waits and before["waits"] != waits:
            telemetry.log.warning("cluster_healing", first=first, last=last, keeper="", waits=waits)
        elif not still:
            telemetry.log.info("cluster_healed", first=first, last=last)
        figures["waits"] = waits
        if not still or (keepers and not self._history.damaged):  # the holes that are left are lost, as far as is known
            self.figures = None

    def _broken(self) -> list[tuple[int, int]]:
        return joined([*self._history.damaged, *self._history.holes], 1, NEVER)

    def _rows(
        self, loop: asyncio.AbstractEventLoop, keepers: list[str], first: int, last: int
    ) -> Iterator[list[Stored]]:
        """The rows between two offsets of all these keepers (`rewriting.Supply`); for another thread."""
        pieces = copied([KeeperRequests(self._nats, name).rows for name in keepers], first, last)

        async def following() -> tuple[list[Stored], int] | None:
            return await anext(pieces, None)

        try:
            while True:
                self._asking = asking = asyncio.run_coroutine_threadsafe(following(), loop)
                if (piece := asking.result(_ANSWER_S)) is None:
                    return
                yield piece[0]
        except (NobodyAnswers, RequestRefused, TimeoutError) as error:
            raise OSError(f"a keeper does not answer: {str(error) or 'no answer'}") from error
