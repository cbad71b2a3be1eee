"""`halley` as a separate process: for signals, exit codes, and what it writes to which stream."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from asyncio.subprocess import DEVNULL, PIPE
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from support.forks import Forked, fork
from support.wire import DEADLINE_S, Wire, request

if TYPE_CHECKING:
    import signal
    import ssl
    from collections.abc import AsyncIterator, Callable, Mapping

_LISTENING = re.compile(r"halley is listening on https?://[\d.]+:(\d+) \(console: \S+\)")
_OPERATIONS = re.compile(r"health and metrics: http://127\.0\.0\.1:(\d+)/.*")
_WARNING = re.compile(r"\w+Warning: ")
"""What Python writes about a warning: `conftest.py` has all processes show each, and none may cause one."""

_LINE_BYTES = 1_048_576


class Process:
    """A started process. `output` and `lines` are the lines of its standard output and standard error so far."""

    def __init__(self, process: asyncio.subprocess.Process | Forked) -> None:
        self.process = process
        self.output: list[str] = []
        self.lines: list[str] = []
        self._news = asyncio.Event()
        self._reading = asyncio.create_task(self._read())
        self._reading.add_done_callback(lambda _: self._news.set())

    async def _read(self) -> None:
        """Collect what the process writes until it ends; if a pipe were full, the process would stop."""
        pipes = ((self.process.stdout, self.output), (self.process.stderr, self.lines))
        await asyncio.gather(*(self._collect(pipe, lines) for pipe, lines in pipes if pipe is not None))

    async def _collect(self, pipe: asyncio.StreamReader, lines: list[str]) -> None:
        async for line in pipe:
            lines.append(line.decode().rstrip("\n"))
            self._news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until its output makes the condition true. Fails if the process ends first, or at the deadline."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not condition():
                    assert not self._reading.done(), f"it has ended: {self.lines}"
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"it wrote only {self.output} and {self.lines}") from None

    async def until_logged(self, text: str) -> str:
        """Wait for a line of standard error that contains the text, and return it."""
        await self.until(lambda: any(text in line for line in self.lines))
        return next(line for line in self.lines if text in line)

    async def until_printed(self, count: int) -> list[str]:
        """Wait for `count` lines of standard output, and return all of them."""
        await self.until(lambda: len(self.output) >= count)
        return self.output

    async def feed(self, data: bytes) -> None:
        """Write to the process's standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        await self.process.stdin.drain()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, as `kill` does."""
        self.process.send_signal(number)

    async def exit_code(self, within_s: float = DEADLINE_S) -> int:
        """Wait until the process has ended and its output is read. Raises `TimeoutError`."""
        async with asyncio.timeout(within_s):
            await asyncio.shield(self._reading)
            return await self.process.wait()

    async def close(self) -> None:
        """Kill the process if it still runs, and wait for its end."""
        if self.process.returncode is None:
            self.process.kill()
        if self.process.stdin is not None:
            self.process.stdin.close()
        await self._reading
        await self.process.wait()
        warned = [line for line in self.lines if _WARNING.search(line)]
        assert not warned, warned


class Server(Process):
    """A started `halley serve`."""

    def __init__(self, process: asyncio.subprocess.Process | Forked) -> None:
        super().__init__(process)
        self._wires: list[Wire] = []

    @property
    def port(self) -> int:
        """The port for clients; 0 until the server has logged it."""
        return self._announced(_LISTENING)

    @property
    def operations_port(self) -> int:
        """The port for health and metrics; 0 if the server has not logged one."""
        return self._announced(_OPERATIONS)

    def _announced(self, announcement: re.Pattern[str]) -> int:
        found = filter(None, map(announcement.fullmatch, self.lines))
        return next((int(match[1]) for match in found), 0)

    async def wire(self, port: int | None = None, *, tls: ssl.SSLContext | None = None) -> Wire:
        """Open a connection to the public port or another one, by TLS if `tls` is given."""
        wire = await Wire.open(port or self.port, tls=tls)
        self._wires.append(wire)
        return wire

    async def close(self) -> None:
        """End the server and all connections to it."""
        for wire in self._wires:
            await wire.close()
        await super().close()

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Return the lines of the server's log with that event, so far."""
        lines = [json.loads(line) for line in self.lines if line.startswith("{")]
        return [line for line in lines if line["event"] == event]

    async def until_held(self, count: int) -> None:
        """Wait until `count` connects are held."""
        wire = await self.wire(self.operations_port)
        async with asyncio.timeout(DEADLINE_S):
            while f"\nhalley_holds {count}.0\n" not in (await wire.request(request("GET", "/metrics"))).text:
                await asyncio.sleep(0.005)


