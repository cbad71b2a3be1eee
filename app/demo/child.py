"""A verb of ours in a process of its own: what it says on standard error, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE
from collections import deque
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from app.demo.beside import is_in_haste
from app.interpreter import module_command, module_environment

if TYPE_CHECKING:
    import re
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator

_LINES_KEPT = 50
_LINE_BYTES = 1_048_576
_KILLED_S = 5.0
_LOOK_S = 0.05
_OURS = "halley: "


class Child:
    """Make it with `running`. `lines` are the last that it said."""

    def __init__(self, process: Process) -> None:
        self.lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._process = process
        self._news = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    async def says(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Wait for a line like that; None if it ends before. A line that has been pushed out of `lines` is missed."""
        while True:
            for line in self.lines:
                if match := pattern.fullmatch(line):
                    return match
            if self._reading.done():
                return None
            self._news.clear()
            await self._news.wait()

    async def ended(self) -> int:
        """Wait for its end; returns the exit code, negative where a signal has ended it."""
        await asyncio.wait([self._reading])  # what it said last, too
        return await self._process.wait()

    def words(self) -> list[str]:
        """What it said to people, last of all; its log is not for them."""
        return [line.removeprefix(_OURS) for line in self.lines if line.startswith(_OURS)]

    async def _read(self) -> None:
        assert self._process.stderr is not None
        try:
            while True:
                try:
                    line = await self._process.stderr.readline()
                except ValueError:  # a line too long to be for anybody
                    continue
                if not line:
                    return
                self.lines.append(line.decode(errors="replace").rstrip())
                self._news.set()
        finally:
            self._news.set()

    async def end(self, within_s: float) -> None:
        """Tell it to leave, and wait for that; then kill it and all its children.

        Whoever was told twice to leave has no time: cancelled while it waits, or twice before, it kills at once.
        """
        try:
            self._signal(signal.SIGTERM)
            await asyncio.wait([asyncio.ensure_future(self._process.wait())], timeout=0 if is_in_haste() else within_s)
        finally:
            await self._kill()

    def _signal(self, number: signal.Signals) -> None:
        # Not by `Process.send_signal`: it polls first, and takes the end of a dead child from whoever waits for it.
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    async def _kill(self) -> None:
        """Also what it may have left: the group is its own, and its number is no other's while anything is in it."""
        deadline_s = asyncio.get_running_loop().time() + _KILLED_S
        with suppress(ProcessLookupError, PermissionError):  # macOS' word where only the dead are left
            while asyncio.get_running_loop().time() < deadline_s:
                os.killpg(self._process.pid, signal.SIGKILL)
                await asyncio.sleep(_LOOK_S)
        self._reading.cancel()
        await asyncio.wait([self._reading, asyncio.ensure_future(self._process.wait())], timeout=_KILLED_S)


@asynccontextmanager
async def running(*arguments: str, leave_s: float) -> AsyncIterator[Child]:
    """`halley` with these arguments, without any settings of the user's; told to leave when the block ends.

    It is in a session of its own: Ctrl-C is for us alone, and we end it when its turn comes.
    """
    environment = {name: value for name, value in module_environment().items() if not name.startswith("HALLEY_")}
    process = await asyncio.create_subprocess_exec(
        *module_command("app"),
        *arguments,
        "--config",
        os.devnull,
        env=environment,
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
