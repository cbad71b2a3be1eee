"""Where the bench stores logs, and whether that place is on a disk."""

from __future__ import annotations

import os
from pathlib import Path

_MEMORY = {"tmpfs", "ramfs"}


def disk() -> str | None:
    """Return a folder for temporary files that outlive a restart, so it is on a disk; None if none is known."""
    return "/var/tmp" if os.access("/var/tmp", os.W_OK) else None  # noqa: S108 - only the parent of a folder of ours


def is_in_memory(folder: Path) -> bool:
    """Whether a folder is in memory instead of on a disk; False where that cannot be determined."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    above = {str(each) for each in (folder.resolve(), *folder.resolve().parents)}
    kinds = {place: kind for _, place, kind, *_ in map(str.split, mounts) if place in above}
    return kinds.get(max(kinds, key=len, default="")) in _MEMORY
