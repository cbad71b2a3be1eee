"""The tasks that a part of a node has under way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from halley import telemetry


class Tasks:
    """Tasks of which nobody awaits the result; the event loop itself keeps only weak references to them."""

    def __init__(self, what: str) -> None:
        """What goes wrong in them is logged as a fault in `what`."""
        self._what = what
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, job: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a task of the running event loop."""
        task = asyncio.get_running_loop().create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def repeat(self, check: Callable[[], Awaitable[None]], every_s: float) -> None:
        """Call `check` again and again, also after it has failed: what it looks after would stay as it is."""
        self.start(self._repeat(check, every_s))

    async def cancel(self) -> None:
        """Cancel all, and wait until they have ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _repeat(self, check: Callable[[], Awaitable[None]], every_s: float) -> None:
        while True:
            try:
                await check()
            except Exception as error:  # noqa: BLE001 - the next check must come
                telemetry.fault(self._what, error)
            await asyncio.sleep(every_s)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            telemetry.fault(self._what, error)
