"""Why a measurement could not be made or finished."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

Answer = TypeVar("Answer")


class BenchFailed(Exception):
    """There is no result; the text is a sentence for whoever asked for one."""


async def together(work: Iterable[Coroutine[Any, Any, Answer]]) -> list[Answer]:
    """Do all at once; the first `BenchFailed` cancels the others and is the one that is told."""
    try:
        async with asyncio.TaskGroup() as tasks:
            begun = [tasks.create_task(each) for each in work]
    except* BenchFailed as failures:
        raise failures.exceptions[0] from None
    return [each.result() for each in begun]
