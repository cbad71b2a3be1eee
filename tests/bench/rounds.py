"""Rounds: the same measurement of several servers in turn, each of them freshly started; and where their logs are.

Also the command and the environment of the modules of this folder that run as separate processes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from halley.bench.load import BenchFailed
from halley.bench.measurement import Watch, while_alive
from halley.bench.orders import WorkerHandle, running_worker
from halley.bench.target import Target
from halley.processes import module_command, module_environment

Serving = Callable[[str, Path], AbstractAsyncContextManager[Target]]
Measure = Callable[[str, Target, Watch], Coroutine[Any, Any, None]]

_MEMORY = {"tmpfs", "ramfs"}


def noted(watch: Watch, name: str) -> Watch:
    """Return a function that passes phases on to `watch`, with `name` before their own names."""
    return lambda phase: watch(phase._replace(name=f"{name}: {phase.name}"))


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
                    work = measure(server, target, noted(watch, f"{number}/{rounds} {server}"))
                    await while_alive(target.died(), work)
            except BenchFailed as error:
                raise BenchFailed(f"{server}: {error}") from error


def side_command(name: str) -> list[str]:
    """Return the command that runs a module of this folder in a separate process, with `side_environment`."""
    return module_command(f"bench.{name}")


def side_environment() -> dict[str, str]:
    """Return this process's environment with the folders of Halley and of this package first in `PYTHONPATH`."""
    environment = module_environment()
    tests = str(Path(__file__).parents[1])
    return environment | {"PYTHONPATH": os.pathsep.join((tests, environment["PYTHONPATH"]))}


def load_worker(name: str, target: Target, **arguments: Any) -> AbstractAsyncContextManager[WorkerHandle]:
    """Start the worker that a module of this folder is, off the server's core, with the server's URL and arguments."""
    core = target.cores[0] if target.cores else None
    return running_worker(side_command(name), core, side_environment(), url=target.url, **arguments)


def disk() -> str | None:
    """Return a folder for temporary files that outlive a restart, so it is on a disk; None if none is known."""
    return "/var/tmp" if os.access("/var/tmp", os.W_OK) else None


def is_in_memory(folder: Path) -> bool:
    """Whether a folder is in memory instead of on a disk; False where that cannot be determined."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    above = {str(each) for each in (folder.resolve(), *folder.resolve().parents)}
    kinds = {place: kind for _, place, kind, *_ in map(str.split, mounts) if place in above}
    return kinds.get(max(kinds, key=len, default="")) in _MEMORY
