"""The pipeline's jobs, run next to a server: `halley pipeline run` as a process, which must not end by itself."""

from __future__ import annotations

import asyncio
import tempfile
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import httpx

from app.bench.load import BenchFailed
from app.bench.processes import end, last_line, pin
from app.interpreter import module_command, module_environment

Answer = TypeVar("Answer")

_HEAD_S = 10.0
_INGEST = "lake-"
"""The prefix of the name under which an ingest is one of the log's consumers; its lake's id follows."""


class Jobs:
    """A running pipeline process; create it with `jobs`."""

    def __init__(self, process: Process, said: BinaryIO) -> None:
        self._process = process
        self._said = said

    async def during(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Run `work` and return its result. Raises `BenchFailed` as soon as the jobs end."""
        working = asyncio.ensure_future(work)
        death = asyncio.create_task(self._process.wait())
        try:
            await asyncio.wait({working, death}, return_when=asyncio.FIRST_COMPLETED)
            if death.done():
                said = last_line(self._said)
                told = f"the pipeline ended unexpectedly (exit code {death.result()})"
                raise BenchFailed(told + (f": {said}" if said else ""))
            return await working
        finally:
            working.cancel()
            death.cancel()
            await asyncio.wait({working, death})


async def behind(server: str) -> int:
    """Return the number of events in a server's log that are not yet ingested. Raises `BenchFailed`."""
    try:
        async with httpx.AsyncClient(timeout=_HEAD_S, trust_env=False) as http:
            head = (await http.get(f"{server}/log/head")).raise_for_status().json()
        return max(int(head["next"]) - int(at) for name, at in head["consumers"].items() if name.startswith(_INGEST))
    except (httpx.HTTPError, ValueError, KeyError) as error:
        raise BenchFailed(f"cannot read the pipeline's progress from the server: {error}") from None


@asynccontextmanager
async def jobs(server: str, data_dir: Path, master: str, cores: Sequence[int], temporary: Path) -> AsyncIterator[Jobs]:
    """Run ingest, rollup and alerts for the log in `data_dir`, with a lake in that folder.

    They run on `cores`, or on all if it is empty; their temporary files are in `temporary`.
    """
    arguments = ["--data-dir", str(data_dir), "--lake", str(data_dir / "lake"), "--server", server, "--master", master]
    with tempfile.TemporaryFile() as said:
        process = await asyncio.create_subprocess_exec(
            *module_command("app"),
            *("pipeline", "run", *arguments),
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=said,
            env=module_environment() | {"TMPDIR": str(temporary)},  # a killed process cannot remove its files
            start_new_session=True,
        )
        try:
            if cores:
                pin(process, *cores)  # processes that it starts later inherit this
            yield Jobs(process, said)
        finally:
            await end(process)
