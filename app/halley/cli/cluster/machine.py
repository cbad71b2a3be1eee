"""The processes of a cluster on one machine: a NATS server, a keeper, fronts, and nginx where it is installed.

Each is started again when it ends. One that ends at once again and again ends the whole, and so does one that cannot
use its settings when it is started first. At the end the fronts drain first, while nginx still passes on their answers;
the keeper ends when it has what they sent, and NATS is the last.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from time import monotonic
from typing import Any

from halley import telemetry
from halley.cli.terminal import FAILED, SIGNALLED, USAGE_ERROR
from halley.processes import ChildProcess, child_process, is_cancelled_twice, kill

_AT_ONCE_S = 3.0
"""A program that ran for less has ended at once."""

_TRIES = 5
_FIRST_PAUSE_S, _MOST_PAUSE_S = 0.1, 5.0
_START_S = 60.0
_CHECK_S = 0.02
_LISTENING = re.compile(r"halley is listening on .+")


class CannotRun(Exception):
    """The cluster cannot go on, or not begin; `code` is the exit code."""

    def __init__(self, text: str, code: int = USAGE_ERROR) -> None:
        super().__init__(text)
        self.code = code


class Role(IntEnum):
    """What a program is, in the order in which they are ended."""

    FRONT = 0
    KEEPER = 1
    NGINX = 2
    NATS = 3


@dataclass(frozen=True)
class Program:
    """A program to be kept running, by its name in the log. It listens on `address`, a host and a port.

    `end_within_s`: how long it may take to end after SIGTERM. `without_us`: the signal that it gets if this process is
    killed. Lines of its standard error that match `ignored` are left out.
    """

    role: Role
    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    address: tuple[str, int]
    end_within_s: float
    without_us: signal.Signals = signal.SIGKILL
    ignored: re.Pattern[str] | None = None


class Supervised:
    """A program that is started again when it ends; `task` raises `CannotRun` when it is given up."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._running: ChildProcess | None = None
        self._has_served = False
        self.task = asyncio.create_task(self._supervise())

    async def _supervise(self) -> None:
        name, short_runs = self.program.name, 0
        while True:
            began = monotonic()
            code, last_line = await self._run()
            short_runs = short_runs + 1 if monotonic() - began < _AT_ONCE_S else 0
            is_wrong_use = (
                code == USAGE_ERROR and not self._has_served
            )  # else what it needs may not be there at present
            if is_wrong_use or short_runs == _TRIES:
                how = f"ended with exit code {code}" if is_wrong_use else f"ended at once {_TRIES} times"
                raise CannotRun(f"{name} {how}: {last_line}", SIGNALLED - code if code < 0 else code or FAILED)
            pause_s = min(_FIRST_PAUSE_S * 2**short_runs, _MOST_PAUSE_S)
            telemetry.log.warning("process_ended", name=name, code=code, again_in_s=pause_s)
            await asyncio.sleep(pause_s)

    async def _run(self) -> tuple[int, str]:
        """Run the program until it ends by itself; returns its exit code and its last line. Raises `CannotRun`."""
        program = self.program
        running = child_process(
            program.command,
            environment=program.environment,
            end_within_s=program.end_within_s,
            on_line=self._pass_on,
            death_signal=program.without_us,
        )
        try:
            async with running as self._running:
                await self._running.exited()
                await kill(self._running.process)  # and the workers of nginx, which have its port
                code = await self._running.ended()
                return code, next(reversed(self._running.lines), "")
        except OSError as error:
            raise CannotRun(f"{program.command[0]} cannot be started: {error.strerror}") from error
        finally:
            self._running = None

    def _pass_on(self, line: str) -> None:
        ignored = self.program.ignored
        if ignored is None or not ignored.search(line):
            telemetry.write_line(named(line, self.program.name))

    async def ready(self) -> None:
        """Wait until it serves: until a node says so, or any other program takes connections. Raises `CannotRun`."""
        try:
            async with asyncio.timeout(_START_S):
                while not await self._is_ready():  # noqa: ASYNC110 - it is another process that gets ready
                    await asyncio.sleep(_CHECK_S)
        except TimeoutError:
            raise CannotRun(f"{self.program.name} did not start within {_START_S:g} s", FAILED) from None
        self._has_served = True

    async def _is_ready(self) -> bool:
        if self._running is None:
            return False
        if self.program.role in (Role.FRONT, Role.KEEPER):
            return any(_LISTENING.fullmatch(line) for line in self._running.lines)
        with suppress(OSError):
            _, writer = await asyncio.open_connection(*self.program.address)
            writer.close()
            return True
        return False

    def send_signal(self, what: signal.Signals) -> None:
        """Send the program a signal, if it runs."""
        if self._running is not None and self._running.process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._running.process.pid, what)


class Machine:
    """All programs of a cluster on this machine."""

    def __init__(self) -> None:
        self._programs: list[Supervised] = []

    async def start(self, *programs: Program) -> None:
        """Start programs, and wait until they serve. Raises `CannotRun`, also if an earlier one is given up."""
        started = [Supervised(program) for program in programs]
        self._programs += started
        ready = asyncio.gather(*(each.ready() for each in started))
        try:
            waited: list[asyncio.Future[Any]] = [ready, *self._tasks()]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            self._raise_failure()
            await ready
        finally:
            ready.cancel()
            await asyncio.gather(ready, return_exceptions=True)

    async def run(self) -> None:
        """Keep the programs running until one is given up. Raises `CannotRun`."""
        await asyncio.wait(self._tasks(), return_when=asyncio.FIRST_COMPLETED)
        self._raise_failure()

    def _tasks(self, *roles: Role) -> list[asyncio.Task[None]]:
        return [each.task for each in self._programs if each.program.role in (roles or Role)]

    def _raise_failure(self) -> None:
        for task in self._tasks():
            if task.done():
                task.result()

    def reload(self) -> None:
        """Have all programs read their settings and certificates again."""
        for each in self._programs:
            each.send_signal(signal.SIGHUP)

    async def end(self) -> None:
        """End the programs, and wait for it. Once the current task has been cancelled twice, none of them may drain."""
        for role in Role:
            tasks = self._tasks(role)
            for task in tasks:
                task.cancel()
                if is_cancelled_twice():
                    task.cancel()
            while running := [task for task in tasks if not task.done()]:
                try:
                    await asyncio.wait(running)
                except asyncio.CancelledError:
                    for task in running:
                        task.cancel()
        await asyncio.gather(*self._tasks(), return_exceptions=True)


def named(line: str, name: str) -> str:
    """A line of a program for the common log: JSON gets the field `process`, any other begins with the name."""
    if line.startswith('{"'):
        return f'{{"process":"{name}",{line[1:]}'
    return f"{name}: {line}"
