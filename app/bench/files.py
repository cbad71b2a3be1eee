"""The limit of open files: each connection is one."""

from __future__ import annotations

from contextlib import suppress


def raise_file_limit() -> None:
    """Let this process, and those it starts, have as many files open as the system allows."""
    with suppress(ImportError, ValueError, OSError):
        import resource  # noqa: PLC0415 - not on Windows

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
