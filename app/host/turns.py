"""The time in which received bytes are processed, shared by all connections of a server.

A few connections that send tiny frames, TLS records or requests as fast as they can would otherwise keep everybody
else waiting. In one turn of the event loop the bytes of all connections together are processed for `TURN_S` seconds.
The rest is processed in later turns, a slice of each connection at a time; its reading is paused until then.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic
from typing import Protocol

TURN_S = 0.005
"""How long received bytes are processed before all other events of the loop have their turn."""

SLICE_S = 0.001
"""How long the bytes of one connection are processed before those of others are; longer if one message takes longer."""


class Worker(Protocol):
    """A connection with received bytes."""

    def work(self, now: float) -> bool:
        """Process received bytes for `SLICE_S` seconds at most, from `now` on; whether some are left.

        While some are, it is called again in later turns; when none are left, it resumes reading.
        """


class Turns:
    """The turns of one server's connections."""

    def __init__(self) -> None:
        self._waiting: deque[Worker] = deque()
        self._spent_s = 0.0  # since others had their turn
        self._is_over = False  # nothing more is processed in this turn of the loop

    def take(self, worker: Worker) -> bool:
        """Let a connection process received bytes, now or in later turns; False if it must pause reading until then."""
        if self._is_over:
            self._waiting.append(worker)
            return False
        if is_left := self._works(worker):
            self._waiting.append(worker)
        if is_left or self._spent_s >= TURN_S:
            self._end()
        return not is_left

    def _works(self, worker: Worker) -> bool:
        began, spent_s = monotonic(), self._spent_s
        is_left = worker.work(began)
        self._spent_s = spent_s + monotonic() - began  # includes what a worker above this one has spent
        return is_left

    def _end(self) -> None:
        """Leave what waits for the next turn of the loop."""
        if not self._is_over:
            self._is_over = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._spent_s, self._is_over = 0.0, False
        try:
            while self._waiting and self._spent_s < TURN_S:
                worker = self._waiting.popleft()
                if self._works(worker):
                    self._waiting.append(worker)
        finally:
            if self._waiting or self._spent_s >= TURN_S:
                self._end()
