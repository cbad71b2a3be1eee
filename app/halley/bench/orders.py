"""Workers, the processes that put a load on a server, and the orders by which another process leads them.

A worker is led over pipes by lines of JSON. The first one on its standard input has the arguments that it begins with,
and every other one is an order: what to `do`, and its arguments. On its standard output, the worker writes a `reply` to
an order, or why it `failed`, and `report`s while it executes it. It ends when its input ends, so it cannot outlive the
process that started it.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from typing import Any

from halley.bench.load import BenchFailed
from halley.processes import kill, module_environment, pin, raise_file_limit

Orders = Mapping[str, Callable[..., Any]]

_LINE_BYTES = 1 << 28  # a reply can have a number for each microsecond of latency that occurred
_REPLY_S = 60.0


class WorkerHandle:
    """A worker, for the process that leads it; create it with `running_worker`.

    `on_report` is called with each of its reports.
    """

    def __init__(self, process: Process) -> None:
        self.on_report: Callable[[dict[str, Any]], object] = lambda _: None
        self._process = process
        self._replies: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.reading = asyncio.create_task(self._read())

    def send(self, **line: Any) -> None:
        """Send the worker a line: what it begins with, or an order that has no reply."""
        assert self._process.stdin is not None
        with suppress(ConnectionError):  # if it has ended, its output shows that
            self._process.stdin.write(json.dumps(line).encode() + b"\n")

    async def ask(self, what: str, *, within_s: float = _REPLY_S, **arguments: Any) -> Any:
        """Order something and return the reply; if `seconds` are an argument, it may take as much longer.

        Raises `BenchFailed` if the worker failed or takes longer.
        """
        within_s += arguments.get("seconds", 0)
        self.send(do=what, **arguments)
        try:
            async with asyncio.timeout(within_s):
                message = await self._replies.get()
        except TimeoutError:
            raise BenchFailed(f"no response from a load process for {within_s:g} s") from None
        if "failed" in message:
            raise BenchFailed(message["failed"])
        return message["reply"]

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            message = json.loads(line)
            if "report" in message:
                self.on_report(message["report"])
            else:
                self._replies.put_nowait(message)
        self._replies.put_nowait({"failed": "a load process ended unexpectedly"})


@asynccontextmanager
async def running_worker(
    command: Sequence[str], core: int | None, environment: Mapping[str, str] | None = None, **arguments: Any
) -> AsyncIterator[WorkerHandle]:
    """Start a worker on a core (None: on any), and end it with the block.

    `command` runs a module that calls `run_worker`, to which `arguments` are passed. Its environment is that of
    `module_environment` unless given.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=PIPE,
        stdout=PIPE,
        limit=_LINE_BYTES,
        env=environment or module_environment(),
        start_new_session=True,  # Ctrl-C reaches only this process, which ends it
    )
    worker = WorkerHandle(process)
    try:
        if core is not None:
            pin(process, core)
        worker.send(**arguments)
        yield worker
    finally:
        await kill(process)
        worker.reading.cancel()


def run_worker(begin: Callable[..., Orders]) -> None:
    """Be a worker: execute orders until standard input ends, and then end this process.

    `begin` is called with a function that sends a report and with the arguments of the first line. It returns the
    functions that execute orders, by name. What a coroutine function returns is the reply. Other functions have none,
    and are called immediately, even while an order is being executed.
    """
    raise_file_limit()
    try:
        import uvloop

        factory: Any = uvloop.new_event_loop
    except ImportError:
        factory = None
    runner = asyncio.Runner(loop_factory=factory)  # never closed: thousands of connections, one by one, would take long
    with suppress(BrokenPipeError, ConnectionResetError):
        runner.run(_work(begin))
    os._exit(0)


async def _work(begin: Callable[..., Orders]) -> None:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    stdin, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    def report(**what: Any) -> None:
        _write(report=what)

    task: asyncio.Task[None] | None = None
    with closing(stdin):
        if not (first := await reader.readline()):  # the process that started this one has ended already
            return
        orders = begin(report, **json.loads(first))
        async for line in reader:
            arguments = json.loads(line)
            execute = orders[arguments.pop("do")]
            if inspect.iscoroutinefunction(execute):
                task = asyncio.create_task(_execute(execute(**arguments)))
            else:
                execute(**arguments)
    if task is not None:
        task.cancel()


async def _execute(work: Any) -> None:
    try:
        _write(reply=await work)
    except BenchFailed as error:
        _write(failed=str(error))
    except Exception as error:
        _write(failed=f"a load process failed: {error!r}")
        raise


def _write(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()
