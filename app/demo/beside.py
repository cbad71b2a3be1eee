"""What is done beside something else, and how both end."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine


@asynccontextmanager
async def beside(work: Coroutine[None, None, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Within the block that is done too, and cancelled at its end. What it raises is raised there.

    Its end is waited for, unless whoever does the block is in haste.
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
    """Whether the current task was cancelled twice, so that it has to wait for nobody."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 1
