"""The turns of the event loop: what engines have to say is asked for, and written, once a turn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import ceil, inf
from time import monotonic

from halley import telemetry
from halley.broker.broker import Broker
from halley.protocols.contract import WireProtocol

FLUSH_S = 0.003
"""How long is flushed before sockets are read; longer if one outlet takes longer."""


class Pump:
    """Flushes the broker in the turn of the loop after `wake`, and has protocols do what is due.

    Until `begin` nothing need be scheduled, since there need not be a running loop.
    """

    def __init__(self, broker: Broker, protocols: Sequence[WireProtocol]) -> None:
        self._broker = broker
        self._protocols = protocols
        self._is_woken = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = inf
        self._began = 0.0  # the latest turn

    def begin(self) -> None:
        """Schedule the first turn on the running loop; what was scheduled on an earlier one may never come."""
        self._is_woken = False
        self.wake()

    def wake(self) -> None:
        """Schedule a turn; without a running loop, the first call after it has begun to run does that."""
        if not self._is_woken:
            try:
                asyncio.get_running_loop().call_soon(self.turn)
            except RuntimeError:
                return
            self._is_woken = True

    def turn(self) -> None:
        """Have each protocol do what is due, then flush the broker."""
        self._began = now = monotonic()
        self._is_woken = True  # by what the protocols' turns make ready, which is flushed in this turn
        due, has_turned = inf, False
        try:
            for protocol in self._protocols:
                at = protocol.due
                if at > now:
                    due = min(due, at)
                else:
                    has_turned = True
                    protocol.turn(now)
            if has_turned:  # which has changed what is due, perhaps for another protocol too
                due = min(protocol.due for protocol in self._protocols)
            self._is_woken = False
            self._broker.flush(now, self._is_over)
        except Exception as error:  # noqa: BLE001 - those behind the one at fault are flushed in the next turn
            telemetry.fault("flush", error)
            self._is_woken = False
            self.wake()
        self._schedule(due, now)

    def _is_over(self) -> bool:
        return monotonic() - self._began > FLUSH_S

    def stop(self) -> None:
        """Cancel what is scheduled for later."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_due = None, inf

    def _schedule(self, due: float, now: float) -> None:
        """Set the timer for what is due next."""
        if due <= now:
            self.wake()
        elif due != self._timer_due:
            self.stop()
            if due < inf:
                delay_ms = ceil((due - now) * 1000)  # uvloop would round milliseconds down, to now
                self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._on_timer)
                self._timer_due = due

    def _on_timer(self) -> None:
        self._timer, self._timer_due = None, inf
        self.wake()
