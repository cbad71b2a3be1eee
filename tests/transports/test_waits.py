"""Awaiting with a deadline: each callback is called once, with the value, the error or the timeout."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from halley.transports import waits
from halley.transports.waits import Waits

DEADLINE_S = 5.0


async def test_waiting() -> None:
    """Each callback is called once: with the value, the error, or the timeout."""
    waiting, told = Waits(), []
    done = asyncio.Event()

    async def value() -> int:
        return 7

    async def error() -> int:
        raise ValueError("x")

    async def never() -> int:
        await asyncio.Event().wait()
        raise AssertionError

    def resume(value: Any, error: Exception | None, _now: float) -> None:
        told.append((value, type(error)))
        if len(told) == 3:
            done.set()

    for awaitable, limit_s in ((value(), 5), (error(), 5), (never(), 0.01)):
        waiting.wait(awaitable, limit_s, resume)
    await asyncio.wait_for(done.wait(), DEADLINE_S)
    assert told == [(7, type(None)), (None, ValueError), (None, TimeoutError)]
    await waiting.stop()
    assert all(task.done() for task in waiting._tasks)  # the last of them may be forgotten a turn later


async def test_a_fault_of_ours_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception of the callback is logged, since no caller could handle it."""
    faults: list[str] = []
    monkeypatch.setattr(waits.telemetry, "fault", lambda where, _error: faults.append(where))
    waiting = Waits()

    async def value() -> int:
        return 7

    def resume(*_: Any) -> None:
        raise RuntimeError("ours")

    waiting.wait(value(), 1, resume)
    for _ in range(5):
        await asyncio.sleep(0)
    assert faults == ["wait"]


async def test_stopping() -> None:
    """After stopping no callback is called, and no task is left."""
    waiting, told = Waits(), []

    async def never() -> None:
        await asyncio.Event().wait()

    waiting.wait(never(), 60, lambda *news: told.append(news))
    await asyncio.sleep(0)
    await asyncio.wait_for(waiting.stop(), DEADLINE_S)
    assert not told
    assert not waiting._tasks


async def test_what_nothing_has_awaited_is_closed() -> None:
    """A task that is cancelled before its first step leaves no coroutine of which Python would warn."""
    waiting, told = Waits(), []

    async def value() -> int:
        return 7

    coroutine = value()
    waiting.wait(coroutine, 1, lambda *outcome: told.append(outcome))
    await waiting.stop()
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED
    assert told == []
