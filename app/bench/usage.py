"""The CPU time and memory that a server uses: from /proc for processes on this machine, else from its /metrics."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import NamedTuple

import httpx

from app.bench.failure import BenchFailed

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


async def usage_told_by(metrics_url: str) -> Usage:
    """Return what a server reports about itself in Prometheus' format. Raises `BenchFailed`."""
    try:
        async with httpx.AsyncClient(timeout=_METRICS_S) as http:
            text = (await http.get(metrics_url)).text
    except httpx.HTTPError as error:
        raise BenchFailed(f"no metrics from {metrics_url}: {error}") from error
    cpu, rss = _CPU.search(text), _RSS.search(text)
    if cpu is None or rss is None:
        raise BenchFailed(f"{metrics_url} lacks process_cpu_seconds_total or process_resident_memory_bytes")
    return Usage(float(cpu[1]), int(float(rss[1])))
