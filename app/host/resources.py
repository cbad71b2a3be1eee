"""The memory and open files of the process, checked once a second.

While more than `limits.memory_share` of the memory is used, the broker refuses requests that would make it grow. This
is the last limit behind all others; it frees nothing and ends no session. It is off where the system does not report
how much memory there is.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from app import telemetry
from app.broker.broker import Broker
from app.broker.watermark import Watermark

_EVERY_S = 1.0
OUT_OF_FILES = (errno.EMFILE, errno.ENFILE)


class Resources:
    """Reports the memory in use to the broker, and logs when the process can open no more files."""

    def __init__(
        self,
        broker: Broker,
        *,
        resident_bytes: Callable[[], int] | None = None,
        available_bytes: Callable[[], int | None] | None = None,
    ) -> None:
        self._broker = broker
        self._resident_bytes = resident_bytes or own_resident_bytes
        self._looked_at = float("-inf")
        available = (available_bytes or memory_bytes)()
        share = broker.limits.memory_share
        if available is not None and share:
            broker.memory = Watermark(share * available)

    def sweep(self, now: float) -> None:
        """Check the memory and the files, at most once a second; `now` is monotonic, in seconds."""
        if now - self._looked_at < _EVERY_S:
            return
        self._looked_at = now
        try:
            self._broker.memory.move_to(self._resident_bytes())
        except OSError as error:
            # New connections are closed or wait, existing ones are served; nothing else would log why.
            if error.errno in OUT_OF_FILES:
                telemetry.log.warning("out_of_files", reason=error.strerror)


def own_resident_bytes() -> int:
    """Return the bytes of memory that this process uses. Raises `OSError` where that cannot be read."""
    pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def memory_bytes(root: Path = Path("/")) -> int | None:
    """Return the bytes of memory that this process can use: the least limit of cgroup and machine; None if unknown."""
    return min(_limits(root), default=None)


def _limits(root: Path) -> Iterator[int]:
    with suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if not controllers:
                yield from _cgroup_limits(root / "sys/fs/cgroup", group, "memory.max")
            elif "memory" in controllers.split(","):
                yield from _cgroup_limits(root / "sys/fs/cgroup/memory", group, "memory.limit_in_bytes")
    with suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemTotal:"):
                yield int(line.split()[1]) * 1024


def _cgroup_limits(hierarchy: Path, group: str, name: str) -> Iterator[int]:
    """Yield the limits of a cgroup and of its parents; in a container its own is often shown as the root."""
    folder = hierarchy / group.lstrip("/")
    for place in (folder, *folder.parents):
        with suppress(OSError, ValueError):  # ValueError: "max"
            yield int((place / name).read_text())
        if place == hierarchy:
            return
