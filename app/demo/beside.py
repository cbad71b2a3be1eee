"""Running a coroutine while a block runs, and ending both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager


@asynccontextmanager
async def beside(work: Coroutine[None, None, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Run `work` in a task during the block and cancel it at the end of the block; its exception is raised then.

    The end of the task is waited for, unless the current task is in haste (`is_in_haste`).
    """
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        if not is_in_haste():
            await asyncio.wait([task])
        lost = task.exception() if task.done() and not task.cancelled() else None
    if lost is not None:
        raise lost


def is_in_haste() -> bool:
    """Whether the current task was cancelled twice, so that it waits for nothing any more."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 1
