"""The processes that the bench starts: how this interpreter runs our modules, on which core, and how they end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio.subprocess import Process

_STOP_S = 10.0


def module_command(module: str) -> list[str]:
    """How this interpreter runs a module of ours. `-P`: a folder `app` where the user happens to be is not ours."""
    return [sys.executable, "-P", "-m", module]


def module_environment() -> dict[str, str]:
    """The environment in which `module_command` finds the modules that we are."""
    ours = str(Path(__file__).parents[2])
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (ours, os.environ.get("PYTHONPATH"))))}


def pin(process: Process, core: int) -> None:
    """Let a process run on that core only."""
    with suppress(ProcessLookupError):  # it has ended already; whoever waits for it hears so
        os.sched_setaffinity(process.pid, {core})


async def end(process: Process) -> None:
    """Kill a process that was started as the first of a session, with all its children; nobody hears its farewell.

    Not by `Process.kill`: it polls first, and takes the end of a dead child from whoever waits for it.
    """
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    async with asyncio.timeout(_STOP_S):
        await process.wait()
