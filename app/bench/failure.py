"""The error of a measurement that could not be made or finished."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

Answer = TypeVar("Answer")


class BenchFailed(Exception):
    """There is no result; the text explains why, for the user."""


async def together(work: Iterable[Coroutine[Any, Any, Answer]]) -> list[Answer]:
    """Run all at the same time and return their results; the first `BenchFailed` cancels the others and is raised."""
    try:
        async with asyncio.TaskGroup() as tasks:
            begun = [tasks.create_task(each) for each in work]
    except* BenchFailed as failures:
        raise failures.exceptions[0] from None
    return [each.result() for each in begun]
