"""The limit of open files, which bounds the number of connections."""

from __future__ import annotations

from contextlib import suppress


def raise_file_limit() -> None:
    """Raise the limit of open files for this process, and those it starts, to the maximum that the system allows."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
