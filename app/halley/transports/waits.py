"""Awaiting with a deadline: what a program, the disk or the history must answer before a request can go on."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from functools import partial
from time import monotonic
from typing import Any

from halley import telemetry
from halley.protocols.bayeux.engine import BayeuxEngine
from halley.protocols.bayeux.outcomes import AwaitHook, Outcome, Verdict
from halley.protocols.contract import Resume
from halley.transports.exchange import Exchange, HeadOf


async def outcome_of(awaitable: Awaitable[Any], limit_s: float) -> tuple[Any, Exception | None]:
    """Await something for `limit_s` seconds at most; return its value or None, and its error or None.

    The error is `TimeoutError` at the deadline. Only being cancelled is raised.
    """
    try:
        async with asyncio.timeout(limit_s):
            return await awaitable, None
    except Exception as error:  # noqa: BLE001 - a program's hook may raise anything
        return None, error


async def verdict_on(wait: AwaitHook, limit_s: float) -> Verdict:
    """Await a program's hook: its value, or the error that it raised.

    `limit_s` is the deadline unless the wait has its own; a hook that misses it has raised `TimeoutError`.
    """
    return Verdict(*await outcome_of(wait.awaitable, limit_s if wait.limit_s is None else wait.limit_s))


async def after_hooks(engine: BayeuxEngine, outcome: Outcome) -> Outcome:
    """Await the hooks of the program that a request waits for, one after the other; return its outcome behind them."""
    while isinstance(outcome, AwaitHook):
        outcome = engine.resume(outcome, await verdict_on(outcome, engine.options.policy_s), monotonic())
    return outcome


def await_hooks(engine: BayeuxEngine, exchange: Exchange, wait: AwaitHook, head: HeadOf) -> None:
    """Run what awaits the hooks of a request, and writes its outcome to the exchange; only this needs a task."""

    async def work() -> None:
        exchange.write(await after_hooks(engine, wait))

    exchange.run(work(), head).add_done_callback(partial(close_unawaited, wait.awaitable))


def close_unawaited(awaitable: Awaitable[Any], _task: object = None) -> None:
    """Close a coroutine that nothing has awaited, of which Python would warn; another awaitable stays as it is.

    It is the callback of a task that was to await it: one that is cancelled before its first step never does.
    """
    if inspect.iscoroutine(awaitable):
        awaitable.close()


class Waits:
    """The awaitables that engines wait for, each awaited by a task with a deadline; `stop` cancels them all."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()  # the event loop keeps only weak references to tasks

    def wait(self, awaitable: Awaitable[Any], limit_s: float, resume: Resume) -> None:
        """Await something for `limit_s` seconds at most, then call `resume`; returns immediately."""
        task = asyncio.get_running_loop().create_task(self._wait(awaitable, limit_s, resume))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(partial(close_unawaited, awaitable))

    async def _wait(self, awaitable: Awaitable[Any], limit_s: float, resume: Resume) -> None:
        value, error = await outcome_of(awaitable, limit_s)
        try:
            resume(value, error, monotonic())
        except Exception as fault:  # noqa: BLE001 - a fault of ours, and no caller could handle it
            telemetry.fault("wait", fault)

    async def stop(self) -> None:
        """Cancel all that is awaited, and wait until that is done."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