class Ended(NamedTuple):
    """The result of a process: its exit code, and the lines of its standard output and standard error."""

    code: int
    output: list[str]
    lines: list[str]


def environment(**settings: str) -> dict[str, str]:
    """Return this process's environment with these variables, and without any other setting of Halley."""
    return {name: value for name, value in os.environ.items() if not name.startswith("HALLEY_")} | settings


def _for_python(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name.startswith("PYTHON")}


async def spawn(
    *arguments: str, cwd: Path, through: tuple[str, ...] = (), is_fresh: bool = False, **options: Any
) -> asyncio.subprocess.Process | Forked:
    """Start `halley` with these arguments; options are those of a process.

    It is forked from an interpreter that has imported it, unless `through` is a command that starts it, `is_fresh`
    requires a new interpreter, or the environment has other variables for Python than this process.
    """
    options = {"env": environment(), "stdin": DEVNULL, "stdout": PIPE, "stderr": PIPE, "limit": _LINE_BYTES, **options}
    if not (through or is_fresh or _for_python(options["env"]) != _for_python(os.environ)):
        return await fork(arguments, cwd=cwd, **options)
    return await asyncio.create_subprocess_exec(
        *through, sys.executable, "-m", "halley", *arguments, cwd=cwd, **options
    )


@asynccontextmanager
async def started(*arguments: str, cwd: Path, **options: Any) -> AsyncIterator[Process]:
    """Run `halley` with these arguments, and kill it at the end of the block; options as for `spawn`."""
    process = Process(await spawn(*arguments, cwd=cwd, **options))
    try:
        yield process
    finally:
        await process.close()


async def ended(*arguments: str, cwd: Path, stdin: bytes | None = None, **settings: str) -> Ended:
    """Run `halley` to its end, with `stdin` as its whole standard input and `settings` as environment variables."""
    async with started(*arguments, cwd=cwd, env=environment(**settings), stdin=PIPE) as process:
        assert process.process.stdin is not None
        if stdin is not None:
            process.process.stdin.write(stdin)
        process.process.stdin.close()
        return Ended(await process.exit_code(), process.output, process.lines)


@asynccontextmanager
async def launched(*arguments: str, cwd: Path, through: tuple[str, ...] = (), **settings: str) -> AsyncIterator[Server]:
    """Run `halley serve` until the block ends, on free ports unless `arguments` has one.

    The block begins once it serves. `settings` are environment variables.
    """
    ports = () if "--port" in arguments else ("--port", "0", "--operations-port", "0")
    server = Server(await spawn("serve", *ports, *arguments, cwd=cwd, through=through, env=environment(**settings)))
    try:
        await server.until(lambda: server.port != 0)
        yield server
    finally:
        await server.close()


def replace_text(file: Path, text: str) -> None:
    """Give a file another text at once: a process that reads it at any time finds the former one or this."""
    new = file.with_name(f"new-{file.name}")
    new.write_text(text)
    new.replace(file)


def port_in(line: str) -> int:
    """Return the port of the line that says where a server listens."""
    found = _LISTENING.fullmatch(line.strip())
    assert found is not None
    return int(found[1])


def _command_line(pid: str | int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def _children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


async def children(process: Process, count: int) -> dict[int, str]:
    """Wait until a process has `count` children, and return their command lines by process id.

    A child that has not yet executed its program still has its parent's command line, or none, and is waited for.
    """
    pid = process.process.pid
    not_yet = ("", _command_line(pid))
    async with asyncio.timeout(DEADLINE_S):
        while True:
            found = {int(each): _command_line(each) for each in _children_of(pid)}
            if len(found) >= count and not any(line in not_yet for line in found.values()):
                return found
            await asyncio.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
