"""The processes that the bench starts: on which core they run, and how they end."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from typing import BinaryIO

_STOP_S = 10.0
_LAST_BYTES = 4_096


def pin(process: Process, *cores: int) -> None:
    """Let a process run on those cores only."""
    with suppress(ProcessLookupError):  # it has ended already; whoever waits for it hears so
        os.sched_setaffinity(process.pid, cores)


def last_line(said: BinaryIO) -> str:
    """What a process has written last to that file, which is why it has ended; empty if it said nothing."""
    said.seek(0)
    lines = said.read()[-_LAST_BYTES:].decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""


async def end(process: Process) -> None:
    """Kill a process that was started as the first of a session, with all its children; nobody hears its farewell.

    Not by `Process.kill`: it polls first, and takes the end of a dead child from whoever waits for it.
    """
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    ended = asyncio.ensure_future(process.wait())
    try:
        await asyncio.wait({ended}, timeout=_STOP_S)
    except asyncio.CancelledError:  # whoever is in a hurry must not leave a dead child behind
        await asyncio.wait({ended}, timeout=_STOP_S)
        raise
    if not ended.done():
        raise TimeoutError("a killed process does not end")
