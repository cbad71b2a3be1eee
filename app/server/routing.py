"""Adapters of the engines to the event loop, and of WAMP's router to the history."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

from app import telemetry
from app.broker.log import Page, Query
from app.server.history import Recorder


class Waits:
    """The awaitables that engines wait for, each awaited by a task with a deadline; `stop` cancels them all."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def wait(
        self, awaitable: Awaitable[Any], limit_s: float, resume: Callable[[Any, Exception | None, float], None]
    ) -> None:
        """Await something for `limit_s` seconds at most, then call `resume`; returns immediately.

        `resume` gets the value or None, the error (`TimeoutError` at the deadline) or None, and the monotonic time.
        """
        task = asyncio.get_running_loop().create_task(self._wait(awaitable, limit_s, resume))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _wait(
        self, awaitable: Awaitable[Any], limit_s: float, resume: Callable[[Any, Exception | None, float], None]
    ) -> None:
        value, error = None, None
        try:
            async with asyncio.timeout(limit_s):
                value = await awaitable
        except Exception as raised:  # noqa: BLE001 - `resume` gets it
            error = raised
        try:
            resume(value, error, monotonic())
        except Exception as fault:  # noqa: BLE001 - a fault of ours, and no caller could handle it
            telemetry.fault("wamp", fault)

    async def stop(self) -> None:
        """Cancel all that is awaited, and wait until that is done."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class SettledArchive:
    """The history, as WAMP reads it (`router.Archive`)."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    async def page(self, query_of: Callable[[int], Query | None]) -> Page | None:
        """Read a page after all earlier publications have been settled (`Archive.page`)."""
        await self._recorder.settle()
        query = query_of(self._recorder.head)
        return None if query is None else await self._recorder.read(query)
