"""What the process takes of its machine, looked at once a second: memory, and files.

The broker refuses what would make it grow while more than `limits.memory_share` of the memory is taken; it is the last
line behind all other bounds, and off where the system does not tell. It frees nothing and ends nobody.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from app import telemetry
from app.broker.watermark import Watermark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from app.broker.broker import Broker

_EVERY_S = 1.0
OUT_OF_FILES = (errno.EMFILE, errno.ENFILE)


class Resources:
    """Tells the broker how much memory the process has, and the operator when there are no more files."""

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
        """Look, if it is time."""
        if now - self._looked_at < _EVERY_S:
            return
        self._looked_at = now
        try:
            self._broker.memory.move_to(self._resident_bytes())
        except OSError as error:
            # New connections are closed at once, or wait; existing ones are served. Nothing else would tell why.
            if error.errno in OUT_OF_FILES:
                telemetry.log.warning("out_of_files", reason=error.strerror)


def own_resident_bytes() -> int:
    """The memory that this process has. Raises `OSError` where that cannot be read."""
    pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def memory_bytes(root: Path = Path("/")) -> int | None:
    """The memory that this process may have: its cgroup's or the machine's, whichever is less; None if unknown."""
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
    """The limit of a cgroup and of those above it; in a container its own is often shown as the root."""
    folder = hierarchy / group.lstrip("/")
    for place in (folder, *folder.parents):
        with suppress(OSError, ValueError):  # ValueError: "max"
            yield int((place / name).read_text())
        if place == hierarchy:
            return
