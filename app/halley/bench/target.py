"""The server that is measured, one that runs already or one that is started, and the CPU time and memory that it uses.

Usage is read from /proc for processes on this machine, else from the server's /metrics.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx

from halley.bench.load import BenchFailed
from halley.processes import (
    ChildProcess,
    child_process,
    free_port,
    module_command,
    module_environment,
    pinned,
    raise_file_limit,
)

_PROC = Path("/proc")
_CPU = re.compile(r"^process_cpu_seconds_total (\S+)$", re.MULTILINE)
_RSS = re.compile(r"^process_resident_memory_bytes (\S+)$", re.MULTILINE)
_METRICS_S = 10.0


class Usage(NamedTuple):
    """CPU time since the start, and resident memory now; None where it is unknown.

    `waited_s` is the time in which the server was ready to run while something else ran on its core.
    """

    cpu_s: float | None
    rss_bytes: int | None
    waited_s: float | None = None

    def since(self, before: Usage) -> Usage:
        """Return the times used since `before`, with the current memory."""
        cpu_s = None if before.cpu_s is None or self.cpu_s is None else self.cpu_s - before.cpu_s
        waited_s = None if before.waited_s is None or self.waited_s is None else self.waited_s - before.waited_s
        return Usage(cpu_s, self.rss_bytes, waited_s)


UNKNOWN = Usage(None, None)


def usage_of(pid: int) -> Usage:
    """Return what a process and its descendants have used."""
    if not _PROC.is_dir():
        return UNKNOWN
    cpu_s, rss_bytes, waited_s = 0.0, 0, _waited_s(pid)
    for each in _tree(pid):
        try:
            fields = (_PROC / str(each) / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            cpu_s += time.clock_gettime(_cpu_clock(each))
        except OSError:
            continue
        rss_bytes += int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    return Usage(cpu_s, rss_bytes, waited_s)


def _cpu_clock(pid: int) -> int:
    """Return the id of the clock of a process' CPU time: what clock_getcpuclockid(3) returns on Linux.

    The clock has nanoseconds. The CPU time in /proc has hundredths of a second, too coarse for a server that uses
    little.
    """
    return ~pid << 3 | 2


def _waited_s(pid: int) -> float | None:
    """Return how long a process' main thread waited for a core; None where the kernel does not count that."""
    try:
        return int((_PROC / str(pid) / "schedstat").read_text(encoding="utf-8").split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None


def _tree(pid: int) -> list[int]:
    found = [pid]
    for task in (_PROC / str(pid) / "task").glob("*"):
        try:
            children = (task / "children").read_text(encoding="utf-8").split()
        except OSError:
            continue
        for child in children:
            found += _tree(int(child))
    return found


async def metrics_of(url: str) -> str:
    """Return a server's metrics, in Prometheus' format. Raises `BenchFailed`."""
    try:
        async with httpx.AsyncClient(timeout=_METRICS_S) as http:
            return (await http.get(url)).text
    except httpx.HTTPError as error:
        raise BenchFailed(f"no metrics from {url}: {error}") from error


async def usage_in_metrics(metrics_url: str) -> Usage:
    """Return what a server reports about itself in its metrics. Raises `BenchFailed`."""
    text = await metrics_of(metrics_url)
    cpu, rss = _CPU.search(text), _RSS.search(text)
    if cpu is None or rss is None:
        raise BenchFailed(f"{metrics_url} lacks process_cpu_seconds_total or process_resident_memory_bytes")
    return Usage(float(cpu[1]), int(float(rss[1])))


_START_S = 20.0


@dataclass
class Target:
    """A server at `url`. `cores` are those that the load should use (empty: any); sessions authenticate by `token`.

    Its usage is read by `pid` or from `metrics_url`; without these it is unknown. `child` is its process if it was
    started here.
    """

    url: str
    name: str
    token: str | None = None
    pid: int | None = None
    metrics_url: str | None = None
    cores: Sequence[int] = ()
    child: ChildProcess | None = None

    async def usage(self) -> Usage:
        """Return its CPU time so far and its memory. Raises `BenchFailed` if its metrics cannot be read."""
        if self.pid is not None:
            return usage_of(self.pid)
        return UNKNOWN if self.metrics_url is None else await usage_in_metrics(self.metrics_url)

    async def died(self) -> str:
        """Wait until the server ends unexpectedly; return a sentence on how it ended."""
        if self.child is None:  # the end of a server that the bench did not start is not noticed
            await asyncio.Event().wait()
            raise AssertionError
        code = await self.child.ended()
        if code < 0:
            return f"the server ended unexpectedly ({signal.Signals(-code).name})"
        why = next(filter(None, map(str.strip, reversed(self.child.lines))), "")
        return f"the server ended unexpectedly (exit code {code})" + (f": {why}" if why else "")


def attached(url: str, *, token: str | None = None, pid: int | None = None, metrics_url: str | None = None) -> Target:
    """Return a running server as target; `pid` or `metrics_url` is where its usage is read. Raises `ValueError`."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or "@" in parts.netloc:
        raise ValueError("expected a URL like http://127.0.0.1:8080")
    _ = parts.port  # raises ValueError
    path = "/bayeux" if parts.path in ("", "/") else parts.path
    return Target(f"http://{parts.netloc}{path}", url, token=token, pid=pid, metrics_url=metrics_url)


def halley_command(config: str | None = None, *, data_dir: Path | None = None, python: Path | None = None) -> list[str]:
    """Return the command that serves Halley at {port}: with settings from a file, a history, or neither.

    It is this Halley, or the one that is installed for `python`.
    """
    # With -I it is not this folder's.
    program = module_command("halley") if python is None else [str(python), "-I", "-m", "halley"]
    settings = ["--config", config] if config else []
    history = ["--data-dir", str(data_dir)] if data_dir else [] if config else ["--history", "off"]
    return [*program, "serve", "--port", "{port}", "--operations-port", "0", *settings, *history]


@asynccontextmanager
async def started(
    command: Sequence[str],
    name: str = "halley",
    *,
    path: str = "/bayeux",
    token: str | None = None,
    is_pinned: bool = True,
    environment: Mapping[str, str] = MappingProxyType({}),
    prepare: Callable[[int], object] = lambda _: None,
) -> AsyncIterator[Target]:
    """Start a separate server at a free port, which replaces `{port}` in the command, and end it with the block.

    With `is_pinned` and two or more cores, the server gets the first one to itself and the load the others.
    `environment` is added to this process' own. `prepare` is called with the port before the start, for servers that
    read it from a file. Raises `BenchFailed` if the server does not start.
    """
    raise_file_limit()
    settings = {"HALLEY_LOG_LEVEL": "warning", **environment}  # without a line for each session
    async with AsyncExitStack() as stack:
        try:
            port = free_port()
            prepare(port)
            words = [word.replace("{port}", str(port)) for word in command]
            running = child_process(words, environment=module_environment() | settings, end_within_s=0)
            cores = _cores() if is_pinned else []
            with pinned(*cores[:1]):
                child = await stack.enter_async_context(running)
        except OSError as error:
            raise BenchFailed(f"cannot start {command[0]}: {error.strerror}") from None
        url = f"http://127.0.0.1:{port}{path}"
        target = Target(url, name, token, child.process.pid, cores=cores[1:], child=child)
        await _listening(target, port)
        yield target


async def _listening(target: Target, port: int) -> None:
    death = asyncio.create_task(target.died())
    until_s = time.monotonic() + _START_S
    try:
        while time.monotonic() < until_s:
            if death.done():
                raise BenchFailed(death.result())
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return
            await asyncio.sleep(0.05)
        raise BenchFailed(f"{target.name} does not listen after {_START_S:g} s")
    finally:
        death.cancel()


def _cores() -> list[int]:
    if not hasattr(os, "sched_getaffinity"):  # macOS, Windows
        return []
    cores = sorted(os.sched_getaffinity(0))
    return cores if len(cores) > 1 else []
