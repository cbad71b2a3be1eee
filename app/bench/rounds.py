"""Rounds: the same measurement of several servers in turn, each of them freshly started."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from app.bench.load import BenchFailed
from app.bench.measurement import Phase, noted, while_alive
from app.bench.target import Target

Watch = Callable[[Phase], object]
Serving = Callable[[str, Path], AbstractAsyncContextManager[Target]]
Measure = Callable[[str, Target, Watch], Coroutine[Any, Any, None]]


async def in_turn(
    servers: Sequence[str], rounds: int, folder: Path, serving: Serving, measure: Measure, watch: Watch
) -> None:
    """Measure each server once per round; every other round is in reverse order, so that no server is always first.

    `serving` starts a server, given its name and an empty folder within `folder`. Raises `BenchFailed`, which names
    the server.
    """
    for number in range(1, rounds + 1):
        for server in servers if number % 2 else reversed(servers):
            own = folder / f"{number}-{server.replace(' ', '-')}"
            own.mkdir()
            try:
                async with serving(server, own) as target:
                    told = noted(watch, f"{number}/{rounds} {server}")
                    await while_alive(target, measure(server, target, told))
            except BenchFailed as error:
                raise BenchFailed(f"{server}: {error}") from error
