"""The processes that the bench starts: the cores they run on, their last words, and how they are ended."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import Process
from contextlib import suppress
from typing import BinaryIO

_STOP_S = 10.0
_LAST_BYTES = 4_096


def pin(process: Process, *cores: int) -> None:
    """Restrict a process to `cores`."""
    with suppress(ProcessLookupError):  # it has already ended, which the code that waits for it notices
        os.sched_setaffinity(process.pid, cores)


def last_line(said: BinaryIO) -> str:
    """Return the last line of a process' output, which usually explains why it ended; "" if there is no output."""
    said.seek(0)
    lines = said.read()[-_LAST_BYTES:].decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""


async def end(process: Process) -> None:
    """Kill a process that was started in a new session, with all its children.

    `Process.kill` is not used, since it polls first, which takes a dead child's exit status from the code that waits
    for it.
    """
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    ended = asyncio.ensure_future(process.wait())
    try:
        await asyncio.wait({ended}, timeout=_STOP_S)
    except asyncio.CancelledError:  # even then the dead child must be waited for
        await asyncio.wait({ended}, timeout=_STOP_S)
        raise
    if not ended.done():
        raise TimeoutError("a killed process does not end")
