"""The pipeline's jobs beside a server: `halley pipeline run` as a process, which is not to end by itself."""

from __future__ import annotations

import asyncio
import tempfile
from asyncio.subprocess import DEVNULL
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import httpx

from app.bench.failure import BenchFailed
from app.bench.processes import end, last_line, pin
from app.interpreter import module_command, module_environment

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator, Coroutine, Sequence
    from pathlib import Path

Answer = TypeVar("Answer")

_HEAD_S = 10.0
_INGEST = "lake-"
"""What the log calls an ingest, but for its lake."""


class Jobs:
    """Jobs that run; make it with `jobs`."""

    def __init__(self, process: Process, said: BinaryIO) -> None:
        self._process = process
        self._said = said

    async def during(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Do it while they run. Raises `BenchFailed` as soon as they do not."""
        working = asyncio.ensure_future(work)
        death = asyncio.create_task(self._process.wait())
        try:
            await asyncio.wait({working, death}, return_when=asyncio.FIRST_COMPLETED)
            if death.done():
                said = last_line(self._said)
                told = f"the pipeline has ended by itself (exit code {death.result()})"
                raise BenchFailed(told + (f": {said}" if said else ""))
            return await working
        finally:
            working.cancel()
            death.cancel()
            await asyncio.wait({working, death})


async def behind(server: str) -> int:
    """How many events of a server's log its ingest has yet to do. Raises `BenchFailed`."""
    try:
        async with httpx.AsyncClient(timeout=_HEAD_S, trust_env=False) as http:
            head = (await http.get(f"{server}/log/head")).raise_for_status().json()
        return max(int(head["next"]) - int(at) for name, at in head["consumers"].items() if name.startswith(_INGEST))
    except (httpx.HTTPError, ValueError, KeyError) as error:
        raise BenchFailed(f"the server does not say how far the pipeline is: {error}") from None


@asynccontextmanager
async def jobs(server: str, data_dir: Path, master: str, cores: Sequence[int], temporary: Path) -> AsyncIterator[Jobs]:
    """Ingest, rollup and alerts of that log, with a lake in its folder, on these cores (none: on all)."""
    arguments = ["--data-dir", str(data_dir), "--lake", str(data_dir / "lake"), "--server", server, "--master", master]
    with tempfile.TemporaryFile() as said:
        process = await asyncio.create_subprocess_exec(
            *module_command("app"),
            *("pipeline", "run", *arguments),
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=said,
            env=module_environment() | {"TMPDIR": str(temporary)},  # who is killed cannot tidy up
            start_new_session=True,
        )
        try:
            if cores:
                pin(process, *cores)  # and with it all that it will start
            yield Jobs(process, said)
        finally:
            await end(process)
