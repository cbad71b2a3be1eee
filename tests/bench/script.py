"""Runs of `python tests/bench`, as its user makes them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.process import Ended, Process, environment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_LONGEST_S = 300.0


@asynccontextmanager
async def started(*arguments: str, cwd: Path, env: dict[str, str] | None = None) -> AsyncIterator[Process]:
    """Run it with these arguments, and kill it at the end of the block."""
    command = sys.executable, str(Path(__file__).parent), *arguments
    process = Process(
        await asyncio.create_subprocess_exec(
            *command, cwd=cwd, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=env or environment()
        )
    )
    try:
        yield process
    finally:
        await process.close()


async def ended(*arguments: str, cwd: Path) -> Ended:
    """Run it to its end with these arguments."""
    async with started(*arguments, cwd=cwd) as process:
        return Ended(await process.exit_code(_LONGEST_S), process.output, process.lines)


async def two_runs(folder: Path, *verb: str, first: tuple[str, ...] = ()) -> tuple[dict[str, Any], list[str]]:
    """Run a verb twice; return the result of the first run and the printed lines of the second.

    The first run also gets the options `first`. Fails if a run leaves a log behind.
    """
    code, output, lines = await ended(*verb, *first, "--json", "--data-dir", ".", cwd=folder)
    assert (code, lines) == (0, [])
    assert os.listdir(folder) == []  # noqa: PTH208 - nothing blocks there
    (folder / "before.json").write_text(output[0])
    code, printed, _ = await ended(*verb, "--compare", "before.json", cwd=folder)
    assert code == 0
    return json.loads(output[0]), printed
