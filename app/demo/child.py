"""A `halley` command in its own process: its lines on standard error, and its end."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from app.demo.beside import is_in_haste
from app.interpreter import module_command, module_environment

_LINES_KEPT = 50
_LINE_BYTES = 1_048_576
_KILLED_S = 5.0
_LOOK_S = 0.05
_OURS = "halley: "
_KEPT = "HALLEY_PIPELINE_NICENESS"
"""The one setting of the user's that the demo has: how far Spark gives way to other programs."""


class Child:
    """A process, made with `running`. `lines` are its last lines on standard error."""

    def __init__(self, process: Process) -> None:
        self.lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._process = process
        self._news = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    async def says(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Wait for a line that matches; None if the process ends before. A line no longer in `lines` is missed."""
        while True:
            for line in self.lines:
                if match := pattern.fullmatch(line):
                    return match
            if self._reading.done():
                return None
            self._news.clear()
            await self._news.wait()

    async def ended(self) -> int:
        """Wait for the end of the process; return its exit code, negative if a signal has ended it."""
        await asyncio.wait([self._reading])  # so that `lines` has the last ones
        return await self._process.wait()

    def words(self) -> list[str]:
        """Return its last messages for people, without its log."""
        return [line.removeprefix(_OURS) for line in self.lines if line.startswith(_OURS)]

    async def _read(self) -> None:
        assert self._process.stderr is not None
        try:
            while True:
                try:
                    line = await self._process.stderr.readline()
                except ValueError:  # an overlong line, which is not a message for people
                    continue
                if not line:
                    return
                self.lines.append(line.decode(errors="replace").rstrip())
                self._news.set()
        finally:
            self._news.set()

    async def end(self, within_s: float) -> None:
        """Send SIGTERM and wait `within_s` seconds for the end; then kill the process and all its children.

        Kills immediately if it is cancelled while it waits, or if the current task was cancelled twice before.
        """
        try:
            self._signal(signal.SIGTERM)
            await asyncio.wait([asyncio.ensure_future(self._process.wait())], timeout=0 if is_in_haste() else within_s)
        finally:
            await self._kill()

    def _signal(self, number: signal.Signals) -> None:
        # Not with `Process.send_signal`: it polls first, which takes the exit status from the task that waits for it.
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    async def _kill(self) -> None:
        """Kill the process' group, with children that it left: no other group has its number while it has members."""
        deadline_s = asyncio.get_running_loop().time() + _KILLED_S
        with suppress(ProcessLookupError, PermissionError):  # raised by macOS if only dead processes are left
            while asyncio.get_running_loop().time() < deadline_s:
                os.killpg(self._process.pid, signal.SIGKILL)
                await asyncio.sleep(_LOOK_S)
        self._reading.cancel()
        await asyncio.wait([self._reading, asyncio.ensure_future(self._process.wait())], timeout=_KILLED_S)


@asynccontextmanager
async def running(*arguments: str, leave_s: float) -> AsyncIterator[Child]:
    """Run `halley` with these arguments; it has `leave_s` seconds to end with the block.

    Of the user's settings it has the niceness of the pipeline only.
    It runs in its own session, so that Ctrl-C does not reach it, and it is ended when its turn comes. Its temporary
    files are deleted then, also if it had to be killed.
    """
    environment = {
        name: value for name, value in module_environment().items() if not name.startswith("HALLEY_") or name == _KEPT
    }
    with tempfile.TemporaryDirectory(prefix="halley-demo-", ignore_cleanup_errors=True) as temporary:
        process = await asyncio.create_subprocess_exec(
            *module_command("app"),
            *arguments,
            "--config",
            os.devnull,
            env=environment | {"TMPDIR": temporary},
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=PIPE,
            limit=_LINE_BYTES,
            start_new_session=True,
        )
        child = Child(process)
        try:
            yield child
        finally:
            await child.end(leave_s)
