"""What all load processes have in common: their event loop, a raised limit of open files, and an immediate exit."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from app.bench.processes import raise_file_limit


def be_load_process(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `work` on an event loop, then end the process."""
    raise_file_limit()
    try:
        import uvloop

        factory: Any = uvloop.new_event_loop
    except ImportError:
        factory = None
    with suppress(BrokenPipeError, ConnectionResetError), asyncio.Runner(loop_factory=factory) as runner:
        runner.run(work())
    os._exit(0)  # closing thousands of connections one by one would take long
