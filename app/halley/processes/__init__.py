"""Child processes: how one of Halley's modules is started in one, what it logs, and how it is ended with its children.

Every child runs in a session of its own, so that Ctrl-C in a terminal does not reach it and its process group can be
killed as a whole. On Linux a child does not outlive this process, even if that is killed. This room uses the standard
library only.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import random
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from re import Match, Pattern

_MOST_LINES = 50
_LINE_BYTES = 1_048_576
_KILLED_S = 10.0
_CHECK_S, _EXIT_CHECK_S = 0.02, 0.1
_PORTS = range(10_240, 32_768)
_PORTS_TRIED = 100
_PR_SET_PDEATHSIG = 1


def module_command(module: str) -> list[str]:
    """The command line that runs `module`. With `-P` a folder `halley` in the working directory does not hide it."""
    return [sys.executable, "-P", "-m", module]


def module_environment() -> dict[str, str]:
    """This process's environment with Halley's folder first in `PYTHONPATH`, for `module_command`."""
    ours = str(Path(__file__).parents[2])
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (ours, os.environ.get("PYTHONPATH"))))}


def pin(process: Process, *cores: int) -> None:
    """Restrict a process to `cores`."""
    with suppress(ProcessLookupError):  # it has already ended, which the code that waits for it notices
        os.sched_setaffinity(process.pid, cores)


@contextmanager
def pinned(*cores: int) -> Iterator[None]:
    """Restrict the processes that are started in the block to `cores` (none: not), with all threads that they start."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)  # which a new process inherits
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def raise_file_limit() -> int | None:
    """Raise the limit of open files, of which each connection is one, to its maximum; return it, None if unlimited.

    It also applies to processes that are started later.
    """
    with suppress(ImportError, ValueError, OSError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return None if hard == resource.RLIM_INFINITY else hard
    return None


def free_port() -> int:
    """Return a port of 127.0.0.1 for a child process that cannot choose one itself. Raises `OSError` if all are in use.

    It is below the ports from which systems choose for connections and for port 0 (RFC 6335 section 6; Linux begins at
    32768): one of those could be given to another process before the child listens.
    """
    for port in random.sample(_PORTS, _PORTS_TRIED):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


async def kill(process: Process) -> None:
    """Kill a process that was started in a new session, with all its children, and wait for its end.

    The end is waited for even if this is cancelled; `TimeoutError` is raised if it does not come.
    """
    # Not with `Process.kill`: it polls first, which takes the exit status from the code that waits for it.
    ended = asyncio.ensure_future(_kill_group(process))
    try:
        await asyncio.shield(ended)
    except asyncio.CancelledError:
        await asyncio.wait([ended])
        raise


async def _kill_group(process: Process) -> None:
    """Kill the process' group until it has no members: no other group has its number while it has any."""
    async with asyncio.timeout(_KILLED_S):
        with suppress(ProcessLookupError, PermissionError):  # raised by macOS if only dead processes are left
            while True:
                os.killpg(process.pid, signal.SIGKILL)
                await asyncio.sleep(_CHECK_S)
        await process.wait()


def is_cancelled_twice() -> bool:
    """Whether the current task was cancelled twice, so that it should not wait for anything."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 1


def _dying_with_us(last: signal.Signals) -> Callable[[], None] | None:
    """What a new process calls, so that it gets the signal `last` when this one ends; None where that is not Linux."""
    if sys.platform != "linux":
        return None
    return partial(_die_with, os.getpid(), ctypes.CDLL(None).prctl, last)


def _die_with(parent: int, prctl: Callable[[int, int], int], last: int) -> None:
    prctl(_PR_SET_PDEATHSIG, last)
    if os.getppid() != parent:  # it has ended before the call
        os.kill(os.getpid(), last)


class ChildProcess:
    """A process, made with `child_process`. `lines` are the last lines of its standard error."""

    def __init__(self, process: Process, on_line: Callable[[str], None] | None = None) -> None:
        self.process = process
        self.lines: deque[str] = deque(maxlen=_MOST_LINES)
        self._on_line = on_line
        self._has_changed = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    async def logged(self, pattern: Pattern[str]) -> Match[str] | None:
        """Wait for a line that matches; None if the process ends before. A line that `lines` has lost is missed."""
        while True:
            for line in self.lines:
                if match := pattern.fullmatch(line):
                    return match
            if self._reading.done():
                return None
            self._has_changed.clear()
            await self._has_changed.wait()

    async def exited(self) -> None:
        """Wait until the process itself has ended, even if its children live and keep its standard error open."""
        while self.process.returncode is None:  # noqa: ASYNC110 - `Process.wait` waits for standard error too
            await asyncio.sleep(_EXIT_CHECK_S)

    async def ended(self) -> int:
        """Wait for the end of the process; return its exit code, negative if a signal has ended it."""
        await asyncio.wait([self._reading])  # so that `lines` has the last ones
        return await self.process.wait()

    async def _read(self) -> None:
        assert self.process.stderr is not None
        try:
            while True:
                try:
                    line = await self.process.stderr.readline()
                except ValueError:  # an overlong line
                    continue
                if not line:
                    return
                self.lines.append(line.decode(errors="replace").rstrip())
                if self._on_line is not None:
                    self._on_line(self.lines[-1])
                self._has_changed.set()
        finally:
            self._has_changed.set()

    async def end(self, within_s: float) -> None:
        """Send SIGTERM and wait `within_s` seconds for the end; then kill the process and all its children.

        It is killed at once if the current task is cancelled while it waits, or was cancelled twice before.
        """
        try:
            if self.process.returncode is None:  # not `Process.terminate`, for the reason in `kill`
                with suppress(ProcessLookupError):
                    os.kill(self.process.pid, signal.SIGTERM)
            wait_s = 0 if is_cancelled_twice() else within_s
            await asyncio.wait([asyncio.ensure_future(self.process.wait())], timeout=wait_s)
        finally:
            await kill(self.process)
            self._reading.cancel()
            await asyncio.wait([self._reading])


@asynccontextmanager
async def child_process(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    end_within_s: float,
    on_line: Callable[[str], None] | None = None,
    death_signal: signal.Signals = signal.SIGKILL,
) -> AsyncIterator[ChildProcess]:
    """Run a command until the block ends; then it has `end_within_s` seconds to end after SIGTERM.

    Its standard input and output are closed; `on_line` is called with each line of its standard error. It gets
    `death_signal` if this process ends before. Raises `OSError` if it cannot be started.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        env=environment,
        stdin=DEVNULL,
        stdout=DEVNULL,
        stderr=PIPE,
        limit=_LINE_BYTES,
        start_new_session=True,
        preexec_fn=_dying_with_us(death_signal),
    )
    child = ChildProcess(process, on_line)
    try:
        yield child
    finally:
        await child.end(end_within_s)
