"""A pseudo-terminal: a test presses its keys and reads what it shows."""

from __future__ import annotations

import asyncio
import os
import pty
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from support.wire import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

LOGIN = (
    sys.executable,
    "-c",
    "import os, sys; os.login_tty(os.dup(0)); os.execv(sys.argv[1], sys.argv[1:])",
)
"""Starts a command whose three streams are the terminal on standard input, where Ctrl-C sends a signal."""

CTRL_C, CTRL_D = "\x03", "\x04"


class Terminal:
    """A pseudo-terminal: `line` is the end for a process, `shown` everything that it has shown so far."""

    def __init__(self, line: int, screen: int) -> None:
        self.line = line
        self.shown = ""
        self._screen = screen
        self._news = asyncio.Event()
        asyncio.get_running_loop().add_reader(screen, self._see)

    def _see(self) -> None:
        self.shown += os.read(self._screen, 65_536).decode()
        self._news.set()

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._screen, keys.encode())

    async def until_shown(self, text: str) -> None:
        """Wait until a text is shown."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while text not in self.shown:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"only this was shown: {self.shown}") from None


@contextmanager
def terminal() -> Iterator[Terminal]:
    """Open a terminal for the block."""
    screen, line = pty.openpty()
    try:
        yield Terminal(line, screen)
    finally:
        asyncio.get_running_loop().remove_reader(screen)
        os.close(screen)
        os.close(line)
