"""ntcore as a peer for `halley bench nt4`: its server in a separate process, run by a Python that has pyntcore."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from app.bench.target import Target, started

_PROGRAM = """
import signal, sys, ntcore
server = ntcore.NetworkTableInstance.create()
server.startServer(sys.argv[1], "127.0.0.1", 0, int(sys.argv[2]))
signal.pause()
"""


def ntcore(python: Path, folder: Path, *, is_pinned: bool) -> AbstractAsyncContextManager[Target]:
    """Start a separate server with its file in `folder`. Raises `BenchFailed` as `started` does."""
    command = [str(python), "-c", _PROGRAM, str(folder / "networktables.json"), "{port}"]
    return started(command, "ntcore", path="/nt/bench", is_pinned=is_pinned)
